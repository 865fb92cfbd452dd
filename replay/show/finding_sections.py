"""Prints the findings of `dxt-replay summary --findings`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Section
from dxt_replay.traces.units import NS_PER_S, format_counted, format_duration

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.finding import Finding
    from dxt_replay.profiler_merge.analysis.summary import Summary

SHOWN_FILES = 3
NOTHING = "Nothing stands out: no finding has 1 % of the run or more at stake."


def finding_sections(found: Sequence[Finding], summary: Summary) -> list[Section]:
    """Number of findings of each severity, then each finding."""
    if not found:
        why, loop = summary.not_judged, summary.loop is not None
        unknown = f"Storage was not judged: {why}." if loop else f"Nothing was judged: no training steps, and {why}."
        said = [*([unknown] if why else []), *([NOTHING] if loop or not why else [])]
        return [Section(title="Findings", rows=((" ".join(said),),), prose=True)]
    counts = Counter(finding.severity for finding in found)
    return [
        Section(
            title="Findings",
            rows=(
                (f"{format_counted(len(found), 'finding')}: {', '.join(f'{n} {name}' for name, n in counts.items())}",),
            ),
            notes=("At stake: the most that a perfect remedy could gain.",),
            prose=True,
        ),
        *(_finding(each, found[:place]) for place, each in enumerate(found)),
    ]


def _finding(finding: Finding, before: Sequence[Finding]) -> Section:
    stake = stake_text(finding, before)
    return Section(
        title=f"{finding.severity}: {finding.title}",
        rows=(
            ("evidence", finding.evidence),
            *((("at stake", stake),) if stake else ()),
            ("threshold", finding.threshold),
            ("remedy", finding.remedy),
            *(("file", path) for path in finding.files[:SHOWN_FILES]),
        ),
        prose=True,
    )


def stake_text(finding: Finding, before: Sequence[Finding]) -> str:
    """What is at stake; empty where that is not known. A time that one of `before` has too can be gained once only."""
    if finding.at_stake_s is None:
        return ""
    time, share = format_duration(finding.at_stake_s * NS_PER_S), finding.at_stake_pct
    if any(other.at_stake_s == finding.at_stake_s for other in before):
        return f"the same {time} as above, not {time} more"
    return f"at most {time}" + ("" if share is None else f", {share:.1f} % of the {finding.at_stake_of}")
