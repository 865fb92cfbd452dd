"""Mutated input for every reader: `python -m tests.fuzz`, or `make fuzz`."""
