"""The output of `dxt-replay regress` for people, from the object that `--json` prints. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from dxt_replay.replay.regression.result_sentence import change_text, interval_text
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.replay.show.cells import mib_s, microseconds, seconds
from dxt_replay.replay.show.section import Section, facts, prose
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import format_counted

UNIT_TEXTS: Mapping[str, Callable[[float], str]] = {"s": seconds, "us": microseconds, "MiB/s": mib_s}
"""Unit of a metric -> how a value is written."""


def regression_sections(result: Mapping[str, Any]) -> list[Section]:
    """The verdict in one sentence, then the figures, how they were measured, and warnings."""
    first = (result["headline"], *_basis(result))
    sections = [prose("", first), _metrics(result)]
    notes = [*(f"not valid: {text}" for text in result["obstacles"]), *result["warnings"]]
    if notes:
        sections.append(prose("Warnings", notes))
    sections += [_setting(result), _sides_differ(result), prose("Rule", [result["rule"]["text"]])]
    return [section for section in sections if section.rows]


def compared_with(result: Mapping[str, Any]) -> str:
    """The other side of the comparison: the directory of the baseline, or a record."""
    against = result.get("against")
    return str(result["baseline"] if against is None else f"the record {against['record']}")


def regression_markdown(result: Mapping[str, Any]) -> str:
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


def _basis(result: Mapping[str, Any]) -> list[str]:
    """The basis of the verdict: the figures of the deciding metric, and the smallest change that the pairs can show."""
    metric = result["metrics"].get(result["primary"])
    if metric is None:
        return []
    text, pairs = UNIT_TEXTS[metric["unit"]], f"{len(metric['baseline'])} pairs"
    before, after = (text(statistics.median(metric[side])) for side in ("baseline", "candidate"))
    meaning = METRICS[result["primary"]].meaning
    medians, spread = f"on the baseline (medians of {pairs} of runs)", f"{pairs} of this spread detect"
    if result.get("against"):
        runs = format_counted(len(metric["candidate"]), "run")
        medians = f"in the record (medians of {runs} and of {len(metric['baseline'])})"
        spread = "As many runs of this spread detect"
    lines = [f"Judged by {meaning}: {after} on the candidate, {before} {medians}."]
    detectable = metric["minimum_detectable_pct"]
    if detectable is not None:
        lines.append(f"{spread} a change of {detectable:.1f} % in 8 of 10 experiments.")
    return [*lines, *_differences(result)]


def _differences(result: Mapping[str, Any]) -> list[str]:
    """Further differences from a record, beside the verdict. Differences of two targets are the question itself."""
    if not result.get("against"):
        return []
    found = result["environment"]["differences"]
    if not found:
        return ["The environment is that of the record: kernel, machine, versions, mount and device are the same."]
    return [f"Not as it was for the record: {'; '.join(found)}."]


def _sides_differ(result: Mapping[str, Any]) -> Section:
    """What the targets of a pair differ in; what a record differs in stands beside the verdict."""
    environment = result.get("environment")
    found = environment["differences"] if environment and not result.get("against") else []
    return prose("Baseline -> candidate", found)


def _metrics(result: Mapping[str, Any]) -> Section:
    interval = f"{100 * (1 - result['rule']['alpha']):g} % interval"
    of = "of its pair" if not result.get("against") else "over all pairs of their runs"
    notes = [f"* decides. Change: of the candidate against the baseline {of}; it may differ from that of the medians."]
    needed = result.get("secondary_pairs_needed")
    if needed is not None:
        noun = "runs" if result.get("against") else "pairs"
        count = len(next(iter(result["metrics"].values()))["candidate"])
        notes.append(
            f"{count} {noun} are too few to judge the other metrics, which are judged together (Holm's correction): "
            f"{needed} {noun} are the least. Their figures stand without a verdict."
        )
    return Section(
        title="Figures",
        columns=("", "baseline", "candidate", "change", interval, "verdict"),
        rows=tuple(_metric_row(name, metric, result) for name, metric in result["metrics"].items()),
        notes=tuple(notes),
    )


def _metric_row(name: str, metric: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, ...]:
    text = UNIT_TEXTS[metric["unit"]]
    low, high = metric["ci"]
    decides = name == result["primary"]
    open_question = metric["verdict"] == "inconclusive" and not decides
    too_few = open_question and result.get("secondary_pairs_needed") is not None
    return (
        f"{METRICS[name].meaning}{' *' if decides else ''}",
        text(statistics.median(metric["baseline"])),
        text(statistics.median(metric["candidate"])),
        change_text(metric["ratio"]),
        "-" if low is None else interval_text(low, high),
        "-" if too_few else metric["verdict"],
    )


def _setting(result: Mapping[str, Any]) -> Section:
    counted = [run for run in result["runs"] if run["pair"]]
    pace = f"{result['pace']}, speed {result['speed']:g}"
    against, warm_ups = result.get("against"), format_counted(result["warmup"], "run")
    order = ("order", f"{_order(result['order'])} (B: baseline, C: candidate; seed {result['seed']})")
    rows = [
        ("baseline", f"{result['baseline']}{_mounted(result, 'baseline')}"),
        ("candidate", f"{result['candidate']}{_mounted(result, 'candidate')}"),
        ("pace", pace),
        _record_row(against) if against else order,
        ("warm-up", f"{warm_ups}{'' if against else ' on each side'} before, not counted"),
        ("page cache", f"{result['cache']['policy']}; held before a run: {_residency(counted)}"),
    ]
    return facts("How it was measured", rows)


def _record_row(against: Mapping[str, Any]) -> tuple[str, str]:
    day = f"{datetime.fromtimestamp(against['start_ns'] / 1e9, tz=timezone.utc):%Y-%m-%d %H:%M} UTC"
    return "record", f"{against['record']}, {format_counted(against['runs'], 'run')} of {day}"


def _mounted(result: Mapping[str, Any], side: str) -> str:
    """` (ext4 on /dev/sda1)`, where it is known."""
    target = (result.get("environment") or {"targets": {}})["targets"].get(side)
    if target is None or not target["file_system"]:
        return ""
    source = target["source"]
    return f" ({target['file_system']}{f' on {source}' if source not in ('', target['file_system']) else ''})"


def _order(order: Sequence[str]) -> str:
    """Pairs as `BC`, `CB` ..."""
    letters = "".join(side[0].upper() for side in order)
    return " ".join(letters[place : place + 2] for place in range(0, len(letters), 2)) or "none"


def _residency(runs: Sequence[Mapping[str, Any]]) -> str:
    held = []
    for side in ("baseline", "candidate"):
        shares = [run["cache"]["resident_before_pct"] for run in runs if run["side"] == side]
        known = [share for share in shares if share is not None]
        ends = dict.fromkeys(f"{share:.0f}" for share in (min(known), max(known))) if known else {}
        held.append(f"{side} {' to '.join(ends)} %" if known else f"{side} unknown")
    return ", ".join(held)
