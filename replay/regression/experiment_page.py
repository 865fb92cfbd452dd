"""The page of `dxt-replay regress --html`: verdict, figures, settings and all runs."""

from __future__ import annotations

from dxt_replay.replay.regression.comparison import Regression
from dxt_replay.replay.regression.regression_sections import metric_text, regression_sections
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.replay.show.cells import microseconds, or_dash, percent
from dxt_replay.replay.show.page.document import Assets, Part, document
from dxt_replay.replay.show.page.html_tables import html_text, section_table
from dxt_replay.replay.show.section import Column, Kind, Section
from dxt_replay.traces.units import format_count


def experiment_page(result: Regression) -> str:
    """The whole page as HTML that needs no network."""
    verdict, *tables = regression_sections(result)
    first, *others = (html_text(row[0]) for row in verdict.rows)
    reasons = "".join(f'<p class="note">{sentence}</p>' for sentence in others)
    found = "".join(section_table(section) for section in tables)
    shown = [
        Part(id="verdict", name="Verdict", html=f'<p class="verdict">{first}</p>{reasons}'),
        Part(id="figures", name="Figures and settings", html=f'<div class="columns">{found}</div>'),
        Part(id="runs", name="Runs", html=section_table(runs_section(result))),
    ]
    name = f"{result.setting.candidate} against {result.compared_with}"
    summary = {"schema_version": 1, **result.as_json()}
    return document(f"dxt-replay: {name}", name, shown, summary, {}, Assets.of_tables())


def runs_section(result: Regression) -> Section:
    """A table of all runs in order."""
    primary = result.primary
    text = metric_text(primary) if primary in METRICS else str
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
                str(run.pair) if run.pair else "warm-up",
                f"{run.side}, stopped" if run.stopped else run.side,
                or_dash(run.metrics.get(primary), text),
                or_dash((run.lag_us or {}).get("p99"), microseconds),
                format_count(run.failed),
                or_dash(run.resident_pct, percent),
            )
            for number, run in enumerate(result.runs, start=1)
        ),
    )
