"""Reads `capture.json` and checks it against the contract: every type, and every number that others rely on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dxt_replay.traces.errors import CaptureError, DamagedCaptureError
from dxt_replay.traces.schema import SCHEMA_VERSION, CaptureInfo

MOST_RANK = (1 << 31) - 1
"""Ranks are int32 in every table."""

MOST_NS = 1 << 61
"""Times of a capture lie within +-73 years of its zero, so that sums and differences of two fit into int64."""

_OTHERS_VERSION = 5
"""Schema version since which other programs may write captures."""

_DECODER = msgspec.json.Decoder(CaptureInfo)


def read_info(path: Path) -> CaptureInfo:
    """The contents of `capture.json` in the directory `path`.

    Raises: CaptureError when it is not there, was written by a newer release, or contradicts the contract; OSError
    when it cannot be read.
    """
    file = path / "capture.json"
    if not path.is_dir() or not file.is_file():
        what = "does not exist" if not path.exists() else "is not a capture (no capture.json)"
        raise CaptureError(
            f"{path} {what}: give a capture, which `dxt-replay merge` or `run` writes, or a .darshan log"
        )
    text = file.read_bytes()
    try:
        version = json.loads(text)["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedCaptureError(f"{file} is damaged ({error!r})") from error
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise CaptureError(
            f"{path} has schema version {version!r}; this release reads up to {SCHEMA_VERSION}: update dxt-replay"
        )
    try:
        info = _DECODER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamagedCaptureError(f"{file} is damaged ({error})") from error
    for problem in _problems(info):
        raise DamagedCaptureError(f"{file} is damaged: {problem}")
    return info


def is_ours(path: Path, info: CaptureInfo) -> bool:
    """Whether dxt-replay wrote the capture in `path`, not another program that follows docs/capture-format.md.

    Such a capture is complete only with all its tables and, from schema version 4 on, with digests.
    """
    told = info.digests or info.made_by.get("program") == "dxt-replay"
    return bool(told) or info.schema_version < _OTHERS_VERSION or (path / "index.parquet").exists()


def _problems(info: CaptureInfo) -> Iterator[str]:
    job, coverage = info.job, info.coverage
    if not 0 <= job.nprocs <= MOST_RANK:
        yield f"its job has {job.nprocs} processes"
    if not 0 <= job.run_time_s <= MOST_NS / 1e9:
        yield f"its job has a run time of {job.run_time_s} s"
    for name in ("start_ns", "end_ns", "zero_ns", "job_id"):
        if not -(1 << 63) <= getattr(job, name) < 1 << 63:
            yield f"its job has a {name} of {getattr(job, name)}"
    ranks = list(info.ranks)
    if ranks != sorted(set(ranks)) or (ranks and not 0 <= ranks[0] <= ranks[-1] <= MOST_RANK):
        yield "its ranks are not ascending numbers from 0 to 2147483647"
    for clock in info.clock:
        low, high = clock.interval_ns
        # The offset moves a log's own time, which may count from 1970, to the capture's.
        if clock.worker < 0 or low > high or max(abs(low), abs(high), abs(clock.offset_ns)) > 2 * MOST_NS:
            yield f"the clock of rank {clock.rank} is impossible"
    pairs = [(coverage.bytes, coverage.operations), coverage.traceable, *coverage.ranks.values()]
    shares = [share for pair in pairs for share in pair]
    if any(share is not None and (share < 0 or not math.isfinite(share)) for share in shares):
        yield "it has a trace coverage below 0, or an infinite one"
