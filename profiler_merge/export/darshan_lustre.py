"""Stripes of files -> records of the LUSTRE module, version 2: one component over the whole file.

Layout: darshan-lustre-log-format.h. A capture does not hold the storage targets of a file: their ids are -1.
"""

from __future__ import annotations

import struct

VERSION = 2

MOST_STRIPES = 1 << 16
"""Most stripes of a file: Lustre has some 2,000 targets, so a larger count is damage."""

_WHOLE_FILE = -1
_UNKNOWN = -1


def encode_lustre(record_id: int, stripe_size: int, stripe_count: int) -> bytes:
    """The decompressed bytes of one file's record, of rank 0; `stripe_size` in bytes."""
    if not 0 <= stripe_count <= MOST_STRIPES:
        return b""
    head = struct.pack("<Qqqq", record_id, 0, 1, stripe_count)
    component = struct.pack("<7q16s", stripe_size, stripe_count, 0, 0, 0, _WHOLE_FILE, 0, b"")
    return head + component + struct.pack(f"<{stripe_count}q", *[_UNKNOWN] * stripe_count)
