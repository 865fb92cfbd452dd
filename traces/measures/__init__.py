"""Measures that every reader of a capture shares: intervals, distributions, access patterns, totals."""
