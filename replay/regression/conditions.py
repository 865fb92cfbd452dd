"""The conditions of an experiment: capture and its digest, options, machine, file systems, and the record of the
comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.plan.pacing import RunOptions
from dxt_replay.replay.regression.against_record import check_comparable, environment_differences
from dxt_replay.replay.regression.environment_changes import target_changes
from dxt_replay.replay.regression.experiment_record import ExperimentRecord, RecordedCapture, RecordedOptions, Side
from dxt_replay.replay.regression.machine_environment import MachineEnvironment, machine_environment
from dxt_replay.replay.regression.target_environment import TargetEnvironment, target_environment
from dxt_replay.replay.target.placement import PathMap
from dxt_replay.traces.measures.operation_rows import ROW_COLUMNS, operation_rows
from dxt_replay.traces.schema import codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import printable


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
        return {
            "record": record.name,
            "start_ns": record.start_ns,
            "runs": len(record.counted_runs()),
        }


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
    options = _recorded(sides["candidate"])
    machine = machine_environment(processes)
    targets = {side: target_environment(chosen.target, _maps(chosen.maps)) for side, chosen in sides.items()}
    differences: tuple[str, ...] = ()
    if against is not None:
        check_comparable(against, replayed, options)
        differences = environment_differences(against, machine, targets["candidate"])
    elif "baseline" in targets:
        differences = tuple(target_changes(targets["baseline"], targets["candidate"]))
    return Conditions(
        capture=replayed, options=options, machine=machine, targets=targets, against=against, differences=differences
    )


def _recorded(options: RunOptions) -> RecordedOptions:
    pacing = options.pacing
    return RecordedOptions(
        pace=pacing.pace.value,
        speed=pacing.speed,
        compute_speed=pacing.of_compute,
        io_speed=pacing.of_io,
        compute=options.compute,
        api=options.api,
        direct=options.direct,
        cache="cold" if options.cold else "as found",
    )


def _maps(maps: tuple[PathMap, ...]) -> tuple[str, ...]:
    """The maps as they are given: `PREFIX=DIR`."""
    return tuple(
        (b"/" + b"/".join(found.prefix) + b"=" + found.directory).decode("utf-8", "backslashreplace") for found in maps
    )


_SPAN_COLUMNS = ("rank", "thread", "step", "start_ns", "end_ns")


def capture_digest(capture: Capture) -> str:
    """SHA-256 over operations, files and spans of a capture or a part of one, as 64 hexadecimal digits.

    One pass over the operations; where row groups end does not matter. Raises: CaptureError for a damaged part.
    """
    columns = {name: hashlib.sha256() for name in ROW_COLUMNS}
    ranks = []
    for rows in operation_rows(capture):
        ranks.append((rows.rank, len(rows)))
        for name, digest in columns.items():
            digest.update(np.ascontiguousarray(getattr(rows, name)).data)
    counted: dict[int, int] = {}
    for rank, rows_of_rank in ranks:
        counted[rank] = counted.get(rank, 0) + rows_of_rank
    whole = hashlib.sha256(repr((sorted(counted.items()), capture.ranks)).encode())
    for digest in columns.values():
        whole.update(digest.digest())
    for part in (_files(capture.files), *_spans(capture.spans)):
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


def _files(files: pa.Table) -> bytes:
    paths = "\0".join(files["path"].to_pylist()).encode("utf-8", "surrogatepass")
    return paths + np.ascontiguousarray(files["size"].to_numpy()).tobytes()


def _spans(spans: pa.Table) -> list[bytes]:
    numbers = [pc.fill_null(spans[name], -1).to_numpy() for name in _SPAN_COLUMNS]
    return [np.ascontiguousarray(column).tobytes() for column in (*numbers, codes(spans, "kind"))]
