"""From a description to the rows of a capture."""
