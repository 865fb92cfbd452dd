"""The words of `dxt-replay regress` and `history`: tables, and the reports of `regress --report`.

The XML has the elements and attributes of the schema that Jenkins' xUnit plug-in checks (junit-10.xsd), in its order.
"""

from __future__ import annotations

import math
import re
import statistics
import xml.etree.ElementTree as xml
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.regress.metrics import METRICS
from dxt_replay.replay.regress.statistics import ALPHA, Verdict, change_text, interval_text
from dxt_replay.replay.show.section import (
    MAX_GROUPS,
    WARNINGS,
    Section,
    facts,
    figures,
    listing,
    mib_s,
    microseconds,
    or_dash,
    prose,
    seconds,
)
from dxt_replay.traces.text import escaped, listed, printable, unit_of
from dxt_replay.traces.units import format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.regress.comparison import Regression
    from dxt_replay.replay.regress.history import History
    from dxt_replay.replay.regress.record import ExperimentRecord

SUFFIXES = (".xml", ".md", ".html")
"""Of the files that `--report` writes."""

SIDES = ("baseline", "candidate")
MACHINE_CHANGED = "machine changed"
"""Instead of the verdict of a change point where the machine was another one, or was busier or quieter."""

RUNS = figures("""
    run | {run}
    pair | {pair}
    side | {side}
    value | {value}
    lag p99 | {lag_us.p99:-}
    failed | {failed}
    cached before | {resident_pct:-}
""")
CHANGES = figures("""
    first record after it | {record}
    metric | {metric}
    change | {change}
    interval | {interval}
    verdict | {verdict}
""")
LEVELS = figures("""
    date (UTC) | {date}
    record | {record}
    runs | {runs}
    median | {median}
    change | {change:-}
    interval | {interval}
    remark | {remark}
""")


def metric_text(name: str) -> Callable[[float], str]:
    return {"s": seconds, "us": microseconds, "MiB/s": mib_s}[unit_of(name)]


# ------------------------------------------------------------------------------------------------------------- regress


def regression_sections(result: Regression) -> list[Section]:
    """The verdict in one sentence, then the figures, how they were measured, and warnings."""
    notes = [*(f"not valid: {text}" for text in result.obstacles), *result.warnings]
    storage = " ".join(filter(None, (result.storage, _on_root(result.conditions))))
    sections = [
        prose("", filter(None, (result.headline, storage, *_basis(result)))),
        _metrics(result),
        prose(WARNINGS, notes, brief=True),
        _setting(result),
        # What a record differs in stands beside the verdict; differences of two targets are the question itself.
        prose("Baseline -> candidate", () if result.against else result.differences),
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
    if record:
        same = "The environment is that of the record: kernel, machine, versions, mount and device are the same."
        found = "; ".join(result.differences)
        lines.append(f"Not as it was for the record: {found}." if found else same)
    return lines


def _on_root(conditions: ExperimentRecord) -> str:
    """A sentence on sides on the file system of the system itself, as of a mount that is not there."""
    sides = [side for side, target in conditions.targets.items() if target.mount_point == "/"]
    if not sides:
        return ""
    who = f"The {sides[0]} lies" if len(sides) == 1 else "Both sides lie"
    file_system = conditions.targets[sides[0]].file_system
    return f"{who} on the root file system ({file_system}): is nothing to be mounted there?"


def _metrics(result: Regression) -> Section:
    needed, noun = result.secondary_pairs_needed, "runs" if result.against else "pairs"
    of = "all runs" if result.against else "the pairs of runs"
    notes = [f"* decides. Change: estimated from {of}, not from the medians."]
    if needed is not None:
        count = len(next(iter(result.metrics.values())).candidate)
        notes.append(
            f"{count} {noun} are too few to judge the other metrics, which are judged together (Holm's correction): "
            f"{needed} {noun} are the least. Their figures stand without a verdict."
        )
    rows = []
    for name, metric in result.metrics.items():
        found, verdict, decides = metric.found, metric.judgement.verdict, name == result.primary
        too_few = verdict is Verdict.INCONCLUSIVE and not decides and needed is not None
        rows.append(
            (
                f"{METRICS[name]}{' *' * decides}",
                *(metric_text(name)(statistics.median(values)) for values in (metric.baseline, metric.candidate)),
                change_text(found.ratio),
                interval_text(found.low, found.high),
                "-" if too_few else verdict.value,
            )
        )
    columns = ("", *SIDES, "change", f"{100 * (1 - ALPHA):g} % interval", "verdict")
    return Section(title="Figures", columns=columns, rows=tuple(rows), notes=tuple(notes), brief=())


def _setting(result: Regression) -> Section:
    conditions, options, against = result.conditions, result.conditions.options, result.against
    letters = "".join(side[0].upper() for side in result.order)
    order = " ".join(letters[place : place + 2] for place in range(0, len(letters), 2)) or "none"
    last = ("order", f"{order} (B: baseline, C: candidate; seed {conditions.seed})")
    if against:
        last = ("record", f"{against.name}, {format_counted(len(against.counted_runs()), 'run')} of {against.date} UTC")
    places, held = [], []
    for side, place in zip(SIDES, (result.baseline, result.candidate), strict=True):
        target = conditions.targets.get(side)  # type: ignore[call-overload]
        kind = "" if target is None else target.file_system
        device = f" on {target.source}" if target is not None and target.source not in ("", kind) else ""
        places.append((side, f"{place} ({kind}{device})" if kind else place))
        known = [run.resident_pct for run in result.runs if run.pair and run.side == side]
        shares = [share for share in known if share is not None]
        ends = dict.fromkeys(f"{share:.0f}" for share in (min(shares), max(shares))) if shares else {}
        held.append(f"{side} {' to '.join(ends)} %" if shares else f"{side} unknown")
    warm_ups = f"{format_counted(conditions.warmup, 'run')}{'' if against else ' on each side'} before, not counted"
    rows = [
        *places,
        ("pace", f"{options.pace}, speed {options.speed:g}"),
        last,
        ("warm-up", warm_ups),
        ("page cache", f"{options.cache}; held before a run: {', '.join(held)}"),
    ]
    return facts("How it was measured", rows)


# ------------------------------------------------------------------------------------------------------------- reports


def report(suffix: str, result: Regression, *, inconclusive_fails: bool) -> bytes:
    """The file of one of the kinds SUFFIXES."""
    if suffix == ".xml":
        return junit_document(result, inconclusive_fails=inconclusive_fails)
    text = regression_markdown(result) if suffix == ".md" else regress_page(result)
    return text.encode("utf-8", "replace")


def junit_document(result: Regression, *, inconclusive_fails: bool) -> bytes:
    """The result as UTF-8.

    Only the deciding metric can fail or be skipped, so the suite fails exactly if the command does. Its figures
    begin with both verdicts, on the application and on the storage itself. Those of the other metrics are their output.
    """
    # The runs of a record were another day's.
    runs = [run for run in result.runs if result.against is None or run.side == "candidate"]
    elapsed = sum(run.metrics.get("total_s", run.metrics.get("elapsed_s", 0.0)) for run in runs)
    names = [*([] if result.primary in result.metrics else [result.primary]), *result.metrics]
    cases = [_case(result, name, elapsed, inconclusive_fails or result.stopped) for name in names]
    failures, skipped = (sum(case.find(tag) is not None for case in cases) for tag in ("failure", "skipped"))
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "time": f"{elapsed:.3f}"}
    root = xml.Element("testsuites", {"name": "dxt-replay regress", **counts})
    name = f"{result.capture}: {result.candidate} against {result.compared_with}"
    suite = xml.SubElement(root, "testsuite", {"name": _xml(name), **counts, "skipped": str(skipped)})
    properties = xml.SubElement(suite, "properties")
    said: Mapping[str, Any] = {
        **{key: getattr(result, key) for key in ("headline", "storage")},
        **{"verdict": result.verdict.value, "reason": result.reason},
        **{key: getattr(result, key) for key in ("capture", *SIDES)},
        **{"pace": result.conditions.options.pace, "repeats": result.repeats, "seed": result.conditions.seed},
    }
    for key, value in said.items():
        xml.SubElement(properties, "property", {"name": key, "value": _xml(str(value))})
    suite.extend(cases)
    if notes := [*result.obstacles, *result.warnings]:
        xml.SubElement(suite, "system-out").text = _xml("\n".join(notes))
    xml.indent(root)
    document: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _case(result: Regression, name: str, elapsed_s: float, inconclusive_fails: bool) -> xml.Element:
    decides, metric = name == result.primary, result.metrics.get(name)
    kind, time_s = ("verdict", elapsed_s) if decides else ("informational", 0)
    case = xml.Element("testcase", {"classname": f"dxt-replay.regress.{kind}", "name": name, "time": f"{time_s:.3f}"})
    tag, about = "system-out", {}
    inconclusive = result.verdict is Verdict.INCONCLUSIVE
    if decides and (result.verdict is Verdict.REGRESSION or (inconclusive and inconclusive_fails)):
        tag, about = "failure", {"message": _xml(result.reason), "type": result.verdict.value}
    elif decides and inconclusive:
        tag, about = "skipped", {"message": _xml(result.reason)}
    lines = [result.headline, result.storage] if decides else []
    if metric is None:
        lines.append("nothing to compare")
    else:
        found, unit = metric.found, unit_of(metric.name)
        interval = "unknown" if found.low is None or found.high is None else f"{found.low:.4f} to {found.high:.4f}"
        lines += [
            f"{metric.judgement.verdict.value}: {metric.judgement.reason}",
            f"ratio {found.ratio:.4f}, interval {interval}, p {found.p_value:.4g} (adjusted {metric.p_adjusted:.4g})",
            f"baseline ({unit}): {', '.join(f'{value:.6g}' for value in metric.baseline)}",
            f"candidate ({unit}): {', '.join(f'{value:.6g}' for value in metric.candidate)}",
        ]
    xml.SubElement(case, tag, about).text = _xml("\n".join(filter(None, lines)))
    return case


def _xml(text: str) -> str:
    """The text with escapes for what XML 1.0 cannot hold."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", lambda found: escaped(found[0]), text)


def regression_markdown(result: Regression) -> str:
    verdict, *sections = regression_sections(result)
    lines = [f"**{_markdown(verdict.rows[0][0])}**", "", *(_markdown(row[0]) for row in verdict.rows[1:])]
    for section in sections:
        if section.columns:
            heads = [column.head for column in section.typed_columns]
            rows = [heads, ["---", *("---:" for _ in heads[1:])], *(map(_markdown, row) for row in section.rows)]
            lines += ["", *(f"| {' | '.join(row)} |" for row in rows), "", *map(_markdown, section.notes)]
        else:
            lines += ["", f"<details><summary>{section.title}</summary>", ""]
            lines += [*(f"- {_markdown(': '.join(row))}" for row in section.rows), "", "</details>"]
    return "\n".join(lines) + "\n"


def _markdown(text: str) -> str:
    """Text with what Markdown, HTML or a forge (`@name`, `#1`) would interpret escaped; on one line."""
    plain = re.sub(r"([\\`*_~|<>\[\]&!])", r"\\\1", printable(text))
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", " ".join(plain.split()))


def regress_page(result: Regression) -> str:
    """The page: verdicts, a dot for each run, figures, settings and all runs, without any script."""
    from dxt_replay.replay.show.page.page import rendered

    verdict, *tables = regression_sections(result)
    primary, metric = result.primary, result.metrics.get(result.primary)
    text = metric_text(primary)
    rows = [
        {
            **run.as_json(),
            "run": str(number),
            "pair": str(run.pair) if run.pair else "warm-up",
            "side": f"{run.side}, stopped" if run.stopped else run.side,
            "value": or_dash(run.metrics.get(primary), text),
            "resident_pct": run.resident_pct,
        }
        for number, run in enumerate(result.runs, start=1)
    ]
    contents = {
        "title": result.headline,
        "subject": f"{result.candidate} against {result.compared_with}",
        "sections": {"verdict": "Verdict", "figures": "Figures and settings", "runs": "All runs"},
        "verdict": result.verdict.value,
        "change": "" if metric is None else f"{100 * (metric.found.ratio - 1):+.1f} %",
        "meaning": METRICS[primary],
        "said": [row[0] for row in verdict.rows if row[0] != result.headline],
        "dots": None if metric is None else _dots(metric.baseline, metric.candidate, text, paired=not result.against),
        "tables": tables,
        "runs": listing("", [*RUNS[:3], replace(RUNS[3], label=METRICS[primary]), *RUNS[4:]], rows),
    }
    return rendered("regress.html.j2", {"schema_version": 1, **result.as_json()}, None, contents)


def _dots(
    baseline: Sequence[float], candidate: Sequence[float], text: Callable[[float], str], *, paired: bool
) -> dict[str, Any]:
    """Places of the dots of all runs in a picture of 100 by 100; those of a pair lie above each other."""
    low, high = min(*baseline, *candidate), max(*baseline, *candidate)
    span = (high - low) or high
    low, high = low - 0.1 * span, high + 0.1 * span

    def height(value: float) -> float:
        return round(100 * (high - value) / (high - low), 2)

    columns = len(baseline) + (0 if paired else len(candidate))
    place = [round(100 * (each + 0.5) / columns, 2) for each in range(columns)]
    sides = {"baseline": (baseline, place), "candidate": (candidate, place if paired else place[len(baseline) :])}
    # Two to five round numbers for the ticks.
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step *= next((times for times in (5, 2) if (high - low) / (times * step) >= 2), 1)
    ticks = [step * each for each in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return {
        "dots": [
            {"side": side, "x": x, "y": height(value), "text": f"{side}, {text(value)}"}
            for side, (values, places) in sides.items()
            for value, x in zip(values, places, strict=False)
        ],
        "pairs": [(x, height(a), height(b)) for x, a, b in zip(place, baseline, candidate, strict=False)] * paired,
        "medians": [(side, height(statistics.median(values)), text(statistics.median(values)))
                    for side, (values, _) in sides.items()],
        "ticks": [(height(each), text(each)) for each in ticks],
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- history

_OF_THE_MACHINE = (
    f"{MACHINE_CHANGED.capitalize()}: from that record on the machine was another one, or other work made it busier or "
    "quieter, so the change may not be the file system's. Measure again on the machine as it was."
)


def history_sections(history: History) -> list[Section]:
    """The sentence, change points and table of each series, the table by the metric that decides.

    At most MAX_GROUPS records, the latest; --json has all of them, and all metrics.
    """
    found, sections = history.as_json(), []
    for series in found["series"]:
        sections += [prose("", [series["headline"]]), _changes(series), _levels(series)]
        sections.append(prose("Warnings", series["warnings"]))
    if found["skipped"]:
        left_out = format_counted(len(found["skipped"]), "file")
        sections.append(prose("", [f"{left_out} left out, not a record: {listed(found['skipped'])}"]))
    return [*sections, prose("Rule", [found["rule"]["text"]])]


def _changes(series: Mapping[str, Any]) -> Section:
    """The change points of all metrics in order of time; below them the changes of the environment at that record."""
    records = series["records"]
    found = [(change, name) for name, metric in series["metrics"].items() for change in metric["changes"]]
    found.sort(key=lambda one: one[0]["at"])
    rows = [
        {
            "record": f"{records[change['at']]['record']}, {records[change['at']]['date']}",
            "metric": METRICS[name],
            "change": change_text(change["ratio"]),
            "interval": interval_text(change["low"], change["high"]),
            "verdict": MACHINE_CHANGED if change["machine_changed"] else change["verdict"],
        }
        for change, name in found
    ]
    places = [records[at] for at in dict.fromkeys(change["at"] for change, _ in found)]
    notes = [
        f"What else changed with {each['record']}: {'; '.join(each['differences']) or 'nothing recorded'}."
        for each in places
    ]
    notes += [_OF_THE_MACHINE] * any(each["machine_changed"] for each in places)
    return listing("Change points", CHANGES, rows, notes=notes)


def _levels(series: Mapping[str, Any]) -> Section:
    """The latest records with the level of the metric that decides, the last one last."""
    metric, text = series["metrics"][series["primary"]], metric_text(series["primary"])
    cache = "cold" if series["cache"] == "cold" else "page cache as found"
    remarks = {
        change["at"]: MACHINE_CHANGED if change["machine_changed"] else "changed" for change in metric["changes"]
    }
    rows = [
        {
            **record,
            "runs": level["runs"],
            "median": text(level["median"]),
            "change": None if level["change"] is None else change_text(level["change"]),
            "interval": interval_text(level["change_low"], level["change_high"]),
            "remark": remarks.get(place),
        }
        for place, (record, level) in enumerate(zip(series["records"], metric["levels"], strict=True))
        if level is not None
    ]
    left = max(len(rows) - MAX_GROUPS, 0)
    title = f"{METRICS[series['primary']]} by record: {series['target']}, pace {series['pace']}, {cache}"
    notes = [f"and {left} earlier records: --json has all of them"] if left else []
    return listing(title, LEVELS, rows[left:], notes=notes)
