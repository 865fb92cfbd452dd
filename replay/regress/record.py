"""The record of an experiment: a JSON file with its runs and their conditions, for later ones to be compared with.

Written and read here alone. docs/regression.md describes it; a field more, or one that means something else, is a new
SCHEMA_VERSION.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow.compute as pc

from dxt_replay.replay.plan.pacing import RunOptions
from dxt_replay.replay.regress.environment import (
    MachineEnvironment,
    TargetEnvironment,
    machine_changes,
    machine_environment,
    target_changes,
    target_environment,
)
from dxt_replay.replay.regress.metrics import METRICS, MeasuredRun
from dxt_replay.replay.regress.statistics import MOST_RUNS as MOST_COMPARED
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.measures.operation_rows import ROW_COLUMNS, operation_rows
from dxt_replay.traces.schema import codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import listed, printable

FORMAT = "dxt-replay regress record"
"""Value of the key `format`, by which a record is known."""

SCHEMA_VERSION = 2
"""Before version 2 metrics that do not decide had `regression` and `improvement` for `slower` and `faster`."""

MOST_BYTES = 64 << 20
"""Largest record that is read; 2,000 runs take less than 4 MiB."""

MOST_RUNS = 10_000

_MOST_NUMBER = 1 << 62
"""Counts and times in ns are below it."""

_LEAST_METRIC, _MOST_METRIC = 1e-15, 1e18

Side = Literal["baseline", "candidate"]
Decision = Literal["regression", "improvement", "no change", "inconclusive", "slower", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCapture:
    """The replayed capture.

    name: of the capture or log.
    digest: of the operations, files and spans (`capture_digest`).
    operations: how many there are.
    part: the part that was chosen, as JSON; None for all of it.
    """

    name: str
    digest: str
    operations: int
    part: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOptions:
    """The options of `dxt-replay regress`.

    cache: cold or as found.
    vectored: buffers of a preadv or pwritev, which earlier releases could issue; 0 for plain calls, as now.
    reconstruct: whether reconstructed operations were replayed, which earlier releases could leave out.
    """

    pace: str
    speed: float
    compute_speed: float
    io_speed: float
    compute: str
    api: str
    direct: bool
    cache: str
    vectored: int = 0
    reconstruct: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMetric:
    """The verdict on a metric: candidate / baseline with its interval, None where so few runs have none."""

    ratio: float
    low: float | None
    high: float | None
    p_value: float
    verdict: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedVerdict:
    """The verdict of the experiment. `against`: start of the record of the comparison, ns; None for pairs. `storage`:
    what the storage itself did; from version 2 on."""

    headline: str
    verdict: Decision
    reason: str
    threshold_pct: float
    alpha: float
    metrics: Mapping[str, RecordedMetric]
    obstacles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    against: int | None = None
    storage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """One experiment.

    primary: the metric that decides.
    warmup: runs of each side before those that count. seed: of the order of the runs.
    machine: of process 0. targets: side -> its file system; no baseline where a record took its place.
    runs: all that the experiment made, in their order.
    """

    capture: RecordedCapture
    options: RecordedOptions
    primary: str
    warmup: int
    seed: int
    machine: MachineEnvironment
    targets: Mapping[Side, TargetEnvironment]
    runs: tuple[MeasuredRun, ...]
    result: RecordedVerdict
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION
    name: str = field(default="", compare=False)

    @property
    def start_ns(self) -> int:
        """When the first run began, CLOCK_REALTIME."""
        return min(run.start_ns for run in self.runs)

    @property
    def date(self) -> str:
        """`2026-03-01 04:00`: when the first run began, in UTC."""
        return f"{datetime.fromtimestamp(self.start_ns / 1e9, tz=timezone.utc):%Y-%m-%d %H:%M}"

    @property
    def version(self) -> str:
        """The release of dxt-replay that made it; empty if unknown."""
        return self.machine.versions.get("dxt-replay", "")

    def counted_runs(self, side: str = "candidate") -> tuple[MeasuredRun, ...]:
        """The runs of a side that count; those of both sides where both were the same target."""
        same = len({(target.target, target.maps) for target in self.targets.values()}) == 1
        return tuple(run for run in self.runs if run.counts and run.side in (self.targets if same else {side}))

    def encoded(self) -> bytes:
        """The bytes of the file."""
        runs = [dataclasses.replace(run, capture=None) for run in self.runs]
        document = {"format": self.format, "schema_version": self.schema_version}
        document |= {name: getattr(self, name) for name in self.__slots__ if name not in document and name != "name"}
        return msgspec.json.format(msgspec.json.encode({**document, "runs": runs}), indent=1) + b"\n"


_DECODER = msgspec.json.Decoder(ExperimentRecord)


def read_record(path: Path) -> ExperimentRecord:
    """The record in a file.

    Raises: UsageError for a file that cannot be read, is not a record, is damaged, or was written by a newer release.
    """
    content = _content(path)
    document = _document(path, content)
    if document is None:
        raise UsageError(
            f"{printable(path)} is not a record of an experiment: give a file that `dxt-replay regress --record` wrote"
        )
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UsageError(f"{printable(path)} is damaged: its schema_version is {printable(repr(version)[:40])}")
    if version > SCHEMA_VERSION:
        newer = f"schema version {version}, this release reads up to {SCHEMA_VERSION}"
        raise UsageError(f"{printable(path)} has {newer}: update dxt-replay")
    try:
        record = _DECODER.decode(content)
        for problem in _problems(record):
            raise ValueError(problem)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"{printable(path)} is damaged: {printable(str(error)[:300])}") from error
    return dataclasses.replace(record, name=path.name)


def is_record(path: Path) -> bool:
    """Whether a file says that it is a record; it may still be damaged. Raises: UsageError when it cannot be read."""
    return _document(path, _content(path)) is not None


def _content(path: Path) -> bytes:
    """The bytes of a regular file; a pipe, which would have to be waited for, is refused."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UsageError(f"{printable(path)} is not a regular file: give a file that `regress --record` wrote")
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the record {printable(path)}: {reason}") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{printable(path)} has more than {MOST_BYTES >> 20} MiB: it is not a record of an experiment")
    return content


def _document(path: Path, content: bytes) -> Mapping[str, Any] | None:
    """The JSON object of a record; None for what is something else. Raises: UsageError for a torn record."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        if FORMAT.encode() in content[:200]:
            raise UsageError(f"{printable(path)} is damaged: {printable(str(error)[:200])}") from error
        return None
    return document if isinstance(document, dict) and document.get("format") == FORMAT else None


def _problems(record: ExperimentRecord) -> Iterator[str]:
    """Invalid values of the right types."""
    if record.primary not in METRICS:
        yield f"it is judged by {record.primary!r}, which is not a metric"
    if not 0 < len(record.runs) <= MOST_RUNS:
        yield f"it has {len(record.runs)} runs instead of 1 to {MOST_RUNS:,}"
    if "candidate" not in record.targets:
        yield "it has no candidate among its targets"
    machine, speeds = record.machine, (record.options.speed, record.options.compute_speed, record.options.io_speed)
    numbers = (record.warmup, record.seed, record.capture.operations, machine.memory_bytes, machine.processes)
    if not all(0 <= number < _MOST_NUMBER for number in (*numbers, machine.cpus)):
        yield "a number out of range"
    if not 0 < record.result.threshold_pct <= 1000 or not 1e-4 <= record.result.alpha <= 0.5:
        yield "its rule is impossible"
    if not all(map(math.isfinite, speeds)):
        yield "a speed that is not a number"
    seen = set()
    for place, run in enumerate(record.runs, start=1):
        if run.side not in record.targets:
            yield f"run {place} is of the side {run.side!r}, which has no target"
        if run.pair and (run.pair, run.side) in seen:
            yield f"run {place} repeats pair {run.pair} of the {run.side}"
        seen.add((run.pair, run.side))
        for problem in _problems_of_run(run):
            yield f"run {place}: {problem}"
    for name, metric in record.result.metrics.items():
        figures = (metric.ratio, 1.0 if metric.low is None else metric.low, 1.0 if metric.high is None else metric.high)
        if name not in METRICS or not all(math.isfinite(figure) and figure > 0 for figure in figures):
            yield f"its verdict on {name!r}"


def _problems_of_run(run: MeasuredRun) -> Iterator[str]:
    if unknown := [name for name in run.metrics if name not in METRICS]:
        yield f"{listed(unknown)} is not a metric"
    if not all(_LEAST_METRIC <= value <= _MOST_METRIC for value in run.metrics.values()):
        yield "a metric that is not a number above 0"
    counts = (run.pair, run.operations, run.failed, run.short, run.left_out, run.bytes_read, run.bytes_written)
    if not all(0 <= count < _MOST_NUMBER for count in (*counts, run.failed_closes, run.start_ns)):
        yield "a number out of range"
    lags = [found for found in (run.lag_us, run.jitter_us) if found]
    times = (run.whole_s, run.starved_s, run.overhead_pct or 0.0, run.resident_pct or 0.0, run.stood_still_s)
    shares = (value for found in lags for value in found.values())
    if not all(map(math.isfinite, (*times, *shares))) or not 0 <= run.whole_s < 1e9:
        yield "a time that is not a number"
    if not all({"p90", "p99"} <= found.keys() for found in lags):
        yield "a percentile is missing"
    if run.capture is not None:
        yield "it names a capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Of one experiment.

    targets: side -> its file system.
    against: the record whose runs are the baseline; None for an experiment in pairs.
    differences: how the environment of the candidate differs from that of the baseline, as sentences.
    """

    capture: RecordedCapture
    options: RecordedOptions
    machine: MachineEnvironment
    targets: Mapping[Side, TargetEnvironment]
    against: ExperimentRecord | None = None
    differences: tuple[str, ...] = ()

    def environment_json(self) -> dict[str, Any]:
        """The key `environment` of `dxt-replay regress --json`."""
        return {
            "machine": asdict(self.machine),
            "targets": {side: asdict(target) for side, target in self.targets.items()},
            "capture_digest": self.capture.digest,
            "differences": list(self.differences),
        }

    def against_json(self) -> dict[str, Any] | None:
        """The key `against` of `dxt-replay regress --json`."""
        record = self.against
        if record is None:
            return None
        return {"record": record.name, "start_ns": record.start_ns, "runs": len(record.counted_runs())}


def observe(
    capture: Capture, sides: Mapping[Side, RunOptions], against: ExperimentRecord | None, processes: int
) -> Conditions:
    """The conditions of an experiment that is about to begin, as this process sees them.

    Raises: UsageError where its runs could not be compared with those of `against`; CaptureError for a damaged part.
    """
    replayed = RecordedCapture(
        name=printable(capture.named.name),
        digest=capture_digest(capture),
        operations=capture.operation_count(),
        part=None if capture.part.is_everything else capture.part.as_json(),
    )
    chosen = sides["candidate"]
    options = RecordedOptions(
        pace=chosen.pacing.pace.value,
        speed=chosen.pacing.speed,
        compute_speed=chosen.pacing.of_compute,
        io_speed=chosen.pacing.speed,
        compute=chosen.compute,
        api=chosen.api,
        direct=chosen.direct,
        cache="cold" if chosen.cold else "as found",
    )
    machine = machine_environment(processes)
    targets = {side: target_environment(each.target, _maps(each)) for side, each in sides.items()}
    differences: list[str] = []
    if against is not None:
        check_comparable(against, replayed, options)
        of_target = target_changes(against.targets["candidate"], targets["candidate"])
        differences = [*machine_changes(against.machine, machine), *of_target]
    elif "baseline" in targets:
        differences = target_changes(targets["baseline"], targets["candidate"])
    return Conditions(
        capture=replayed,
        options=options,
        machine=machine,
        targets=targets,
        against=against,
        differences=tuple(differences),
    )


def _maps(options: RunOptions) -> tuple[str, ...]:
    """The maps as they are given: `PREFIX=DIR`."""
    found = (b"/" + b"/".join(each.prefix) + b"=" + each.directory for each in options.maps)
    return tuple(each.decode("utf-8", "backslashreplace") for each in found)


def check_comparable(record: ExperimentRecord, capture: RecordedCapture, options: RecordedOptions) -> None:
    """Raises: UsageError for a record of other work, or with other options."""
    name = printable(record.name)
    if record.capture.digest != capture.digest:
        recorded, other = printable(record.capture.name), printable(capture.name)
        part = "" if record.capture.part == capture.part else " (another part was chosen with --part)"
        raise UsageError(
            f"{name} is a record of {recorded} with {record.capture.operations:,} operations, and {other} is other "
            f"work with {capture.operations:,}{part}: give the capture of the record, or make a record of this one"
        )
    for option in fields(options):
        recorded_with, given = getattr(record.options, option.name), getattr(options, option.name)
        if recorded_with != given:
            before, now = (
                f"{option.name.replace('_', ' ')} {printable(str(value)[:40])}" for value in (recorded_with, given)
            )
            raise UsageError(
                f"{name} was made with {before} and these runs with {now}: the two cannot be compared; give the same "
                "options"
            )
    if len(record.counted_runs()) > MOST_COMPARED:
        raise UsageError(f"{name} has more than {MOST_COMPARED:,} runs: make a record with fewer --repeats")
    if not record.counted_runs():
        raise UsageError(f"{name} has no finished run of its candidate: make another record")


def capture_digest(capture: Capture) -> str:
    """SHA-256 over operations, files and spans of a capture or a part of one, as 64 hexadecimal digits.

    One pass over the operations; where row groups end does not matter. Raises: CaptureError for a damaged part.
    """
    columns = {name: hashlib.sha256() for name in ROW_COLUMNS}
    counted: dict[int, int] = {}
    for rows in operation_rows(capture):
        counted[rows.rank] = counted.get(rows.rank, 0) + len(rows)
        for name, digest in columns.items():
            digest.update(np.ascontiguousarray(getattr(rows, name)).data)
    whole = hashlib.sha256(repr((sorted(counted.items()), capture.ranks)).encode())
    for digest in columns.values():
        whole.update(digest.digest())
    files, spans = capture.files, capture.spans
    paths = "\0".join(files["path"].to_pylist()).encode("utf-8", "surrogatepass")
    numbers = [pc.fill_null(spans[name], -1).to_numpy() for name in ("rank", "thread", "step", "start_ns", "end_ns")]
    parts = [np.ascontiguousarray(column).tobytes() for column in (*numbers, codes(spans, "kind"))]
    for part in (paths + np.ascontiguousarray(files["size"].to_numpy()).tobytes(), *parts):
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()
