"""Judges whether a file system is slower than another, or than it was: experiments, their records and history."""
