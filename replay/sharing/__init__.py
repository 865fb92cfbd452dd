"""A capture that can be given to strangers: its names replaced, what it did unchanged."""
