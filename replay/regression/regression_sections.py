"""Prints the result of `dxt-replay regress` as tables, and as Markdown. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence

from dxt_replay.replay.regression.comparison import BASELINE, CANDIDATE, MetricComparison, Regression
from dxt_replay.replay.regression.experiment_record import ExperimentRecord, Side
from dxt_replay.replay.regression.interval_verdict import Verdict, change_text, interval_text
from dxt_replay.replay.regression.run_metrics import METRICS, MeasuredRun
from dxt_replay.replay.show.cells import mib_s, microseconds, seconds
from dxt_replay.replay.show.section import WARNINGS, Section, facts, prose
from dxt_replay.traces.text import printable, unit_of
from dxt_replay.traces.units import format_counted

_UNIT_TEXTS: Mapping[str, Callable[[float], str]] = {"s": seconds, "us": microseconds, "MiB/s": mib_s}
"""Unit of a metric -> writes a value."""


def metric_text(name: str) -> Callable[[float], str]:
    """Writes a value of this metric with its unit."""
    return _UNIT_TEXTS[unit_of(name)]


def regression_sections(result: Regression) -> list[Section]:
    """The verdict in one sentence, then the figures, how they were measured, and warnings."""
    first = filter(None, (result.headline, " ".join((result.storage, *_on_root(result))).strip(), *_basis(result)))
    sections = [prose("", first), _metrics(result)]
    notes = [*(f"not valid: {text}" for text in result.health.obstacles), *result.health.warnings]
    if notes:
        sections.append(prose(WARNINGS, notes, brief=True))
    sections += [_setting(result), _sides_differ(result), prose("Rule", [result.rule.text])]
    return [section for section in sections if section.rows]


def regression_markdown(result: Regression) -> str:
    """The verdict and the figures as Markdown for a pull request."""
    verdict, *sections = regression_sections(result)
    lines = [f"**{_markdown(verdict.rows[0][0])}**", "", *(_markdown(row[0]) for row in verdict.rows[1:])]
    for section in sections:
        if section.columns:
            heads = [column.head for column in section.typed_columns]
            lines += ["", _markdown_row(heads), _markdown_row(["---", *("---:" for _ in heads[1:])])]
            lines += [_markdown_row([_markdown(cell) for cell in row]) for row in section.rows]
            lines += ["", *(_markdown(note) for note in section.notes)]
        else:
            lines += ["", f"<details><summary>{section.title}</summary>", ""]
            lines += [f"- {_markdown(': '.join(row))}" for row in section.rows]
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """Text with what Markdown, HTML or a forge (`@name`, `#1`) would interpret escaped; on one line."""
    escaped = re.sub(r"([\\`*_~|<>\[\]&!])", r"\\\1", printable(text))
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", " ".join(escaped.split()))


def _basis(result: Regression) -> list[str]:
    """The basis of the verdict: the figures of the deciding metric, and the smallest change that the pairs can show."""
    metric = result.metrics.get(result.primary)
    if metric is None:
        return []
    text, pairs = metric_text(metric.name), f"{len(metric.baseline)} pairs"
    before, after = (text(statistics.median(values)) for values in (metric.baseline, metric.candidate))
    meaning = METRICS[metric.name].meaning
    medians, spread = f"on the baseline (medians of {pairs} of runs)", f"{pairs} of this spread detect"
    if result.against:
        runs = format_counted(len(metric.candidate), "run")
        medians = f"in the record (medians of {runs} and of {len(metric.baseline)})"
        spread = "As many runs of this spread detect"
    lines = [f"Judged by {meaning}: {after} on the candidate, {before} {medians}."]
    detectable = metric.minimum_detectable_pct
    if detectable is not None:
        lines.append(f"{spread} a change of {detectable:.1f} % in 8 of 10 experiments.")
    return [*lines, *_differences(result)]


def _differences(result: Regression) -> list[str]:
    """Further differences from a record, beside the verdict. Differences of two targets are the question itself."""
    if not result.against or not result.conditions:
        return []
    found = result.conditions.differences
    if not found:
        return ["The environment is that of the record: kernel, machine, versions, mount and device are the same."]
    return [f"Not as it was for the record: {'; '.join(found)}."]


def _on_root(result: Regression) -> list[str]:
    """A sentence on sides on the file system of the system itself, as of a mount that is not there."""
    targets = result.conditions.targets if result.conditions else {}
    sides = [side for side, target in targets.items() if target.mount_point == "/"]
    if not sides:
        return []
    who = f"The {sides[0]} lies" if len(sides) == 1 else "Both sides lie"
    return [f"{who} on the root file system ({targets[sides[0]].file_system}): is nothing to be mounted there?"]


def _sides_differ(result: Regression) -> Section:
    """What the targets of a pair differ in; what a record differs in stands beside the verdict."""
    found = result.conditions.differences if result.conditions and not result.against else ()
    return prose("Baseline -> candidate", found, brief=True)


def _metrics(result: Regression) -> Section:
    interval = f"{100 * (1 - result.rule.alpha):g} % interval"
    of = "of its pair" if not result.against else "over all pairs of their runs"
    notes = [f"* decides. Change: of the candidate against the baseline {of}; it may differ from that of the medians."]
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
        columns=("", "baseline", "candidate", "change", interval, "verdict"),
        rows=tuple(_metric_row(metric, result) for metric in result.metrics.values()),
        notes=tuple(notes),
        brief=True,
    )


def _metric_row(metric: MetricComparison, result: Regression) -> tuple[str, ...]:
    text, found, verdict = metric_text(metric.name), metric.found, metric.judgement.verdict
    decides = metric.name == result.primary
    too_few = verdict is Verdict.INCONCLUSIVE and not decides and result.secondary_pairs_needed is not None
    return (
        f"{METRICS[metric.name].meaning}{' *' if decides else ''}",
        text(statistics.median(metric.baseline)),
        text(statistics.median(metric.candidate)),
        change_text(found.ratio),
        interval_text(found.low, found.high),
        "-" if too_few else verdict.value,
    )


def _setting(result: Regression) -> Section:
    counted, setting = [run for run in result.runs if run.pair], result.setting
    against, warm_ups = result.against, format_counted(setting.warmup, "run")
    order = ("order", f"{_order(result.order)} (B: baseline, C: candidate; seed {setting.seed})")
    rows = [
        ("baseline", f"{setting.baseline}{_mounted(result, BASELINE)}"),
        ("candidate", f"{setting.candidate}{_mounted(result, CANDIDATE)}"),
        ("pace", f"{setting.pace}, speed {setting.speed:g}"),
        _record_row(against) if against else order,
        ("warm-up", f"{warm_ups}{'' if against else ' on each side'} before, not counted"),
        ("page cache", f"{setting.cache}; held before a run: {_residency(counted)}"),
    ]
    return facts("How it was measured", rows)


def _record_row(against: ExperimentRecord) -> tuple[str, str]:
    runs = format_counted(len(against.counted_runs()), "run")
    return "record", f"{against.name}, {runs} of {against.date} UTC"


def _mounted(result: Regression, side: Side) -> str:
    """` (ext4 on /dev/sda1)`, where it is known."""
    target = result.conditions.targets.get(side) if result.conditions else None
    if target is None or not target.file_system:
        return ""
    device = f" on {target.source}" if target.source not in ("", target.file_system) else ""
    return f" ({target.file_system}{device})"


def _order(order: Sequence[str]) -> str:
    """Pairs as `BC`, `CB` ..."""
    letters = "".join(side[0].upper() for side in order)
    return " ".join(letters[place : place + 2] for place in range(0, len(letters), 2)) or "none"


def _residency(runs: Sequence[MeasuredRun]) -> str:
    held = []
    for side in (BASELINE, CANDIDATE):
        known = [run.resident_pct for run in runs if run.side == side and run.resident_pct is not None]
        ends = dict.fromkeys(f"{share:.0f}" for share in (min(known), max(known))) if known else {}
        held.append(f"{side} {' to '.join(ends)} %" if known else f"{side} unknown")
    return ", ".join(held)
