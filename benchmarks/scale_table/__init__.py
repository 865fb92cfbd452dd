"""What the commands cost at scale, as one table: `python -m benchmarks.scale_table`."""
