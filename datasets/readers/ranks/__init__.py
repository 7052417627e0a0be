"""Reports and logs in which training tools give a time or a score for each rank."""
