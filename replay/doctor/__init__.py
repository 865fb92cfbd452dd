"""Examines this machine and a directory: what works, what is missing, and what to do about it."""
