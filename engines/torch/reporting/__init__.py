"""Exchange between ranks: a check that they agree at first, then the measurements of each, and how often."""
