"""The output of `dxt-replay anonymize` for people: what was written, and what was replaced. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Section, facts
from dxt_replay.traces.units import format_count

if TYPE_CHECKING:
    from dxt_replay.replay.anonymize import Anonymized

_KEYS = {True: "random, not kept", False: "the given one; a person who has it can test guesses of names"}


def anonymized_sections(anonymized: Anonymized) -> list[Section]:
    """The table of `dxt-replay anonymize`."""
    rows = [
        ("operations, unchanged", format_count(anonymized.operations)),
        ("files", format_count(anonymized.files)),
        ("spans", format_count(anonymized.spans)),
        ("parts of paths replaced", format_count(anonymized.replaced_parts)),
        ("names of spans replaced", format_count(anonymized.replaced_spans)),
        ("key", _KEYS[anonymized.random_key]),
    ]
    return [facts(f"Wrote {anonymized.path}: it keeps the sizes, times and known extensions of the job", rows)]
