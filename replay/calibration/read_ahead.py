"""How far the kernel reads ahead of a sequential reader, by which pages are in its cache afterwards."""

from __future__ import annotations

import os
import time

from replay.twin import page_cache

STEP_BYTES = 64 << 10
"""Bytes of a read."""

SETTLED_S, PATIENCE_S = 0.004, 2.0
"""The cache has settled when nothing came for the first time; it is waited for at most for the second."""


def measure_read_ahead(path: bytes, file_bytes: int, seconds: float) -> int | None:
    """The largest window that one read of a cold file began to fetch beyond its own bytes; None where unknown.

    The file is read from its begin, for at most `seconds`. Its pages must have been dropped.
    Raises: OSError.
    """
    until = time.monotonic() + seconds
    largest, before, buffer = 0, page_cache.resident([path]), bytearray(STEP_BYTES)
    if not before.total_bytes or before.resident_bytes:
        return None
    held, place = 0, 0
    with open(path, "rb", buffering=0) as file:
        while time.monotonic() < until and place + STEP_BYTES <= file_bytes:
            os.preadv(file.fileno(), [buffer], place)
            place += STEP_BYTES
            now = _settled(path, until)
            # What a read brought in beyond what it needed itself.
            largest, held = max(largest, now - max(held, place)), now
            if place > 2 * largest + 32 * STEP_BYTES:
                break
    return largest


def _settled(path: bytes, until: float) -> int:
    """Bytes of the file in the page cache, once no more come."""
    begun = since = time.monotonic()
    held = page_cache.resident([path]).resident_bytes
    while time.monotonic() - since < SETTLED_S and time.monotonic() < min(until, begun + PATIENCE_S):
        time.sleep(SETTLED_S / 4)
        now = page_cache.resident([path]).resident_bytes
        if now != held:
            held, since = now, time.monotonic()
    return held
