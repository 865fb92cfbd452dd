"""Reads Darshan logs: container, job, counters and DXT as columns, and the logs that belong to one job."""
