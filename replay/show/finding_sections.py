"""The output of `dxt-replay summary --findings` for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dxt_replay.replay.show.section import Section
from dxt_replay.traces.units import NS_PER_S, format_counted, format_duration

SHOWN_FILES = 3
NOTHING = "Nothing stands out: no finding has 1 % of the run or more at stake."


def finding_sections(rows: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Number of findings of each severity, then each finding; `rows`: of the JSON table."""
    if not rows:
        return [Section(title="Findings", rows=((NOTHING,),), prose=True)]
    counts = Counter(row["severity"] for row in rows)
    return [
        Section(
            title="Findings",
            rows=(
                (f"{format_counted(len(rows), 'finding')}: {', '.join(f'{n} {name}' for name, n in counts.items())}",),
            ),
            notes=("At stake: the most that a perfect remedy could gain.",),
            prose=True,
        ),
        *(_finding(row, repeated=_same_stake(row, rows[:place])) for place, row in enumerate(rows)),
    ]


def _same_stake(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a finding before has the same time at stake: that time can be gained once only."""
    stake = row.get("at_stake_s")
    return stake is not None and any(other.get("at_stake_s") == stake for other in before)


def _finding(row: Mapping[str, Any], *, repeated: bool) -> Section:
    return Section(
        title=f"{row['severity']}: {row['title']}",
        rows=(
            ("evidence", row["evidence"]),
            *((("at stake", _stake(row, repeated=repeated)),) if row.get("at_stake_s") is not None else ()),
            ("threshold", row["threshold"]),
            ("remedy", row["remedy"]),
            *(("file", path) for path in row["files"][:SHOWN_FILES]),
        ),
        prose=True,
    )


def _stake(row: Mapping[str, Any], *, repeated: bool) -> str:
    time, share = format_duration(row["at_stake_s"] * NS_PER_S), row.get("at_stake_pct")
    if repeated:
        return f"the same {time} as above, not {time} more"
    of = "" if share is None else f", {share:.1f} % of the {row['at_stake_of']}"
    return f"at most {time}{of}"
