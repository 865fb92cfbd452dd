"""Prints the results of `dxt-replay regress` and `dxt-replay history` as tables. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE, MetricComparison, Regression
from dxt_replay.replay.regress.history import History, Series
from dxt_replay.replay.regress.metrics import METRICS, MeasuredRun
from dxt_replay.replay.regress.record import Side
from dxt_replay.replay.regress.statistics import ALPHA, Verdict, change_text, interval_text
from dxt_replay.replay.show.section import (
    MAX_GROUPS,
    WARNINGS,
    Column,
    Kind,
    Section,
    facts,
    mib_s,
    microseconds,
    or_dash,
    prose,
    seconds,
)
from dxt_replay.traces.text import listed, unit_of
from dxt_replay.traces.units import format_counted

_UNIT_TEXTS: Mapping[str, Callable[[float], str]] = {"s": seconds, "us": microseconds, "MiB/s": mib_s}
"""Unit of a metric -> writes a value."""

MACHINE_CHANGED = "machine changed"
"""Instead of the verdict of a change point where the machine was another one, or was busier or quieter."""

_OF_THE_MACHINE = (
    f"{MACHINE_CHANGED.capitalize()}: from that record on the machine was another one, or other work made it busier or "
    "quieter, so the change may not be the file system's. Measure again on the machine as it was."
)


def metric_text(name: str) -> Callable[[float], str]:
    """Writes a value of this metric with its unit."""
    return _UNIT_TEXTS[unit_of(name)]


def regression_sections(result: Regression) -> list[Section]:
    """The verdict in one sentence, then the figures, how they were measured, and warnings."""
    first = filter(None, (result.headline, " ".join((result.storage, *_on_root(result))).strip(), *_basis(result)))
    notes = [*(f"not valid: {text}" for text in result.health.obstacles), *result.health.warnings]
    # What a record differs in stands beside the verdict; differences of two targets are the question itself.
    differ = result.conditions.differences if result.conditions and not result.against else ()
    sections = [
        prose("", first),
        _metrics(result),
        prose(WARNINGS, notes, brief=True),
        _setting(result),
        prose("Baseline -> candidate", differ, brief=True),
        prose("Rule", [result.rule.text]),
    ]
    return [section for section in sections if section.rows]


def _basis(result: Regression) -> list[str]:
    """The basis of the verdict: the figures of the deciding metric, and the smallest change that the pairs can show."""
    metric, record = result.metrics.get(result.primary), result.against
    if metric is None:
        return []
    text, pairs = metric_text(metric.name), f"{len(metric.baseline)} pairs"
    before, after = (text(statistics.median(values)) for values in (metric.baseline, metric.candidate))
    medians, runs = f"on the baseline (medians of {pairs} of runs)", pairs
    if record:
        counted = format_counted(len(metric.candidate), "run")
        medians, runs = f"in the record (medians of {counted} and of {len(metric.baseline)})", "as many runs"
    lines = [f"Judged by {METRICS[metric.name]}: {after} on the candidate, {before} {medians}."]
    if (detectable := metric.minimum_detectable_pct) is not None:
        lines.append(f"A change of {detectable:.1f} % would show in 8 of 10 such experiments of {runs}.")
    if record and result.conditions:
        found = "; ".join(result.conditions.differences)
        same = "The environment is that of the record: kernel, machine, versions, mount and device are the same."
        lines.append(f"Not as it was for the record: {found}." if found else same)
    return lines


def _on_root(result: Regression) -> list[str]:
    """A sentence on sides on the file system of the system itself, as of a mount that is not there."""
    targets = result.conditions.targets if result.conditions else {}
    sides = [side for side, target in targets.items() if target.mount_point == "/"]
    if not sides:
        return []
    who = f"The {sides[0]} lies" if len(sides) == 1 else "Both sides lie"
    return [f"{who} on the root file system ({targets[sides[0]].file_system}): is nothing to be mounted there?"]


def _metrics(result: Regression) -> Section:
    of = "all runs" if result.against else "the pairs of runs"
    notes = [f"* decides. Change: estimated from {of}, not from the medians."]
    needed = result.secondary_pairs_needed
    if needed is not None:
        noun = "runs" if result.against else "pairs"
        count = len(next(iter(result.metrics.values())).candidate)
        notes.append(
            f"{count} {noun} are too few to judge the other metrics, which are judged together (Holm's correction): "
            f"{needed} {noun} are the least. Their figures stand without a verdict."
        )
    return Section(
        title="Figures",
        columns=("", "baseline", "candidate", "change", f"{100 * (1 - ALPHA):g} % interval", "verdict"),
        rows=tuple(_metric_row(metric, result) for metric in result.metrics.values()),
        notes=tuple(notes),
        brief=True,
    )


def _metric_row(metric: MetricComparison, result: Regression) -> tuple[str, ...]:
    text, found, verdict = metric_text(metric.name), metric.found, metric.judgement.verdict
    decides = metric.name == result.primary
    too_few = verdict is Verdict.INCONCLUSIVE and not decides and result.secondary_pairs_needed is not None
    return (
        f"{METRICS[metric.name]}{' *' if decides else ''}",
        text(statistics.median(metric.baseline)),
        text(statistics.median(metric.candidate)),
        change_text(found.ratio),
        interval_text(found.low, found.high),
        "-" if too_few else verdict.value,
    )


def _setting(result: Regression) -> Section:
    counted, setting, against = [run for run in result.runs if run.pair], result.setting, result.against
    letters = "".join(side[0].upper() for side in result.order)
    order = " ".join(letters[place : place + 2] for place in range(0, len(letters), 2)) or "none"
    last = ("order", f"{order} (B: baseline, C: candidate; seed {setting.seed})")
    if against:
        last = ("record", f"{against.name}, {format_counted(len(against.counted_runs()), 'run')} of {against.date} UTC")
    warm_ups = f"{format_counted(setting.warmup, 'run')}{'' if against else ' on each side'} before, not counted"
    rows = [
        ("baseline", f"{setting.baseline}{_mounted(result, BASELINE)}"),
        ("candidate", f"{setting.candidate}{_mounted(result, CANDIDATE)}"),
        ("pace", f"{setting.pace}, speed {setting.speed:g}"),
        last,
        ("warm-up", warm_ups),
        ("page cache", f"{setting.cache}; held before a run: {_residency(counted)}"),
    ]
    return facts("How it was measured", rows)


def _mounted(result: Regression, side: Side) -> str:
    """` (ext4 on /dev/sda1)`, where it is known."""
    target = result.conditions.targets.get(side) if result.conditions else None
    if target is None or not target.file_system:
        return ""
    device = f" on {target.source}" if target.source not in ("", target.file_system) else ""
    return f" ({target.file_system}{device})"


def _residency(runs: Sequence[MeasuredRun]) -> str:
    held = []
    for side in (BASELINE, CANDIDATE):
        known = [run.resident_pct for run in runs if run.side == side and run.resident_pct is not None]
        ends = dict.fromkeys(f"{share:.0f}" for share in (min(known), max(known))) if known else {}
        held.append(f"{side} {' to '.join(ends)} %" if known else f"{side} unknown")
    return ", ".join(held)


def history_sections(history: History) -> list[Section]:
    """The sentence, change points and table of each series, the table by the metric that decides.

    At most MAX_GROUPS records, the latest; --json has all of them, and all metrics.
    """
    sections = []
    for series in history.series:
        sections += [prose("", [series.headline]), _change_section(series), _level_section(series)]
        sections.append(prose("Warnings", series.warnings))
    if history.skipped:
        left_out = format_counted(len(history.skipped), "file")
        sections.append(prose("", [f"{left_out} left out, not a record: {listed(history.skipped)}"]))
    return [section for section in [*sections, prose("Rule", [history.rule_text])] if section.rows]


def _change_section(series: Series) -> Section:
    """The change points of all metrics in order of time; below them the changes of the environment at that record."""
    found = [(change, name) for name, metric in series.metrics.items() for change in metric.changes]
    found.sort(key=lambda one: one[0].at)
    places = list(dict.fromkeys(change.at for change, _ in found))
    differences = {at: "; ".join(series.differences[at]) or "nothing recorded" for at in places}
    heads = ("first record after it", "metric", "change", "interval", "verdict")
    return Section(
        title="Change points",
        columns=tuple(head if head in ("change", "interval") else Column(head=head, kind=Kind.TEXT) for head in heads),
        rows=tuple(
            (
                f"{series.records[change.at].name}, {series.records[change.at].date}",
                METRICS[name],
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
            str(level.runs),
            text(level.median),
            or_dash(level.change, change_text),
            interval_text(level.change_low, level.change_high),
            marks.get(place, ""),
        )
        for place, (record, level) in enumerate(zip(series.records, metric.levels, strict=True))
        if level is not None
    ]
    left = max(len(rows) - MAX_GROUPS, 0)
    first = Column(head="date (UTC)", kind=Kind.TEXT), Column(head="record", kind=Kind.PATH)
    return Section(
        title=f"{METRICS[series.primary]} by record: {last.targets['candidate'].target}, "
        f"pace {last.options.pace}, {cache}",
        columns=(*first, "runs", "median", "change", "interval", Column(kind=Kind.TEXT)),
        rows=tuple(rows[left:]),
        notes=(f"and {left} earlier records: --json has all of them",) if left else (),
    )
