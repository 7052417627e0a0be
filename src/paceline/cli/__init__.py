"""The command line ``paceline``: a file for each group of commands, put together in ``main``."""
