"""The output of `dxt-replay transform` for people: the capture before and after, and what was assumed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Section, of_generated, prose
from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration

if TYPE_CHECKING:
    from dxt_replay.replay.transform.rewrite import Transformed


def transform_sections(transformed: Transformed) -> list[Section]:
    """The tables of `dxt-replay transform`."""
    before, after = transformed.before, transformed.after
    rows = [
        (label, *(write(getattr(each, name)) for each in (before, after)))
        for label, name, write in (
            ("ranks", "ranks", format_count),
            ("operations", "operations", format_count),
            ("reads", "reads", format_count),
            ("bytes read", "bytes_read", format_bytes),
            ("elapsed", "elapsed_ns", format_duration),
        )
    ]
    sections = [
        prose("", transformed.doubt.sentences),
        Section(title=_headline(transformed), columns=("", "before", "after"), rows=tuple(rows)),
        prose("Assumed", transformed.assumptions),
    ]
    return of_generated(sections, transformed.generated)


def _headline(transformed: Transformed) -> str:
    if transformed.same:
        return f"Wrote {transformed.path}: nothing changed, because the capture is already like this"
    operations = format_counted(transformed.after.operations, "operation")
    if set(transformed.changes) == {"ranks", "weak"}:
        return f"Wrote {transformed.path}: {operations}, at the recorded times"
    return f"Wrote {transformed.path}: {operations}; the causal model predicts its elapsed time"
