"""Tracers other than Darshan: what they recorded as operations of processes, and as spans."""
