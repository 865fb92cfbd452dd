"""HDF5 files: where the chunks of a recorded one lie, and a real twin with the same chunks at the same places."""
