"""The output of `dxt-replay simulate` for people, from the object that `--json` prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxt_replay.replay.show.cells import microseconds, or_dash, recorded_training, seconds
from dxt_replay.replay.show.section import BAR, Column, Kind, Section, bar, facts, prose
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_signed

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


def simulation_sections(found: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay simulate`, from its JSON object."""
    total = sum(found["time_s"].values()) or 1.0
    sections = [
        prose("", [training_line(found), simulation_headline(found), *check_sentence(found), limit_sentence(found)]),
        facts("Prediction", _facts(found)),
        Section(
            title="Where the time of a training thread goes",
            columns=("", "mean over ranks", "share", BAR),
            rows=tuple(
                (
                    label,
                    seconds(found["time_s"][name]),
                    f"{100 * found['time_s'][name] / total:.1f} %",
                    bar(found["time_s"][name] / total),
                )
                for name, label in _TIME_LABELS.items()
                if found["time_s"][name]
            ),
        ),
        _waiting_steps(found["steps"]),
        Section(
            title="How busy the storage is",
            columns=("queue", "of each", "number", "busy, mean", "busiest one", "waited, all requests"),
            rows=tuple(_resource_row(each) for each in found["resources"]),
        ),
        _operations(found["requests"]),
        _scaling(found["scaling"]),
        prose("Warnings", found["warnings"]),
    ]
    return [section for section in sections if section.rows]


def simulation_headline(found: Mapping[str, Any]) -> str:
    """Predicted and recorded duration of the run, in one line."""
    low, high = found["interval_s"]
    interval = f" ({seconds(low)} to {seconds(high)})" if high > low else ""
    change = "" if found["change_pct"] is None else f" ({format_signed(found['change_pct'], 1)} %)"
    return (
        f"On {found['storage']['name']} this run would take {seconds(found['elapsed_s'])}{interval}; "
        f"in the capture it takes {seconds(found['recorded_s'])}{change}."
    )


def training_line(found: Mapping[str, Any]) -> str:
    """The same of the training loop."""
    low, high = found["training_interval_s"]
    interval = f" ({seconds(low)} to {seconds(high)})" if high > low else ""
    recorded, predicted = found["recorded_training_s"], found["training_s"]
    rest = recorded - (found["recording_wait_s"] or 0.0)
    ratio = predicted / rest if rest else None
    return f"Training would take {seconds(predicted)}{interval}; {recorded_training(found, recorded, ratio)}."


def check_sentence(found: Mapping[str, Any]) -> list[str]:
    """Agreement of the prediction with the replayed window; empty without one."""
    check = found["check"]
    if check is None:
        return []
    window = "All of it" if check["steps"] is None else "Steps {} to {}".format(*check["steps"])
    compared = (
        f"{window} took {seconds(check['measured_s'])} in a replay, {seconds(check['simulated_s'])} in the simulation "
        f"({format_signed(check['difference_pct'], 1)} %)"
    )
    widened = "they agree" if check["verdict"] == "agrees" else "the interval is wider for that"
    return [f"Checked: {compared}; {widened}."]


def limit_sentence(found: Mapping[str, Any]) -> str:
    """By how much storage limits the run, in one line."""
    used = found["accelerator_utilisation_pct"]
    utilised = "" if used is None else f" Accelerator utilisation: {used:.1f} %."
    return (
        f"Storage limits it by {found['storage_limits_pct']:.1f} %: with infinitely fast storage it would take "
        f"{seconds(found['free_storage_s'])}.{utilised}"
    )


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    simulated = found["simulated"]
    rate = simulated["items"] / simulated["seconds"] if simulated["seconds"] else 0.0
    about = found["storage"]["about"]
    return [
        ("capture", found["capture"]),
        ("storage", found["storage"]["name"] + (f": {about}" if about else "")),
        ("ranks, nodes", f"{format_count(found['ranks'])}, {format_count(found['nodes'])}"),
        ("operations", format_count(found["operations"])),
        ("bottleneck", found["bottleneck"]),
        (
            "simulated",
            f"{format_counted(found['runs'], 'run')}, {format_count(simulated['items'])} items (operations, waits, "
            f"gaps), {format_count(round(rate))} a second of processor time",
        ),
    ]


def _waiting_steps(steps: list[Mapping[str, Any]]) -> Section:
    waiting = [step for step in steps if step["input_wait"] + step["checkpoints"] > 0]
    longest = sorted(waiting, key=lambda step: -(step["input_wait"] + step["checkpoints"]))[:SHOWN_STEPS]
    names = [name for name in _TIME_LABELS if any(step[name] for step in longest)]
    return Section(
        title="Steps that wait longest",
        columns=("step", *(_TIME_LABELS[name] for name in names)),
        rows=tuple(
            (format_count(step["step"]), *(seconds(step[name] / 1e3) for name in names))
            for step in sorted(longest, key=lambda step: int(step["step"]))
        ),
        notes=(f"{format_count(len(steps))} steps in all; --json has each.",) if len(steps) > len(longest) else (),
    )


def _resource_row(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(each["name"]),
        str(each["each"]),
        format_count(each["instances"]),
        f"{each['busy_mean_pct']:.1f} %",
        f"{each['busy_max_pct']:.1f} %",
        or_dash(each["waited_s"], seconds),
    )


def _operations(requests: Mapping[str, Any]) -> Section:
    by_operation = requests.get("by_operation", {})
    hits, hit_bytes = requests.get("cache_hits", 0), requests.get("cache_hit_bytes", 0)
    note = f"Reads that the page cache served alone: {format_count(hits)}, {format_bytes(hit_bytes)}."
    return Section(
        title="Operations",
        columns=("operation", "number", "bytes", "mean time", "requests to servers", "their bytes"),
        rows=tuple(
            (
                name,
                format_count(each["operations"]),
                format_bytes(each["bytes"]),
                microseconds(each["mean_us"]),
                format_count(each["requests"]),
                format_bytes(each["request_bytes"]),
            )
            for name, each in by_operation.items()
        ),
        notes=(note,) if hits else (),
    )


def _scaling(scaling: list[Mapping[str, Any]]) -> Section:
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
                format_count(each["ranks"]),
                seconds(each["elapsed_s"]),
                seconds(each["free_storage_s"]),
                f"{each['storage_limits_pct']:.1f} %",
                or_dash(each["accelerator_utilisation_pct"], lambda value: f"{value:.1f} %"),
                str(each["bottleneck"]).partition(":")[0],
            )
            for each in scaling
        ),
    )
