from __future__ import annotations

import json
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.profiler_merge.analysis.named_tables import CONTENTS, summary_table, views
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.profiler_merge.analysis.timeline import timeline
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, read, write

MS = 1_000_000


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return build_capture(
        tmp_path,
        files=["/a", "/b"],
        ops=[
            *(read(0, offset=4096 * n, length=4096, start_ns=n * MS, end_ns=(n + 1) * MS) for n in range(120)),
            write(1, length=5, start_ns=130 * MS, rank=1, api="HDF5"),
        ],
        spans=[
            *(Span("step", start_ns=n * 10 * MS, end_ns=(n + 1) * 10 * MS, step=n) for n in range(13)),
            Span("compute", start_ns=5 * MS, end_ns=60 * MS),
        ],
    )


def test_every_view_is_a_table_and_json(capture: Capture) -> None:
    found = views(capture, TABLES, bins=5)
    assert tuple(found.tables) == tuple(TABLES)
    assert all(table.schema == TABLES[name].schema for name, table in found.tables.items())
    left = {*CONTENTS, "storage-limit", "dependencies", "model", "requests"}  # need files, a causal model, a store
    assert all(table.num_rows for name, table in found.tables.items() if name not in left)
    assert found.unread == {}
    assert found.tables["timeline"] == timeline(capture, bins=5).table
    assert found.tables["steps"] == overlap(capture).steps
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert document["overlap"]["io_hidden_pct"] == pytest.approx(100 * 55 / 120)
    assert document["tables"]["findings"][0]["code"] == findings(capture)[0].code
    assert document["tables"]["findings"][0]["values"] == dict(findings(capture)[0].values)
    assert document["operations"] == {"read": 120, "write": 1, "other": 0}


def test_without_a_view_it_is_the_summary(capture: Capture) -> None:
    found = views(capture, ())
    assert found.as_json() == summarise(capture).as_json()
    assert found.shares is None


def test_the_summary_as_one_table(capture: Capture) -> None:
    totals = {row["name"]: row["value"] for row in summary_table(summarise(capture)).to_pylist()}
    assert totals["operations.read"] == "120"
    groups = summary_table(summarise(capture, by="rank")).to_pylist()
    assert [(row["group"], row["reads"], row["writes"]) for row in groups] == [("0", 120, 0), ("1", 0, 1)]
