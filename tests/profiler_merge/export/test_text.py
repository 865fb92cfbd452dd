"""Chrome's trace and CSV: exact times, any name, lines that a viewer can draw. `tests/same`
holds the bytes of recorded jobs."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export import chrome, exported
from dxt_replay.profiler_merge.export.chrome import LANE_THREADS, write_chrome
from dxt_replay.profiler_merge.export.exported import stream_csv, write_csv
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture, read
from tests.examples import examples

PATHS = [
    "/plain", '/q"uo\\te', "/com,ma", "/new\nline\x00\x1f", "/cr\rhere", b"/odd\xff\xfe", "/ümläut \U0001f600 \u2028",
]  # fmt: skip


def events_of(capture: Capture, folder: Path) -> list[dict[str, Any]]:
    write_chrome(capture, folder / "out.json.gz", force=True)
    text = gzip.decompress((folder / "out.json.gz").read_bytes()).decode("ascii")
    found: list[dict[str, Any]] = json.loads(text, parse_float=Decimal, parse_constant=pytest.fail)["traceEvents"]
    return found


def lines_of(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}


def test_a_replay_shows_what_was_due(tmp_path: Path) -> None:
    op = read(0, offset=-1, start_ns=-500, end_ns=1_500, lane=1, due_ns=-2_001, result=-5, origin="reconstructed")
    capture = build_capture(tmp_path, files=["/a"], ops=[op])
    events = events_of(capture, tmp_path)
    actual, due = (next(event for event in events if event["ph"] == phase) for phase in "Xi")
    lag = {"lag_us": Decimal("1.501")}
    assert (actual["ts"], actual["dur"]) == (Decimal("-0.5"), 2)
    told = {"file": "/a", "length": 0, "api": "POSIX", "origin": "reconstructed", "result": -5}
    assert actual["args"] == {**told, "due_us": Decimal("-2.001"), **lag}
    assert (due["ts"], due["args"], due["s"]) == (Decimal("-2.001"), lag, "t")
    assert lines_of(events)[due["tid"]] == "lane 1 due"
    write_csv(capture, tmp_path / "out.csv")
    row = (tmp_path / "out.csv").read_bytes().splitlines()[1]
    assert row == b"0,1,read,POSIX,/a,,0,-0.000000500,0.000001500,,reconstructed,-0.000002001,-5,"


def test_odd_names_are_valid_json(tmp_path: Path) -> None:
    ops, name = [read(file, start_ns=file * 5000) for file in range(len(PATHS))], '</script>"\\ \x07 é'
    capture = build_capture(tmp_path, files=PATHS, ops=ops, spans=[Span("other", 0, 1, name, thread=1)])
    found = [event for event in events_of(capture, tmp_path) if event["ph"] == "X"]
    assert [event["args"]["file"] for event in found if event["cat"] == "io"] == capture.paths()
    assert found[0]["name"] == name


INTERVAL = st.tuples(st.integers(0, 3), st.integers(0, 6), st.sampled_from([0, 1, 2, LANE_THREADS]), st.booleans())


@settings(max_examples=examples(30))
@given(drawn=st.lists(INTERVAL, max_size=40), spans=st.lists(INTERVAL, max_size=20), slice_rows=st.integers(1, 7))
def test_events_of_a_line_are_in_time_order_and_apart_or_nested(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[Any], spans: list[Any], slice_rows: int
) -> None:
    folder, now, ops = tmp_path_factory.mktemp("lines"), 0, []
    for later, length, lane, is_due in drawn:
        now += later
        ops.append(read(0, start_ns=now, end_ns=now + length, lane=lane, due_ns=now - 2 if is_due else None))
    kinds = [
        Span("pipeline" if one else "other", start, start + length, thread=thread)
        for start, length, thread, one in spans
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome, "SLICE_ROWS", slice_rows)
        events = events_of(build_capture(folder, files=["/a"], ops=ops, spans=kinds), folder)
    names, lines = lines_of(events), defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lines[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    shown = sorted(names[event["tid"]].partition(" (")[0] for event in events if event["ph"] in "Xi")
    wanted = [f"lane {lane}" for _, _, lane, _ in drawn] + [f"lane {lane} due" for _, _, lane, due in drawn if due]
    assert shown == sorted(wanted + [f"{span.kind}, thread {span.thread}" for span in kinds])
    assert {lane for lane in names if lane < LANE_THREADS} <= {0, 1, 2}
    for line in lines.values():
        assert line == sorted(line, key=lambda interval: (interval[0], -interval[1]))
        for place, (start, end) in enumerate(line):
            assert all(other_end <= start or end <= other_end for _, other_end in line[:place])


def test_bad_names_and_damage_are_told(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, end_ns=20), read(0, start_ns=10, end_ns=5)])
    for name, error in (("out.json", UsageError), ("out.json.gz", CaptureError)):
        with pytest.raises(error, match=r"ends in \.json\.gz|ends before it starts"):
            write_chrome(capture, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["test.capture"]


@settings(max_examples=examples(25))
@example(times=list(range(20)))
@given(times=st.lists(st.integers(-(1 << 60), 1 << 60), min_size=1, max_size=20))
def test_csv_loses_no_row_no_digit_and_no_name(tmp_path_factory: pytest.TempPathFactory, times: list[int]) -> None:
    ops = [Op("stat", n % len(PATHS), start_ns=time, end_ns=time, rank=n % 2) for n, time in enumerate(times)]
    capture = build_capture(tmp_path_factory.mktemp("exact"), files=PATHS, ops=ops)
    text, names = io.BytesIO(), capture.paths()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported, "SLICE_ROWS", 3)
        assert stream_csv(capture, text) == len(times)
    found = csv.DictReader(io.StringIO(text.getvalue().decode(), newline=""), strict=True)
    rows = [(int(row["rank"]), Decimal(row["start_s"]).scaleb(9), row["end_s"], row["path"]) for row in found]
    assert [row[:2] for row in rows] == sorted((op.rank, op.start_ns) for op in ops)
    assert all(Decimal(end).scaleb(9) == start for _, start, end, _ in rows)
    assert {(rank, start, path) for rank, start, _, path in rows} == {
        (op.rank, op.start_ns, names[op.file_id]) for op in ops
    }
