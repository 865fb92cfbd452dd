"""The timed issue loop in its compiled and its Python core, and what it works with."""
