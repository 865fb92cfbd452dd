"""What a trace does not hold: metadata operations, C streams, renames, and offsets that Darshan gets wrong."""
