"""Record unedited training commands on this machine."""
