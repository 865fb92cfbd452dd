"""Records of experiments in order of time: how the figures went, and where they changed."""
