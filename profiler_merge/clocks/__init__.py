"""Relates the clocks of logs and profiles, and finds the rank of each profile."""
