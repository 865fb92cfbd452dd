"""What a capture says of how it was made: a replay (the `made_by` of its `capture.json`, which only this module writes
and reads), a benchmark's training, and the rules by which a replay was late or an operation of it failed."""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.paces import API_CHOICES, PACE_CHOICES
from dxt_replay.traces.schema import READ, RECONSTRUCTED, WRITE, CaptureInfo
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, NS_PER_US
from dxt_replay.traces.version import VERSION

if TYPE_CHECKING:
    from dxt_replay.traces.measures.distribution import Distribution

PERCENTILES = ("p50", "p90", "p99", "max")
"""Names of the percentiles that a run reports."""

_PROGRAM = ("program", "version", "command", "operations_stored", "anonymized")
_OWN = ("pace", "speed", "compute_speed", "io_speed", "api", "reconstruct", "selection", "result")
_OF_RESULT = ("cache", "lag_us", "jitter_us", "jitter_before_us", "processors_pct", "stood_still_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRecord:
    """The page cache before the run.

    policy: cold (the twin's pages were dropped first) or as found.
    resident_before_pct: share of the bytes to be read that it held; None where it could not be measured.
    from_page_cache: whether reads may have come from it.
    """

    policy: Literal["cold", "as found"]
    resident_before_pct: float | None = None
    from_page_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecord:
    """How a replay was made, and what it measured about itself.

    pace: one of PACE_CHOICES.
    speed, compute_speed, io_speed: how much faster than recorded (2.0: twice as fast).
    api: one of API_CHOICES.
    reconstruct: whether reconstructed operations were replayed.
    selection: the part of the source that was replayed, as JSON; None for all of it.
    cache: the page cache before the run; None where it was not recorded.
    lag_us, jitter_us: begin - due of the operations and of the jitter probe, by PERCENTILES; None where unknown.
    jitter_before_us: as jitter_us, before the run; None where it was not measured.
    processors_pct: share of the machine's processors that the run took; None where unknown.
    stood_still_s, training_stood_still_s: for how long the machine stood still in the run, and in its training.
    result: the whole object that `dxt-replay run --json` printed; empty where it was not stored.
    """

    pace: str
    speed: float = 1.0
    compute_speed: float = 1.0
    io_speed: float = 1.0
    api: str = "auto"
    reconstruct: bool = True
    selection: dict[str, Any] | None = None
    cache: CacheRecord | None = None
    lag_us: dict[str, float] | None = None
    jitter_us: dict[str, float] | None = None
    jitter_before_us: dict[str, float] | None = None
    processors_pct: float | None = None
    stood_still_s: float = 0.0
    training_stood_still_s: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    def as_made_by(self, operations_stored: int) -> dict[str, Any]:
        """The `made_by` of the replay's `capture.json`; `cache`, `lag_us` and `jitter_us` are part of the result."""
        made = {"program": "dxt-replay", "version": VERSION, "command": "run", "operations_stored": operations_stored}
        return {**made, **{name: getattr(self, name) for name in _OWN}}


def is_replay(info: CaptureInfo) -> bool:
    """Whether a capture was written by `dxt-replay run`, so that its counters are not its own."""
    return info.made_by.get("command") == "run" or "pace" in info.made_by


def generated(info: CaptureInfo) -> str | None:
    """A sentence on the times of a capture that was made from a description, and not recorded; None for others."""
    if is_replay(info) or not any(source.kind == "workload" for source in info.sources):
        return None
    device = re.search(r"bandwidth=([0-9.e+]+)B/s", str(info.made_by.get("device", "")))
    speed = f" of {float(device[1]) / 1e9:.3g} GB/s" if device and device[1].replace(".", "", 1).isdigit() else ""
    return f"Generated, not recorded: times of an assumed device{speed}."


def replay_record(info: CaptureInfo, where: object = "capture.json") -> ReplayRecord | None:
    """The record of a replay; None for a capture that is not a replay. Fields that older releases lacked have defaults.

    `where`: the file to name in an error. Raises: CaptureError for a field that is unknown or has a wrong value.
    """
    if not is_replay(info):
        return None
    try:
        given = {name: value for name, value in info.made_by.items() if name not in _PROGRAM}
        unknown = sorted(given.keys() - set(_OWN))
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}")
        given["result"] = result = msgspec.convert(given.get("result") or {}, dict[str, Any])
        given |= {"compute_speed": given.get("speed", 1.0), "io_speed": given.get("speed", 1.0)} | given
        given |= {name: result[name] for name in _OF_RESULT if result.get(name) is not None}
        training = msgspec.convert(result.get("training") or {}, dict[str, Any])
        given["training_stood_still_s"] = training.get("stood_still_s", 0.0)
        record = msgspec.convert(given, ReplayRecord)
        if record.pace not in PACE_CHOICES or record.api not in API_CHOICES:
            raise ValueError(f"pace {record.pace!r}, api {record.api!r}")
        for speed in (record.speed, record.compute_speed, record.io_speed):
            if not 0 < speed < math.inf:
                raise ValueError(f"speed {speed}")
        return record
    except (ValueError, msgspec.MsgspecError) as error:
        raise CaptureError(
            f"{where}: the replay's record cannot be read ({error}): update dxt-replay if a newer release wrote it, "
            "else run the replay again"
        ) from error


BENCHMARK = "benchmark"
"""Key of `Job.metadata` that holds the run, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """One training of a benchmark in the manner of DLIO.

    workload: name of its description. overrides: `KEY=VALUE` given beside it.
    batch_size: samples of a rank's step. record_bytes: mean length of a sample. files, samples_per_file: of training.
    exclude_start_steps, exclude_end_steps: of each block, left out of the accelerator utilisation.
    blocks: (epoch, first step, last step) of each stretch of training steps without a checkpoint between.
    """

    workload: str
    overrides: tuple[str, ...]
    batch_size: int
    record_bytes: float
    files: int
    samples_per_file: int
    exclude_start_steps: int
    exclude_end_steps: int
    blocks: tuple[tuple[int, int, int], ...]

    def as_metadata(self) -> dict[str, str]:
        """The run as it lies in `Job.metadata`."""
        return {BENCHMARK: json.dumps(asdict(self))}


def benchmark_run(info: CaptureInfo) -> BenchmarkRun | None:
    """The run of a benchmark that a capture shows; None for any other."""
    if BENCHMARK not in info.job.metadata:
        return None
    try:
        run = msgspec.json.decode(info.job.metadata[BENCHMARK], type=BenchmarkRun)
        if min(run.batch_size, run.exclude_start_steps, run.exclude_end_steps, run.files, run.samples_per_file) < 0:
            raise ValueError("a number below 0")
        return run
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CaptureError(
            f"capture.json is damaged: the benchmark in its metadata cannot be read ({error}); copy or make the "
            "capture again"
        ) from error


LATE_RATIO, LATE_US, MOST_ALLOWED_US = 10.0, 1_000.0, 500_000.0
"""The p99 of a lag counts as late beyond this many times the p99 of the machine's jitter, and beyond LATE_US. Beyond
MOST_ALLOWED_US it always counts as late: a thread that wakes seconds late lacks a processor because the replay's own
lanes use them."""


OWN_LOAD_PCT = 80.0
"""Share of the processors above which the replay itself keeps an idle thread beside it from waking in time."""


LEAST_STALL_NS = 100 * NS_PER_MS
"""Shorter times in which a process got no processor are its share of a busy machine (`replay.engine.issue`)."""

DISTURBED_PCT = 1.0
"""Share of a run, per cent, that the machine may stand still before its times are not judged."""


def machine_jitter_us(
    before: Mapping[str, float] | None, during: Mapping[str, float] | None, processors_pct: float | None
) -> Mapping[str, float] | None:
    """Percentiles in us of the jitter that the machine has without the replay; None where it is unknown.

    `before`, `during`: the lag of an idle thread before and beside the run. `processors_pct`: share of the machine's
    processors that the replay took. If it took nearly all, the replay caused the jitter during the run.
    """
    loaded = processors_pct is not None and processors_pct >= OWN_LOAD_PCT
    return before if before is not None and loaded else during


def allowed_lag_us(jitter_us: Mapping[str, float] | None) -> float:
    """The largest p99 of a lag (us) that counts as on time.

    `jitter_us`: percentiles of the lag of an idle thread on the same machine; None where it was not measured.
    """
    return min(max(LATE_US, LATE_RATIO * (jitter_us or {}).get("p99", 0.0)), MOST_ALLOWED_US)


def disturbed(stood_still_s: float, elapsed_s: float, share_pct: float = DISTURBED_PCT) -> str | None:
    """`disturbed: stood still for 3.0 s`, where that exceeds `share_pct` of the run; else None."""
    if stood_still_s <= 0 or 100 * stood_still_s <= share_pct * elapsed_s:
        return None
    return f"disturbed: stood still for {stood_still_s:.{1 if stood_still_s >= 1 else 2}f} s"


def kept_times_limit_us(recorded_elapsed_s: float, share_pct: float, allowed_us: float) -> float:
    """The largest p99 of the lag (us) with which a replay kept the recorded times.

    `share_pct`: share of the recorded time, in per cent; `allowed_us`: the limit of `allowed_lag_us`, for a short run.
    """
    return max(recorded_elapsed_s * NS_PER_S / NS_PER_US * share_pct / 100, allowed_us)


def percentiles_us(nanoseconds: Distribution) -> dict[str, float] | None:
    """p50, p90, p99 and max in us; None for an empty distribution."""
    if not nanoseconds.count:
        return None
    shares = zip(PERCENTILES, (0.5, 0.9, 0.99, 1.0), strict=True)
    return {name: nanoseconds.quantile(share) / NS_PER_US for name, share in shares}


_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EBADF)
"""Errors of a path or descriptor that does not exist, or names another kind of file, when an operation uses it."""


def error_name(number: int) -> str:
    """Name of an errno, such as ENOENT; the number itself if it has no name."""
    return errno.errorcode.get(number, str(number))


def by_error_name(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts by errno as counts by the name of the error, in the order of the numbers."""
    return {error_name(number): count for number, count in sorted(counts.items())}


def is_refused(op: np.ndarray, origin: np.ndarray, result: np.ndarray) -> np.ndarray:
    """Mask of operations (n,) that are not failures although they returned an error (a negative errno).

    The moments of reconstructed opens, closes, stats, seeks, syncs and renames are inferred, so one of them may find
    nothing yet, or no longer, where the application's own call succeeded. Errors of the storage itself, such as EIO
    and ENOSPC, are failures of any operation.
    """
    refused: np.ndarray = (origin == RECONSTRUCTED) & (op != READ) & (op != WRITE) & np.isin(-result, _ABSENT)
    return refused
