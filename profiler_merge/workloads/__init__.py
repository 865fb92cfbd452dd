"""A workload description, as DLIO's YAML or a shipped name, to a capture."""
