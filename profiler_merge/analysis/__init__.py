"""Analyses of a capture: totals, times, patterns, phases. They take a capture, return frozen dataclasses and print
nothing."""
