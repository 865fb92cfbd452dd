"""Readers of tracers other than Darshan: operations of processes, and spans."""
