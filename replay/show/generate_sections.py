"""The output of `dxt-replay generate` for people: what was made, and what of the description it left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Column, Kind, Section, facts, prose
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration, seconds_to_ns

if TYPE_CHECKING:
    from dxt_replay.replay.interface.generating import GeneratedCapture
    from dxt_replay.workloads.description import Note
    from dxt_replay.workloads.source import ListedWorkload

_TITLES = {
    "read as": "Read otherwise than it is written",
    "without effect": "Without effect",
    "unknown": "Unknown keys",
    "not expressed": "Not expressed by the capture",
}
"""Kind of a note -> title of its lines."""


def generate_sections(made: GeneratedCapture) -> list[Section]:
    """The tables of `dxt-replay generate`."""
    generated = made.generated
    rows = [
        ("capture", str(made.capture)),
        ("workload", f"{made.workload.source.name}, reading {made.workload.reading}"),
        ("steps of a rank", format_count(generated.steps)),
        ("files", format_count(generated.files)),
        ("operations", format_count(generated.operations)),
        ("bytes read", format_bytes(generated.bytes_read)),
        ("bytes written", format_bytes(generated.bytes_written)),
        ("time on the assumed device", format_duration(seconds_to_ns(generated.elapsed_s))),
    ]
    ranks = format_counted(generated.ranks, "rank")
    operations = format_counted(generated.operations, "operation")
    sections = [
        facts(f"Generated {ranks}, {operations}", rows),
        *_notes(made.notes),
        prose("Warnings", generated.warnings),
    ]
    return [section for section in sections if section.rows]


def _notes(notes: Sequence[Note]) -> Iterable[Section]:
    for kind, title in _TITLES.items():
        lines = [f"{note.key} {note.value}: {note.why}" for note in notes if note.kind == kind]
        yield prose(title, lines)
    others = [note.key for note in notes if note.kind == "not I/O"]
    yield prose("Keys that change no request", [", ".join(others)] if others else [])


def listing_section(workloads: Sequence[ListedWorkload]) -> Section:
    """The shipped workloads, one row each."""
    return Section(
        title="Shipped workloads",
        columns=(
            Column(head="name"),  # a name that is shortened could not be typed
            Column(head="reads", kind=Kind.TEXT),
            "files",
            "data set",
            Column(head="batch", spare=True),
            "compute of a step",
            "MB/s of a rank",
        ),
        rows=tuple(_row(each) for each in workloads),
        notes=(
            "MB/s of a rank: batch * record length / compute, what an accelerator reads that never waits (10^6 bytes).",
            "The first lines of a workload's file say what it is and where it is from; --json has them as title.",
        ),
    )


def _row(each: ListedWorkload) -> tuple[str, ...]:
    needs = each.needs_bytes_per_s
    return (
        each.name,
        each.format.replace("_", " ") or "checkpoints",
        format_count(each.files) if each.batch_size else "",
        format_bytes(each.bytes) if each.batch_size else "",
        format_count(each.batch_size) if each.batch_size else "",
        f"{each.compute_s:g} s" if each.batch_size else "",
        "" if needs is None else f"{needs / 1e6:,.{0 if needs >= 1e7 else 2}f}",
    )
