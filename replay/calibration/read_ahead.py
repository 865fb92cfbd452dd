"""Finds the kernel's read-ahead, and whether pages outlast a close, by looking at the page cache."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from dxt_replay.replay.calibration.host import read_ahead_setting
from dxt_replay.replay.target import page_cache

STEP_BYTES = 64 << 10
"""Bytes of a read."""

SETTLED_S, PATIENCE_S = 0.004, 2.0
"""The cache has settled when no page came for the longer of the first time and twice the slowest read. The second is
the longest wait for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAhead:
    """Observations of the page cache.

    bytes: the largest window that one read of a cold file began to fetch beyond its own bytes; None where unknown.
    dropped_at_open: whether a file that is opened again has lost its pages, as with libfuse's defaults.
    """

    bytes: int | None = None
    dropped_at_open: bool = False


def measure_read_ahead(path: bytes, file_bytes: int, seconds: float) -> ReadAhead:
    """Read a file from its begin, for at most `seconds`. Its pages must have been dropped.

    The pages are looked at through the open file, as another open may drop them. Raises: OSError.
    """
    until = time.monotonic() + seconds
    largest, held, place, quiet, buffer = 0, 0, 0, SETTLED_S, bytearray(STEP_BYTES)
    with open(path, "rb", buffering=0) as file:
        before = page_cache.resident_of(file.fileno(), path)
        if not before.total_bytes or before.resident_bytes:
            return ReadAhead()
        while time.monotonic() < until and place + STEP_BYTES <= file_bytes:
            begun = time.monotonic()
            os.preadv(file.fileno(), [buffer], place)
            place, quiet = place + STEP_BYTES, max(quiet, 2 * (time.monotonic() - begun))
            now = _settled(file.fileno(), path, quiet, until)
            # What a read brought in beyond what it needed itself.
            largest, held = max(largest, now - max(held, place)), now
            if place > 2 * largest + 32 * STEP_BYTES:
                break
        held = page_cache.resident_of(file.fileno(), path).resident_bytes
    with open(path, "rb", buffering=0) as file:
        again = page_cache.resident_of(file.fileno(), path).resident_bytes
    most = read_ahead_setting(os.stat(path).st_dev)  # on a busy machine two windows may look like one
    largest = largest if most is None else min(largest, most)
    return ReadAhead(bytes=largest, dropped_at_open=held > 0 and again < held / 2)


def _settled(fd: int, path: bytes, quiet: float, until: float) -> int:
    """Bytes of the file in the page cache, once none came for `quiet` seconds."""
    begun = since = time.monotonic()
    held = page_cache.resident_of(fd, path).resident_bytes
    while time.monotonic() - since < quiet and time.monotonic() < min(until, begun + PATIENCE_S):
        time.sleep(SETTLED_S / 4)
        now = page_cache.resident_of(fd, path).resident_bytes
        if now != held:
            held, since = now, time.monotonic()
    return held
