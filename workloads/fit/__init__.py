"""Fits a workload description to a capture: the values with which DLIO would issue the same I/O."""
