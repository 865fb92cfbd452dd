"""The command line: a file for each command; only `main` catches errors."""
