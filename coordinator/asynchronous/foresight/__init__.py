"""Looking ahead: how fast workers will be, how stale their pushes, and who is a straggler."""
