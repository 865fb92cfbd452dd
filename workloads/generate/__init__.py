"""Makes the rows of a capture from a description."""
