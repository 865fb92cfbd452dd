"""Prints the result of `dxt-replay history` as tables. Pure."""

from __future__ import annotations

from dxt_replay.replay.history.history import History, headline, rule_text
from dxt_replay.replay.history.series import Series
from dxt_replay.replay.regression.interval_verdict import change_text, interval_text
from dxt_replay.replay.regression.regression_sections import metric_text
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.replay.show.cells import or_dash
from dxt_replay.replay.show.section import MAX_GROUPS, Column, Kind, Section, prose
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import format_counted

MACHINE_CHANGED = "machine changed"
"""Instead of the verdict of a change point where the machine was another one, or was busier or quieter."""

_OF_THE_MACHINE = (
    f"{MACHINE_CHANGED.capitalize()}: from that record on the machine was another one, or other work made it busier or "
    "quieter, so the change may not be the file system's. Measure again on the machine as it was."
)


def history_sections(history: History) -> list[Section]:
    """The sentence, change points and table of each series, the table by the metric that decides.

    At most MAX_GROUPS records, the latest; --json has all of them, and all metrics.
    """
    sections = []
    for series in history.series:
        sections += [prose("", [headline(series)]), _change_section(series), _level_section(series)]
        sections.append(prose("Warnings", series.warnings))
    if history.skipped:
        left_out = format_counted(len(history.skipped), "file")
        sections.append(prose("", [f"{left_out} left out, not a record: {listed(history.skipped)}"]))
    return [section for section in [*sections, prose("Rule", [rule_text(history.rule)])] if section.rows]


def _change_section(series: Series) -> Section:
    """The change points of all metrics in order of time; below them the changes of the environment at that record."""
    found = [(change, name) for name, metric in series.metrics.items() for change in metric.changes]
    found.sort(key=lambda one: one[0].at)
    places = list(dict.fromkeys(change.at for change, _ in found))
    differences = {at: "; ".join(series.differences[at]) or "nothing recorded" for at in places}
    return Section(
        title="Change points",
        columns=(
            Column(head="first record after it", kind=Kind.TEXT),
            Column(head="metric", kind=Kind.TEXT),
            "change",
            "interval",
            Column(head="verdict", kind=Kind.TEXT),
        ),
        rows=tuple(
            (
                f"{series.records[change.at].name}, {series.records[change.at].date}",
                METRICS[name].meaning,
                change_text(change.ratio),
                interval_text(change.low, change.high),
                MACHINE_CHANGED if series.other_machine[change.at] else change.verdict,
            )
            for change, name in found
        ),
        notes=(
            *(f"What else changed with {series.records[at].name}: {each}." for at, each in differences.items()),
            *([_OF_THE_MACHINE] if any(series.other_machine[at] for at in places) else []),
        ),
    )


def _level_section(series: Series) -> Section:
    """The latest records with the level of the metric that decides, the last one last."""
    metric, text, last = series.metrics[series.primary], metric_text(series.primary), series.records[-1]
    cache = "cold" if last.options.cache == "cold" else "page cache as found"
    marks = {change.at: MACHINE_CHANGED if series.other_machine[change.at] else "changed" for change in metric.changes}
    rows = [
        (
            record.date,
            record.name,
            record.machine.kernel,
            record.version,
            str(level.runs),
            text(level.median),
            "-" if level.low is None or level.high is None else f"{text(level.low)} to {text(level.high)}",
            or_dash(level.change, change_text),
            interval_text(level.change_low, level.change_high),
            marks.get(place, ""),
        )
        for place, (record, level) in enumerate(zip(series.records, metric.levels, strict=True))
        if level is not None
    ]
    left = len(rows) - MAX_GROUPS
    return Section(
        title=f"{METRICS[series.primary].meaning} by record: {last.targets['candidate'].target}, "
        f"pace {last.options.pace}, {cache}",
        columns=(
            Column(head="date (UTC)", kind=Kind.TEXT),
            Column(head="record", kind=Kind.PATH),
            Column(head="kernel", kind=Kind.TEXT, spare=True),
            Column(head="version", kind=Kind.TEXT, spare=True),
            "runs",
            "median",
            Column(head="its interval", spare=True),
            "change",
            "interval",
            Column(kind=Kind.TEXT),
        ),
        rows=tuple(rows[max(left, 0) :]),
        notes=(f"and {left} earlier records: --json has all of them",) if left > 0 else (),
    )
