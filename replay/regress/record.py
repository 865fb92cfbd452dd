"""The record of an experiment: a JSON file with its runs and their conditions, for later ones to be compared with.

Written and read here alone. docs/regression.md describes it; a field more, or one that means something else, is a
new SCHEMA_VERSION. Fields that earlier versions lacked have defaults.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

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
from dxt_replay.replay.regress.metrics import METRICS, Count, MeasuredRun
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

Side = Literal["baseline", "candidate"]
Decision = Literal["regression", "improvement", "no change", "inconclusive", "slower", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCapture:
    """The replayed capture. `name`: of the capture or log. `digest`: of the operations, files and spans
    (`capture_digest`). `part`: the part that was chosen, as JSON; None for all of it."""

    name: str
    digest: str
    operations: Count
    part: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOptions:
    """The options of `dxt-replay regress`. `cache`: cold or as found. Earlier releases could replay in vectors
    (`vectored`: buffers of a call) and leave reconstructed operations out (`reconstruct`)."""

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
class RecordedVerdict:
    """The verdict of the experiment. `metrics`: of each its ratio, low, high, p_value and verdict, for other programs.
    `against`: start of the record of the comparison, ns; None for pairs. `storage`: what the storage itself did."""

    headline: str
    verdict: Decision
    reason: str
    threshold_pct: Annotated[float, msgspec.Meta(gt=0, le=1000)]
    alpha: Annotated[float, msgspec.Meta(ge=1e-4, le=0.5)]
    metrics: Mapping[str, Mapping[str, float | str | None]]
    obstacles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    against: int | None = None
    storage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """One experiment; `runs`, all that it made in their order, and `result` come last. `targets`: no baseline where a
    record took its place."""

    capture: RecordedCapture
    options: RecordedOptions
    primary: str
    warmup: Count
    seed: Count
    machine: MachineEnvironment
    targets: Mapping[Side, TargetEnvironment]
    runs: tuple[MeasuredRun, ...] = ()
    result: RecordedVerdict | None = None
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
    def verdict(self) -> Decision:
        """Of a record that was read."""
        assert self.result is not None
        return self.result.verdict

    def counted_runs(self, side: str = "candidate") -> tuple[MeasuredRun, ...]:
        """The runs of a side that count; those of both sides where both were the same target."""
        same = len({(target.target, target.maps) for target in self.targets.values()}) == 1
        return tuple(run for run in self.runs if run.counts and run.side in (self.targets if same else {side}))

    def encoded(self) -> bytes:
        """The bytes of the file."""
        document = {"format": self.format, "schema_version": self.schema_version}
        document |= {name: getattr(self, name) for name in self.__slots__ if name not in document and name != "name"}
        document["runs"] = [replace(run, capture=None) for run in self.runs]
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


_DECODER = msgspec.json.Decoder(ExperimentRecord)


def read_record(path: Path) -> ExperimentRecord:
    """The record in a file.

    Raises: UsageError for a file that cannot be read, is not a record, is damaged, or was written by a newer release.
    """
    record = record_in(path)
    if record is None:
        raise UsageError(
            f"{printable(path)} is not a record of an experiment: give a file that `dxt-replay regress --record` wrote"
        )
    return record


def record_in(path: Path) -> ExperimentRecord | None:
    """As `read_record`; None for a file that does not say that it is a record."""
    content = _content(path)
    document = _document(path, content)
    if document is None:
        return None
    version = document.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        newer = f"schema version {version}, this release reads up to {SCHEMA_VERSION}"
        raise UsageError(f"{printable(path)} has {newer}: update dxt-replay")
    try:
        if type(version) is not int or version < 1:
            raise ValueError(f"its schema_version is {repr(version)[:40]}")
        record = _DECODER.decode(content)
        for problem in _problems(record):
            raise ValueError(problem)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    return replace(record, name=path.name)


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{printable(path)} is damaged: {printable(str(error)[:300])}")


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
            raise _damaged(path, error) from error
        return None
    return document if isinstance(document, dict) and document.get("format") == FORMAT else None


def _problems(record: ExperimentRecord) -> Iterator[str]:
    """Invalid values of the right types and sizes."""
    metrics = [record.primary, *(record.result.metrics if record.result else ())]
    metrics += [name for run in record.runs for name in run.metrics]
    if unknown := [name for name in metrics if name not in METRICS]:
        yield f"{listed(list(map(repr, unknown)))} is not a metric"
    if record.result is None:
        yield "it has no result"
    if not 0 < len(record.runs) <= MOST_RUNS:
        yield f"it has {len(record.runs)} runs instead of 1 to {MOST_RUNS:,}"
    if "candidate" not in record.targets:
        yield "it has no candidate among its targets"
    seen = set()
    for place, run in enumerate(record.runs, start=1):
        if run.side not in record.targets:
            yield f"run {place} is of the side {run.side!r}, which has no target"
        if run.pair and (run.pair, run.side) in seen:
            yield f"run {place} repeats pair {run.pair} of the {run.side}"
        seen.add((run.pair, run.side))
        if any(found and not {"p90", "p99"} <= found.keys() for found in (run.lag_us, run.jitter_us)):
            yield f"run {place}: a percentile is missing"
        if run.capture is not None:
            yield f"run {place} names a capture"


def observe(
    capture: Capture,
    sides: Mapping[Side, RunOptions],
    against: ExperimentRecord | None,
    *,
    processes: int,
    primary: str,
    warmup: int,
    seed: int,
) -> tuple[ExperimentRecord, list[str]]:
    """The record of an experiment that is about to begin, without runs, and how the environment of its candidate
    differs from that of its baseline (`against`, if it is a record), as sentences.

    Raises: UsageError where its runs could not be compared with those of `against`; CaptureError for a damaged part.
    """
    chosen = sides["candidate"]
    begun = ExperimentRecord(
        capture=RecordedCapture(
            name=printable(capture.named.name),
            digest=capture_digest(capture),
            operations=capture.operation_count(),
            part=None if capture.part.is_everything else capture.part.as_json(),
        ),
        options=RecordedOptions(
            pace=chosen.pacing.pace.value,
            speed=chosen.pacing.speed,
            compute_speed=chosen.pacing.of_compute,
            io_speed=chosen.pacing.speed,
            compute=chosen.compute,
            api=chosen.api,
            direct=chosen.direct,
            cache="cold" if chosen.cold else "as found",
        ),
        primary=primary,
        warmup=warmup,
        seed=seed,
        machine=machine_environment(processes),
        targets={side: target_environment(each.target, _maps(each)) for side, each in sides.items()},
    )
    if against is not None:
        check_comparable(against, begun.capture, begun.options)
        return begun, changes_since(against, begun)
    before = begun.targets.get("baseline")
    return begun, [] if before is None else target_changes(before, begun.targets["candidate"])


def _maps(options: RunOptions) -> tuple[str, ...]:
    """The maps as they are given: `PREFIX=DIR`."""
    found = (b"/" + b"/".join(each.prefix) + b"=" + each.directory for each in options.maps)
    return tuple(each.decode("utf-8", "backslashreplace") for each in found)


def changes_since(before: ExperimentRecord, after: ExperimentRecord) -> list[str]:
    """How the machine and the candidate's file system differ between two records."""
    of_target = target_changes(before.targets["candidate"], after.targets["candidate"])
    return [*machine_changes(before.machine, after.machine), *of_target]


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
        values = getattr(record.options, option.name), getattr(options, option.name)
        if values[0] != values[1]:
            before, now = (f"{option.name.replace('_', ' ')} {printable(str(value)[:40])}" for value in values)
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
