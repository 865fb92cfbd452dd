"""Checks that new runs can be compared with those of a record, and warns about differences. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import fields

from dxt_replay.replay.regression.environment_changes import machine_changes, target_changes
from dxt_replay.replay.regression.experiment_record import ExperimentRecord, RecordedCapture, RecordedOptions
from dxt_replay.replay.regression.interval_verdict import Verdict, change_text
from dxt_replay.replay.regression.machine_environment import MachineEnvironment
from dxt_replay.replay.regression.rank_sum import MOST_RUNS, unpaired_ratio
from dxt_replay.replay.regression.run_metrics import MeasuredRun
from dxt_replay.replay.regression.target_environment import TargetEnvironment
from dxt_replay.replay.show.cells import microseconds
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.records import LATE_US
from dxt_replay.traces.text import printable

_LEAST_HALF = 4
"""Runs of a half of a session from which on both halves are compared."""

_DRIFT_ALPHA = 0.01

_AS_THEN = "repeat it when the machine is as busy as it was for the record, or make a new record"

BUSIER = 3.0
"""Jitter that is larger by this factor, and not below `LATE_US`, is of a busier machine."""


def check_comparable(record: ExperimentRecord, capture: RecordedCapture, options: RecordedOptions) -> None:
    """Raises: UsageError for a record of other work, or with other options."""
    name = printable(record.name)
    if record.capture.digest != capture.digest:
        recorded, other = printable(record.capture.name), printable(capture.name)
        part = "" if record.capture.part == capture.part else " (another part was chosen with --ranks, --steps ...)"
        raise UsageError(
            f"{name} is a record of {recorded} with {record.capture.operations:,} operations, and {other} is other "
            f"work with {capture.operations:,}{part}: give the capture of the record, or make a record of this one"
        )
    for option in fields(options):
        recorded, given = getattr(record.options, option.name), getattr(options, option.name)
        if recorded != given:
            raise UsageError(
                f"{name} was made with {_option(option.name, recorded)} and these runs with "
                f"{_option(option.name, given)}: the two cannot be compared; give the same options"
            )
    if len(record.counted_runs()) > MOST_RUNS:
        raise UsageError(f"{name} has more than {MOST_RUNS:,} runs: make a record with fewer --repeats")
    if not record.counted_runs():
        raise UsageError(f"{name} has no finished run of its candidate: make another record")


def _option(name: str, value: object) -> str:
    return f"{name.replace('_', ' ')} {printable(str(value)[:40])}"


def environment_differences(
    record: ExperimentRecord, machine: MachineEnvironment, target: TargetEnvironment
) -> tuple[str, ...]:
    """Differences of the environment from that of the record's candidate."""
    return (*machine_changes(record.machine, machine), *target_changes(record.targets["candidate"], target))


def session_warnings(recorded: Sequence[MeasuredRun], runs: Sequence[MeasuredRun], primary: str) -> list[str]:
    """Sentences on what two sessions cannot show, and on a session that drifted while it was measured."""
    counted = [run for run in runs if run.counts]
    found = [
        "the runs of the record were made in another session: whatever differed between both, such as other users, is "
        "part of the change; --baseline and --candidate measure both sides in turn and exclude it"
    ]
    for name, session in (("the record", recorded), ("this session", counted)):
        drift = _drift(session, primary)
        if drift:
            found.append(
                f"the runs of {name} drifted by {drift} from its first half to its second, so that they are not "
                "independent and the interval is too narrow: repeat it when the machine is quiet"
            )
    return found


def jitter_difference(recorded: Sequence[MeasuredRun], runs: Sequence[MeasuredRun]) -> str | None:
    """A sentence where the machine itself was busier in one of two sessions; None where it was alike.

    The jitter is how late a thread woke that does nothing else: storage cannot delay it, other programs can.
    """
    before, after = _jitter_us(recorded), _jitter_us(runs)
    if (
        before is None
        or after is None
        or max(before, after) < LATE_US
        or max(before, after) < BUSIER * min(before, after)
    ):
        return None
    word = "busier" if after > before else "quieter"
    return (
        f"the machine was {word}: an idle thread woke up to {microseconds(after)} late (90th percentile, median of the "
        f"runs), and up to {microseconds(before)} before"
    )


def jitter_doubt(recorded: Sequence[MeasuredRun], runs: Sequence[MeasuredRun]) -> dict[Verdict, str]:
    """The verdict that a busier or quieter machine may have made, and why; empty where it was alike.

    A slowdown on a quieter machine is a slowdown all the same.
    """
    text = jitter_difference(recorded, runs)
    if text is None:
        return {}
    busier = (_jitter_us(runs) or 0.0) > (_jitter_us(recorded) or 0.0)
    return {Verdict.REGRESSION if busier else Verdict.IMPROVEMENT: f"{text}; {_AS_THEN}"}


def busy_warning(runs: Sequence[MeasuredRun]) -> list[str]:
    """A sentence where the machine was busy for these runs, which as a record hide what a quieter session finds."""
    jitter = _jitter_us(runs)
    if jitter is None or jitter < LATE_US:
        return []
    return [
        f"the machine was busy: an idle thread woke up to {microseconds(jitter)} late (90th percentile, median of the "
        "runs); do not keep these runs as a record, since later runs on a quiet machine seem faster than they are"
    ]


def _jitter_us(runs: Sequence[MeasuredRun]) -> float | None:
    known = [run.jitter_us["p90"] for run in runs if run.jitter_us]
    return statistics.median(known) if known else None


def _drift(runs: Sequence[MeasuredRun], primary: str) -> str:
    """The change from the first half of a session to the second; empty where it may be chance."""
    ordered = sorted((run for run in runs if primary in run.metrics), key=lambda run: run.start_ns)
    half = len(ordered) // 2
    if half < _LEAST_HALF:
        return ""
    values = [run.metrics[primary] for run in ordered]
    found = unpaired_ratio(values[:half], values[half:], _DRIFT_ALPHA)
    return change_text(found.ratio) if found.p_value <= _DRIFT_ALPHA else ""
