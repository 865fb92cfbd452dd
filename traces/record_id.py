"""Darshan's record id of a path: Bob Jenkins' `lookup8` hash of its bytes, level 0.

Source: http://burtleburtle.net/bob/c/lookup8.c (public domain), which `darshan_core_gen_record_id` calls.
"""

from dxt_replay.traces.file_rows import STANDARD_STREAMS

_GOLDEN_RATIO = 0x9E3779B97F4A7C13
_MASK = (1 << 64) - 1
_BLOCK = 24


def record_id(path: bytes | str) -> int:
    """The unsigned 64-bit id under which a Darshan log files `path`; a `str` is hashed as UTF-8.

    Darshan hashes the absolute path without `//` and `/./`; links and `..` stay as the application gave them.
    Obfuscated logs keep the ids, so a guess of the original path can be confirmed.
    """
    data = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    a = b = 0
    c = _GOLDEN_RATIO
    whole = len(data) - len(data) % _BLOCK
    for start in range(0, whole, _BLOCK):
        a = (a + int.from_bytes(data[start : start + 8], "little")) & _MASK
        b = (b + int.from_bytes(data[start + 8 : start + 16], "little")) & _MASK
        c = (c + int.from_bytes(data[start + 16 : start + 24], "little")) & _MASK
        a, b, c = _mix(a, b, c)
    rest = data[whole:]
    a = (a + int.from_bytes(rest[:8], "little")) & _MASK
    b = (b + int.from_bytes(rest[8:16], "little")) & _MASK
    # The lowest byte of the last word belongs to the length.
    c = (c + len(data) + (int.from_bytes(rest[16:], "little") << 8)) & _MASK
    return _mix(a, b, c)[2]


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for right_a, left_b, right_c in ((43, 9, 8), (38, 23, 5), (35, 49, 11), (12, 18, 22)):
        a = ((a - b - c) & _MASK) ^ (c >> right_a)
        b = ((b - c - a) & _MASK) ^ ((a << left_b) & _MASK)
        c = ((c - a - b) & _MASK) ^ (b >> right_c)
    return a, b, c


STREAM_RECORDS = frozenset(map(record_id, STANDARD_STREAMS))
"""Ids of the standard streams, in anonymised logs too."""
