"""What ranks tell each other: that they agree at first, then what each measured, and how often."""
