"""Prints the result of `dxt-replay capacity` as tables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import or_dash, seconds
from dxt_replay.replay.show.section import BAR, Section, bar, facts, prose
from dxt_replay.traces.units import format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.capacity import Capacity, LoadRun


def capacity_sections(found: Capacity) -> list[Section]:
    """The tables of `dxt-replay capacity`."""
    sections = [
        prose("", [*found.doubt.sentences, capacity_headline(found)]),
        facts("Search", _facts(found)),
        Section(
            title="Load and utilisation",
            columns=("ranks", "utilisation", BAR, "training", "throughput", "latency p50", "p99", "processors"),
            rows=tuple(_row(each) for each in sorted(found.runs, key=lambda run: (not run.storage, run.ranks))),
        ),
        Section(
            title="Simulated",
            columns=("ranks", "utilisation", BAR),
            rows=tuple(
                (f"{each.ranks}", f"{each.utilisation_pct:.1f} %", bar(each.utilisation_pct / 100))
                for each in found.simulated
            ),
        ),
        prose("Warnings", found.warnings),
    ]
    return [section for section in sections if section.rows]


def capacity_headline(found: Capacity) -> str:
    """The answer in one sentence or two."""
    limit, most = f"{found.limit_pct:g} %", found.most
    low, high = found.interval
    carried = f"{format_counted(low, 'rank')} at {limit} utilisation"
    if found.limited_by == "memory":
        return "Not known: files were in memory before a run, so the replays measured memory and not the storage."
    if found.limited_by == "nothing":
        return f"This storage carries at least {carried}: none of up to {most} ranks was too much. Try a larger --most."
    if found.limited_by == "machine":
        return (
            f"This storage carries at least {carried}. More could not be tried: the machine that replays does not keep "
            "up with more ranks. Replay on more processors or nodes."
        )
    if low == high:
        return f"This storage carries {carried}." if low else f"This storage does not carry a single rank at {limit}."
    return f"This storage carries {low} to {high} ranks at {limit} utilisation: runs of one load contradict each other."


def _facts(found: Capacity) -> list[tuple[str, str]]:
    rows = [
        ("tried up to", f"{found.most} ranks, each with files of its own"),
        ("on infinitely fast storage", f"{found.free_utilisation_pct:.1f} % utilisation"),
    ]
    if found.simulated_ranks is not None:
        rows.append(("predicted", format_counted(found.simulated_ranks, "rank")))
    return rows


def _row(run: LoadRun) -> tuple[str, ...]:
    latency = run.latency_us or {}
    return (
        f"{run.ranks}" if run.storage else f"{run.ranks}, without I/O",
        f"{run.utilisation_pct:.1f} %",
        bar(run.utilisation_pct / 100),
        or_dash(run.training_s, seconds),
        f"{run.mib_s:.1f} MiB/s" if run.storage else "-",
        *(or_dash(latency.get(name) if run.storage else None, lambda us: f"{us:,.0f} us") for name in ("p50", "p99")),
        or_dash(run.processors_pct, lambda share: f"{share:.0f} %"),
    )
