"""HEATMAP records of a Darshan log: bytes moved over time, by rank and interface."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.darshan.regions import DamagedLogError

_VERSION = 1
_HEAD_BYTES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapRecord:
    """Bytes that one rank moved in each time bin through one interface.

    `record_id`: the interface, as `heatmap:POSIX` and the like in `log.names`.
    `bin_width_s`: width of a bin in seconds.
    `read_bins`, `write_bins`: int64 (n,), bytes. n and the width may differ between ranks (Darshan 3.4.0 to 3.4.3: by
        one bin).
    """

    rank: int
    record_id: int
    bin_width_s: float
    read_bins: np.ndarray
    write_bins: np.ndarray


def read_heatmap(log: DarshanLog) -> Iterator[HeatmapRecord]:
    """The HEATMAP records of version 1 in the order of the log, up to the first damaged one."""
    module = log.modules.get("HEATMAP")
    if module is None or module.version != _VERSION:
        return
    parts: list[bytes] = []
    try:
        parts.extend(log.chunks("HEATMAP"))
    except DamagedLogError as error:
        log.note_damage("HEATMAP", error)
    data, position = b"".join(parts), 0
    while position + _HEAD_BYTES <= len(data):
        # The head ends with two pointers that mean nothing in a file. The write bins come before the read bins.
        record_id, rank, width, bins = struct.unpack_from(log.byte_order + "Qqdq", data, position)
        position += _HEAD_BYTES
        if not (0 < width < math.inf and rank >= 0 and 0 <= 16 * bins <= len(data) - position):
            missing = f"{len(data) - position + _HEAD_BYTES:,} bytes"
            log.note_damage("HEATMAP", DamagedLogError(f"HEATMAP of {log.path} has an impossible record", missing))
            return
        both = np.frombuffer(data, log.byte_order + "i8", 2 * bins, position).astype(np.int64)
        position += 16 * bins
        yield HeatmapRecord(
            rank=rank, record_id=record_id, bin_width_s=width, write_bins=both[:bins], read_bins=both[bins:]
        )
