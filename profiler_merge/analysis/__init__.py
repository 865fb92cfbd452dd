"""What a capture says: totals, times, patterns, phases. Capture in, frozen dataclasses out; nothing here prints."""
