"""Sources to captures: Darshan logs and profiler files, clock alignment, merge, and analysis of a capture."""
