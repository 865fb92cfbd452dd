"""Tables of Darshan's counts of a replay, beside the operations of the capture. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.cells import or_dash
from dxt_replay.replay.show.section import PATH, Section, prose
from dxt_replay.traces.units import format_bytes, format_count, format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.witness.counted_comparison import CountedComparison

_LABELS = {
    "opens": "opens",
    "reads": "reads",
    "bytes_read": "bytes read",
    "writes": "writes",
    "bytes_written": "bytes written",
    "seeks": "seeks",
    "syncs": "syncs and flushes",
    "renames": "renames",
}


def counted_sections(comparison: CountedComparison) -> list[Section]:
    """The result in one sentence, the totals of both sides, what differs, and what does not count."""
    sections = [
        prose("", [comparison.headline, *comparison.warnings]),
        _totals(comparison),
        Section(
            title=f"Differences ({format_count(comparison.differing)})",
            columns=(PATH, "interface", "count", "asked for", "counted"),
            rows=tuple(
                (
                    each.path,
                    each.interface,
                    each.what.replace("_", " "),
                    format_count(each.expected),
                    format_count(each.counted),
                )
                for each in comparison.differences
            ),
            notes=(
                "Where one thread opens a file while another closes one, Darshan itself can book a read to the file "
                "whose descriptor was just closed: a second replay shows whether it was that.",
            ),
        ),
        prose("What does not count as a difference", _beside_the_work(comparison)),
    ]
    return [section for section in sections if section.rows]


def _totals(comparison: CountedComparison) -> Section:
    rows = []
    for name, label in _LABELS.items():
        text = format_bytes if name.startswith("bytes") else format_count
        recorded, expected, counted = comparison.recorded.get(name), comparison.expected[name], comparison.counted[name]
        if recorded or expected or counted:
            rows.append((label, or_dash(recorded, text), text(expected), text(counted)))
    files, equal = comparison.files, comparison.equal_files
    return Section(
        title="Counts, file by file: reads, writes, bytes, their sizes, the last byte, syncs and renames",
        columns=("", "application", "capture", "replay"),
        rows=tuple(rows),
        notes=(
            f"{format_count(equal)} of {format_counted(files, 'file')} have equal counts.",
            "Application: what Darshan counted when the capture was recorded. Capture: the operations that a replay "
            "issues. Replay: what Darshan counted in it.",
        ),
    )


def _beside_the_work(comparison: CountedComparison) -> list[str]:
    added, besides = comparison.added, comparison.besides
    lines = []
    if added["opens"]:
        lines.append(
            f"{format_counted(added['opens'], 'open')} more than recorded: the replay looks at what the page cache "
            "holds of each file that it reads, and creates files that were created before the recording saw them."
        )
    if added["seeks"]:
        seeks = format_counted(added["seeks"], "seek")
        lines.append(f"{seeks} more than the capture has operations for: the replay places its streams.")
    if (only_counted := comparison.recorded.get("seeks", 0) - comparison.expected["seeks"]) > 0:
        lines.append(
            f"{format_counted(only_counted, 'seek')} of the application were counted, not traced: the capture has no "
            "operations for them, and the replay does not make them."
        )
    if added["syncs"]:
        lines.append(
            f"{format_counted(added['syncs'], 'sync')} more than recorded: --cold writes a file out to drop it."
        )
    if comparison.not_seen["stats"]:
        lines.append(
            f"{format_counted(comparison.not_seen['stats'], 'stat')}: the replay calls fstatat, which Darshan does "
            "not count."
        )
    if comparison.unjudged:
        lines.append(
            f"{format_counted(len(comparison.unjudged), 'file')} used through a library, HDF5 or MPI-IO, "
            "whose own requests are not compared."
        )
    lines += [f"{path}: below a twin, but not of this capture." for path in comparison.strangers]
    if besides.files:
        read, written = format_bytes(besides.bytes_read), format_bytes(besides.bytes_written)
        lines.append(
            f"{format_counted(besides.files, 'file')} outside of the twin: Python's own, and the capture that the "
            f"replay wrote ({read} read, {written} written)."
        )
    return lines
