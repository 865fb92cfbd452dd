"""The output of `dxt-replay history` for people, from the object that `--json` prints. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dxt_replay.replay.regression.regression_sections import UNIT_TEXTS
from dxt_replay.replay.regression.result_sentence import change_text, interval_text
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.replay.show.cells import or_dash
from dxt_replay.replay.show.section import MAX_GROUPS, Column, Kind, Section, facts, prose
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import format_counted

MACHINE_CHANGED = "machine changed"
"""Instead of the verdict of a change point where the machine was another one, or was busier or quieter."""

_OF_THE_MACHINE = (
    f"{MACHINE_CHANGED.capitalize()}: from that record on the machine was another one, or other work made it busier or "
    "quieter, so the change may not be the file system's. Measure again on the machine as it was."
)


def history_sections(history: Mapping[str, Any], metric: str | None = None) -> list[Section]:
    """The sentence, change points and table of each series. `metric`: what the tables show, the deciding one if None.

    At most MAX_GROUPS records, the latest; --json has all of them.
    """
    sections = []
    for series in history["series"]:
        sections += [prose("", [series["headline"]]), *_of_series(series, metric or series["primary"])]
    if history["skipped"]:
        names = listed(history["skipped"])
        sections.append(
            prose("", [f"{format_counted(len(history['skipped']), 'file')} left out, not a record: {names}"])
        )
    return [section for section in [*sections, prose("Rule", [history["rule"]["text"]])] if section.rows]


def _of_series(series: Mapping[str, Any], metric: str) -> Iterator[Section]:
    cache = "cold" if series["cache"] == "cold" else "page cache as found"
    rows = [("capture", series["capture"]), ("target", series["target"]), ("runs", f"pace {series['pace']}, {cache}")]
    yield facts("", rows)
    yield _change_section(series)
    if metric in series["metrics"]:
        yield _level_section(series, metric)
    if series["warnings"]:
        yield prose("Warnings", series["warnings"])


def _change_section(series: Mapping[str, Any]) -> Section:
    """The change points of all metrics in order of time; below them what changed in the environment there."""
    found = [(change["at"], name, change) for name, metric in series["metrics"].items() for change in metric["changes"]]
    found.sort(key=lambda one: one[0])
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
                f"{series['records'][at]['record']}, {series['records'][at]['date']}",
                METRICS[name].meaning,
                change_text(change["ratio"]),
                _interval(change["low"], change["high"]),
                MACHINE_CHANGED if change["machine_changed"] else change["verdict"],
            )
            for at, name, change in found
        ),
        notes=(
            *(
                f"What else changed with {record['record']}: {'; '.join(record['differences']) or 'nothing recorded'}."
                for record in (series["records"][at] for at in dict.fromkeys(at for at, _, _ in found))
            ),
            *([_OF_THE_MACHINE] if any(change["machine_changed"] for _, _, change in found) else []),
        ),
    )


def _level_section(series: Mapping[str, Any], name: str) -> Section:
    """The latest records with the level of one metric, the last one last."""
    metric = series["metrics"][name]
    text = UNIT_TEXTS[metric["unit"]]
    places = {change["at"] for change in metric["changes"]}
    rows = [
        (
            record["date"],
            record["record"],
            record["kernel"],
            record["version"],
            str(level["runs"]),
            text(level["median"]),
            "-" if level["low"] is None else f"{text(level['low'])} to {text(level['high'])}",
            or_dash(level["change"], change_text),
            _interval(level["change_low"], level["change_high"]),
            _mark(record) if place in places else "",
        )
        for place, (record, level) in enumerate(zip(series["records"], metric["levels"], strict=True))
        if level is not None
    ]
    left = len(rows) - MAX_GROUPS
    return Section(
        title=f"{METRICS[name].meaning} by record",
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


def _mark(record: Mapping[str, Any]) -> str:
    return MACHINE_CHANGED if record["machine_changed"] else "changed"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else interval_text(low, high)
