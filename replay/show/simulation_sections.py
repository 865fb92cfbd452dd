"""The output of `dxt-replay simulate` for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import microseconds, or_dash, recorded_training, seconds
from dxt_replay.replay.show.section import BAR, WARNINGS, Column, Kind, Section, bar, facts, of_generated, prose
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration, format_signed

if TYPE_CHECKING:
    from dxt_replay.replay.interface.simulations import Simulated
    from dxt_replay.replay.simulation.predict import Prediction, ResourceUse, StepTime, TimeSpent

SHOWN_STEPS = 20
"""Steps that the terminal shows: those that wait longest."""

_TIME_LABELS = {
    "compute": "compute",
    "input_wait": "waiting for input",
    "meetings": "meeting the other ranks",
    "checkpoints": "checkpoints",
    "evaluation": "evaluation",
    "loading": "before the first step",
}


def simulation_sections(found: Simulated) -> list[Section]:
    """The tables of `dxt-replay simulate`."""
    predicted = found.prediction
    sections = [
        prose(
            "",
            [
                *predicted.job.doubt.sentences,
                training_line(found),
                simulation_headline(found),
                *check_sentence(predicted),
                limit_sentence(predicted),
            ],
        ),
        facts("Prediction", _facts(found)),
        _spent(predicted.spent_s()),
        _waiting_steps(predicted.steps()),
        Section(
            title="How busy the storage is",
            columns=("queue", "of each", "number", "busy, mean", "busiest one", "waited, all requests"),
            rows=tuple(map(_resource_row, predicted.resources())),
        ),
        _operations(predicted),
        _scaling(found.scaling),
        prose(WARNINGS, found.warnings, brief=True),
    ]
    return of_generated(sections, found.generated)


def simulation_headline(found: Simulated) -> str:
    """One line: the predicted and the recorded duration of the run."""
    predicted = found.prediction
    change = "" if found.change_pct is None else f" ({format_signed(found.change_pct, 1)} %)"
    return (
        f"On {found.storage.name} this run would take {_between(predicted.elapsed_ns, predicted.interval_ns)}; "
        f"in the capture it takes {format_duration(found.recorded_ns)}{change}."
    )


def training_line(found: Simulated) -> str:
    """One line: the predicted and the recorded duration of the training."""
    predicted, wait_ns = found.prediction, found.recording_wait_ns
    rest_ns = found.recorded_training_ns - (wait_ns or 0)
    recorded = recorded_training(
        found.recorded_training_ns / 1e9,
        None if wait_ns is None else wait_ns / 1e9,
        predicted.training_ns / rest_ns if rest_ns else None,
    )
    return f"Training would take {_between(predicted.training_ns, predicted.training_interval_ns)}; {recorded}."


def _between(time_ns: int, interval_ns: tuple[int, int]) -> str:
    """A predicted time with its interval, if that has a width."""
    low_ns, high_ns = interval_ns
    interval = f" ({format_duration(low_ns)} to {format_duration(high_ns)})" if high_ns > low_ns else ""
    return f"{format_duration(time_ns)}{interval}"


def check_sentence(predicted: Prediction) -> list[str]:
    """One sentence that compares the replay of a part with its simulation; none if nothing was replayed."""
    check = predicted.checked
    if check is None:
        return []
    window = "All of it" if check.steps is None else "Steps {} to {}".format(*check.steps)
    compared = (
        f"{window} took {format_duration(check.measured_ns)} in a replay, {format_duration(check.simulated_ns)} in the "
        f"simulation ({format_signed(check.difference_pct, 1)} %)"
    )
    widened = "they agree" if check.verdict == "agrees" else "the interval is wider for that"
    return [f"Checked: {compared}; {widened}."]


def limit_sentence(predicted: Prediction) -> str:
    """One line: the share of the time that infinitely fast storage would save, and the accelerator utilisation."""
    used = predicted.utilisation_pct
    utilised = "" if used is None else f" Accelerator utilisation: {used:.1f} %."
    return (
        f"Storage limits it by {predicted.storage_pct:.1f} %: with infinitely fast storage it would take "
        f"{format_duration(predicted.free.elapsed_ns)}.{utilised}"
    )


def _facts(found: Simulated) -> list[tuple[str, str]]:
    predicted, storage = found.prediction, found.storage
    items, processor_s = sum(run.items for run in predicted.runs), sum(run.seconds for run in predicted.runs)
    rate = items / processor_s if processor_s else 0.0
    return [
        ("capture", str(found.capture)),
        ("storage", storage.name + (f": {storage.about}" if storage.about else "")),
        ("ranks, nodes", f"{format_count(predicted.ranks)}, {format_count(predicted.model.nodes(predicted.ranks))}"),
        ("operations", format_count(predicted.job.operations_of(predicted.ranks))),
        ("bottleneck", predicted.bottleneck()),
        (
            "simulated",
            f"{format_counted(len(predicted.runs), 'run')}, {format_count(items)} items (operations, waits, "
            f"gaps), {format_count(round(rate))} a second of processor time",
        ),
    ]


def _spent(spent_s: TimeSpent) -> Section:
    times = {label: getattr(spent_s, name) for name, label in _TIME_LABELS.items()}
    total = spent_s.total or 1.0
    return Section(
        title="Where the time of a training thread goes",
        columns=("", "mean over ranks", "share", BAR),
        rows=tuple(
            (label, seconds(time), f"{100 * time / total:.1f} %", bar(time / total))
            for label, time in times.items()
            if time
        ),
        brief=True,
    )


def _waiting_steps(steps: Sequence[StepTime]) -> Section:
    def waited_ms(step: StepTime) -> float:
        return step.input_wait + step.checkpoints

    longest = sorted((step for step in steps if waited_ms(step) > 0), key=waited_ms, reverse=True)[:SHOWN_STEPS]
    names = [name for name in _TIME_LABELS if any(getattr(step, name) for step in longest)]
    return Section(
        title="Steps that wait longest",
        columns=("step", *(_TIME_LABELS[name] for name in names)),
        rows=tuple(
            (format_count(step.step), *(seconds(getattr(step, name) / 1e3) for name in names))
            for step in sorted(longest, key=lambda step: step.step)
        ),
        notes=(f"{format_count(len(steps))} steps in all; --json has each.",) if len(steps) > len(longest) else (),
    )


def _resource_row(each: ResourceUse) -> tuple[str, ...]:
    return (
        each.name,
        each.each,
        format_count(each.instances),
        f"{each.busy_mean_pct:.1f} %",
        f"{each.busy_max_pct:.1f} %",
        or_dash(each.waited_s, seconds),
    )


def _operations(predicted: Prediction) -> Section:
    use = predicted.use
    note = f"Reads that the page cache served alone: {format_count(use.hits)}, {format_bytes(use.hit_bytes)}."
    return Section(
        title="Operations",
        columns=("operation", "number", "bytes", "mean time", "requests to servers", "their bytes"),
        rows=tuple(
            (
                name,
                format_count(each.operations),
                format_bytes(each.bytes),
                microseconds(each.mean_us),
                format_count(each.requests),
                format_bytes(each.request_bytes),
            )
            for name, each in predicted.requests().items()
        ),
        notes=(note,) if use.hits else (),
    )


def _scaling(scaling: Sequence[Prediction]) -> Section:
    return Section(
        title="Other numbers of ranks",
        columns=(
            "ranks",
            "elapsed",
            "with infinitely fast storage",
            "storage limits by",
            "accelerators used",
            Column(head="bottleneck", kind=Kind.TEXT),
        ),
        rows=tuple(
            (
                format_count(each.ranks),
                format_duration(each.elapsed_ns),
                format_duration(each.free.elapsed_ns),
                f"{each.storage_pct:.1f} %",
                or_dash(each.utilisation_pct, lambda value: f"{value:.1f} %"),
                each.bottleneck().partition(":")[0],
            )
            for each in scaling
        ),
        brief=True,
    )
