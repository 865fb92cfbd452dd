"""Models compressed data: fewer bytes to read, and time to decode them. Pure.

Places and lengths of all data shrink by the same ratio. Real data do so only on average, so the rows are `modelled`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.transform.rank_work import MODELLED, RankWork
from dxt_replay.replay.transform.read_data import RequestCost
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.units import NS_PER_S

DECODERS = {"gzip": 300e6, "lzf": 800e6, "lz4": 2_000e6, "zstd": 1_000e6}
"""Decoder -> bytes per second that come out of it on one core: what such decoders reach on numeric data, in round
numbers; a third part of the option overrides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """A compression of data.

    name: of the decoder, one of DECODERS.
    ratio: stored bytes / bytes, above 0 and at most 1.
    bytes_per_s: output rate of the decoder.
    """

    name: str
    ratio: float
    bytes_per_s: float


def with_compression(
    work: RankWork, chosen: np.ndarray, compression: Compression, cost: RequestCost
) -> tuple[RankWork, np.ndarray]:
    """The operations, with the reads `chosen` (bool) compressed; and int64 (n,), the time to decode each."""
    mine = chosen & work.data_reads
    begin = np.rint(work.offset * compression.ratio).astype(np.int64)
    end = np.maximum(np.rint((work.offset + work.length) * compression.ratio).astype(np.int64), begin + 1)
    lasts = np.rint(np.minimum(work.duration_ns, cost.latency_ns) + cost.of_bytes(work.duration_ns) * compression.ratio)
    decode = np.rint(np.where(mine, work.length, 0) / compression.bytes_per_s * NS_PER_S).astype(np.int64)
    changed = dataclasses.replace(
        work,
        offset=np.where(mine, begin, work.offset),
        length=np.where(mine, end - begin, work.length),
        duration_ns=np.where(mine, lasts, work.duration_ns).astype(np.int64),
        origin=np.where(mine, MODELLED, work.origin).astype(work.origin.dtype),
    )
    return changed, decode


def parse_compression(text: str) -> Compression:
    """`gzip:0.6` or, with the speed of the decoder, `gzip:0.6:250MB/s`. Raises: UsageError for anything else."""
    name, _, rest = text.partition(":")
    ratio_text, _, speed = rest.partition(":")
    try:
        ratio = float(ratio_text)
        per_s = float(speed.removesuffix("MB/s")) * 1e6 if speed else DECODERS[name]
    except (ValueError, KeyError):
        ratio = per_s = 0.0
    if name not in DECODERS or not 0 < ratio <= 1 or not 0 < per_s < float("inf"):
        raise UsageError(
            f"--compression {text!r}: write NAME:RATIO or NAME:RATIO:SPEED, such as gzip:0.6 or gzip:0.6:250MB/s; NAME "
            f"is one of {', '.join(DECODERS)}, RATIO is stored / original bytes, above 0 and at most 1"
        )
    return Compression(name=name, ratio=ratio, bytes_per_s=per_s)
