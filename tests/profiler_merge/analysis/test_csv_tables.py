"""Every table as CSV says what its JSON rows say, for real captures."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.analysis.named_tables import summary_table, views
from dxt_replay.profiler_merge.analysis.table_formats import write_csv
from dxt_replay.profiler_merge.analysis.tables import GROUPINGS, TABLES
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.profiles.xplane import find_profiles
from dxt_replay.traces.samples import NAMES, sample
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.places import CAPTURES

RECORDED = ("candle", "climate", "cosmoflow", "cosmoflow_threads", "ffn", "frnn", "l2hmc")


@pytest.fixture(scope="module", params=[*NAMES, *RECORDED])
def real_capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Capture:
    path = tmp_path_factory.mktemp("csv") / f"{request.param}.capture"
    if request.param in NAMES:
        files = sample(request.param)
        log, profiles = files.log, list(files.profiles)
    else:
        log = CAPTURES / request.param / "job.darshan"
        if not log.is_file():
            pytest.skip(f"{log} is not on this machine")
        profiles = find_profiles(CAPTURES / request.param / "profile")
    merge([log], profiles, path)
    return open_capture(path)


def csv_rows(table: Any) -> list[dict[str, str]]:
    out = io.BytesIO()
    write_csv(table, out)
    return list(csv.DictReader(io.StringIO(out.getvalue().decode("utf-8"), newline=""), strict=True))


def as_csv(value: Any) -> str:
    """A value of a JSON row as its cell reads; numbers are compared as numbers."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def check(table: Any) -> None:
    whole = table if isinstance(table, pa.Table) else pa.Table.from_batches(table.batches(), schema=table.schema)
    cells, rows = csv_rows(table), whole.to_pylist()
    assert len(cells) == len(rows)
    for cell, row in zip(cells, rows, strict=True):
        assert cell.keys() == row.keys()
        for name, value in row.items():
            if isinstance(value, float):
                assert float(cell[name]) == value
            else:
                assert re.sub(r"\A'(?='*[=+@\t\r-])", "", cell[name]) == as_csv(value)


def test_every_table_says_what_its_rows_say(real_capture: Capture) -> None:
    found = views(real_capture, list(TABLES))
    assert found.tables.keys() == set(TABLES)
    for table in found.tables.values():
        check(table)


def test_totals_and_groups_say_what_their_rows_say(real_capture: Capture) -> None:
    check(summary_table(views(real_capture, []).summary))
    for by in GROUPINGS:
        check(summary_table(views(real_capture, [], by=by).summary))


def test_a_name_that_a_spreadsheet_would_run_is_text(tmp_path: Path) -> None:
    cells = csv_rows(pa.table({"path": ["=cmd|x!A0", "/a"], "change": [-1, -2]}))
    assert cells == [{"path": "'=cmd|x!A0", "change": "-1"}, {"path": "/a", "change": "-2"}]
