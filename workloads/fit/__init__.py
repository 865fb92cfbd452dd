"""A capture as a workload description: what DLIO would need to be given to issue the same I/O."""
