"""What `dxt-replay anonymize` prints for a person: what was written, and what was replaced. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Section, facts
from dxt_replay.traces.units import format_count

if TYPE_CHECKING:
    from dxt_replay.replay.sharing.anonymous_capture import Anonymized

_KEYS = {True: "random, not kept", False: "the given one; whoever has it can test guesses"}


def anonymized_sections(anonymized: Anonymized) -> list[Section]:
    """The table of `dxt-replay anonymize`."""
    rows = [
        ("operations, as they were", format_count(anonymized.operations)),
        ("files", format_count(anonymized.files)),
        ("spans", format_count(anonymized.spans)),
        ("parts of paths replaced", format_count(anonymized.replaced_parts)),
        ("names of spans replaced", format_count(anonymized.replaced_spans)),
        ("key", _KEYS[anonymized.random_key]),
    ]
    return [facts(f"Wrote {anonymized.path}: sizes, times and known extensions are still those of the job", rows)]
