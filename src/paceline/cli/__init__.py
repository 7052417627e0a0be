"""The command line ``paceline``: one file per group of commands, assembled in ``main``."""
