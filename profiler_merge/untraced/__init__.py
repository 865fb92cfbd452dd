"""Rebuilds operations that a trace lacks: metadata, C streams, renames; and repairs offsets that Darshan gets wrong."""
