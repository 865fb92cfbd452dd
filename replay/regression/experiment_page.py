"""The page of `dxt-replay regress --html`, from the object of `--json`: verdict, figures, settings and all runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxt_replay.replay.regression.regression_sections import UNIT_TEXTS, compared_with, regression_sections
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.replay.show.cells import microseconds, or_dash, percent
from dxt_replay.replay.show.page.document import Assets, Part, document
from dxt_replay.replay.show.page.html_tables import html_text, section_table
from dxt_replay.replay.show.section import Column, Kind, Section
from dxt_replay.traces.units import format_count


def experiment_page(result: Mapping[str, Any]) -> str:
    """The whole page as HTML that needs no network. `result`: the object of `dxt-replay regress --json`."""
    verdict, *tables = regression_sections(result)
    first, *others = (html_text(row[0]) for row in verdict.rows)
    reasons = "".join(f'<p class="note">{sentence}</p>' for sentence in others)
    found = "".join(section_table(section) for section in tables)
    shown = [
        Part(id="verdict", name="Verdict", html=f'<p class="verdict">{first}</p>{reasons}'),
        Part(id="figures", name="Figures and settings", html=f'<div class="columns">{found}</div>'),
        Part(id="runs", name="Runs", html=section_table(runs_section(result))),
    ]
    name = f"{result['candidate']} against {compared_with(result)}"
    return document(f"dxt-replay: {name}", name, shown, {"schema_version": 1, **result}, {}, Assets.of_tables())


def runs_section(result: Mapping[str, Any]) -> Section:
    """A table of all runs in order."""
    primary = result["primary"]
    text = UNIT_TEXTS[METRICS[primary].unit] if primary in METRICS else str
    return Section(
        title="All runs",
        columns=(
            Column(head="run", kind=Kind.NUMBER),
            "pair",
            Column(head="side", kind=Kind.TEXT),
            METRICS[primary].meaning if primary in METRICS else primary,
            "lag p99",
            "failed",
            "cached before",
        ),
        rows=tuple(
            (
                str(number),
                str(run["pair"]) if run["pair"] else "warm-up",
                f"{run['side']}, stopped" if run["stopped"] else run["side"],
                or_dash(run["metrics"].get(primary), text),
                or_dash((run["lag_us"] or {}).get("p99"), microseconds),
                format_count(run["failed"]),
                or_dash(run["cache"]["resident_before_pct"], percent),
            )
            for number, run in enumerate(result["runs"], start=1)
        ),
    )
