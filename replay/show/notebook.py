"""The tables of each result, and what a notebook shows of them: the first line and a small table, as in brief."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import Any

from dxt_replay.replay.show.section import Section, in_brief
from dxt_replay.traces.text import printable

MOST_CHARACTERS, MOST_ROWS = 300, 12
"""Of a first line, which is the `repr` of the result; and of its table."""

WORDS = {
    "Anonymized": "make.anonymized_sections",
    "Calibration": "predict.calibration_sections",
    "Capacity": "predict.capacity_sections",
    "Comparison": "compare.comparison_sections",
    "Diagnosis": "make.doctor_sections",
    "Exported": "make.export_sections",
    "FittedWorkload": "make.fit_sections",
    "GeneratedCapture": "make.generate_sections",
    "History": "regress.history_sections",
    "JobSummaries": "make.job_sections",
    "MergeResult": "make.merge_sections",
    "MergedJobs": "make.merged_job_sections",
    "NoiseFloor": "compare.floor_sections",
    "Published": "predict.published_sections",
    "Recorded": "make.record_sections",
    "Regression": "regress.regression_sections",
    "Repeats": "run.repeat_sections",
    "Report": "make.report_sections",
    "RunResult": "run.run_sections",
    "Simulated": "predict.simulation_sections",
    "StorageLimit": "summary.limit_sections",
    "Summary": "summary.summary_sections",
    "Transformed": "predict.transform_sections",
    "Verified": "make.verified_sections",
    "Views": "tables.summary_or_tables",
}
"""Class of a result -> what makes its tables."""


def line(result: Any) -> str:
    """The first line."""
    first = _sections(result)[0]
    text = printable(first.title or next((row[0] for row in first.rows), ""))
    named = f"<{type(result).__name__}: {text}>"
    return named if len(named) <= MOST_CHARACTERS else f"{named[: MOST_CHARACTERS - 4]}...>"


def html(result: Any) -> str:
    """The first section and one small table."""
    first, *others = _sections(result)
    lines = [first.title, *(row[0] for row in first.rows if len(row) == 1)]
    said = "".join(f"<p>{escape(printable(text))}</p>" for text in lines if text)
    tables = (each for each in (first, *others, *sections_of(result)) if any(len(row) > 1 for row in each.rows))
    shown = next(tables, None)
    return said if shown is None else said + _table(shown)


def _sections(result: Any) -> list[Section]:
    return in_brief(sections_of(result))


def sections_of(result: Any, *more: Any) -> list[Section]:
    """All tables of a result. `more`: what the command alone knows."""
    module, _, name = WORDS[type(result).__name__].partition(".")
    made = getattr(import_module(f"{__package__}.{module}"), name)(result, *more)
    return [each for each in made if each.rows or each.notes]


def _table(section: Section) -> str:
    rows = [section.columns and [each.head for each in section.typed_columns], *section.rows[:MOST_ROWS]]
    cells = ("".join(f"<td>{escape(printable(cell))}</td>" for cell in row) for row in rows if row)
    return f"<table>{''.join(f'<tr>{each}</tr>' for each in cells)}</table>"
