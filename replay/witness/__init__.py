"""Compares a replay with a Darshan log of itself: an independent tool counts its operations, file by file."""
