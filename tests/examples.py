"""How many random examples a test tries: as many as it says, or its share under the profile `quick`."""

from __future__ import annotations

from hypothesis import settings

WHOLE = 100
"""Examples of a test that says nothing, under every profile but `quick`."""


def examples(number: int) -> int:
    """For `max_examples`: `number`, or as much less as the loaded profile tries less than WHOLE."""
    return max(1, number * settings().max_examples // WHOLE)
