"""The sources of dxt-replay to captures: Darshan logs, profiles, clock alignment, merge, and analysis of a capture."""
