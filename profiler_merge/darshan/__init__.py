"""Darshan logs: container, job, counters and DXT as columns, and which logs are one job."""
