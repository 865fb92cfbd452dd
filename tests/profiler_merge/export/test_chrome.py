from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export import chrome
from dxt_replay.profiler_merge.export.chrome import LANE_THREADS, write_chrome
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture, read
from tests.examples import examples


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def load(path: Path | str) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="ascii") as file:
        found: dict[str, Any] = json.load(file, parse_float=Decimal, parse_constant=no_constant)
    return found


def exported(capture: Capture, tmp_path: Path) -> list[dict[str, Any]]:
    write_chrome(capture, tmp_path / "out.json.gz")
    found: list[dict[str, Any]] = load(tmp_path / "out.json.gz")["traceEvents"]
    return found


def names_of(events: list[dict[str, Any]], what: str = "thread_name") -> dict[tuple[int, int], Any]:
    return {
        (e["pid"], e["tid"]): next(iter(e["args"].values())) for e in events if e["ph"] == "M" and e["name"] == what
    }


def test_a_replay_shows_what_was_due(tmp_path: Path) -> None:
    op = read(0, offset=-1, start_ns=-500, end_ns=1_500, lane=1, due_ns=-2_001, result=-5, origin="reconstructed")
    events = exported(build_capture(tmp_path, files=["/a"], ops=[op]), tmp_path)
    (actual,) = [event for event in events if event["ph"] == "X"]
    (due,) = [event for event in events if event["ph"] == "i"]
    lag = {"lag_us": Decimal("1.501")}
    assert (actual["ts"], actual["dur"]) == (Decimal("-0.5"), 2)
    assert actual["args"] == {
        "file": "/a", "length": 0, "api": "POSIX", "origin": "reconstructed", "result": -5,
        "due_us": Decimal("-2.001"), **lag,
    }  # fmt: skip
    assert (due["ts"], due["args"], due["s"]) == (Decimal("-2.001"), lag, "t")
    assert names_of(events)[0, due["tid"]] == "lane 1 due"


def test_odd_names_are_valid_json(tmp_path: Path) -> None:
    paths: list[str | bytes] = ['/q"uo\\te', "/new\nline\x00\x1f", b"/odd\xff", "/ümläut \U0001f600 \u2028"]
    capture = build_capture(
        tmp_path,
        files=paths,
        ops=[read(file, start_ns=file * 5000) for file in range(4)],
        spans=[Span("other", 0, 1, '</script>"\\ \x07 é', thread=1)],
    )
    found = [event for event in exported(capture, tmp_path) if event["ph"] == "X"]
    assert [event["args"]["file"] for event in found if event["cat"] == "io"] == capture.paths()
    assert found[0]["name"] == '</script>"\\ \x07 é'


interval = st.tuples(st.integers(0, 3), st.integers(0, 6), st.sampled_from([0, 1, 2, LANE_THREADS]), st.booleans())


@settings(max_examples=examples(30))
@given(drawn=st.lists(interval, max_size=40), spans=st.lists(interval, max_size=20), slice_rows=st.integers(1, 7))
def test_events_of_a_line_are_in_time_order_and_apart_or_nested(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[int, int, int, bool]],
    spans: list[tuple[int, int, int, bool]],
    slice_rows: int,
) -> None:
    folder, now = tmp_path_factory.mktemp("lines"), 0
    ops, given_spans = [], []
    for later, length, lane, is_due in drawn:
        now += later
        ops.append(read(0, start_ns=now, end_ns=now + length, lane=lane, due_ns=now - 2 if is_due else None))
    for start, length, thread, is_step in spans:
        given_spans.append(Span("pipeline" if is_step else "other", start, start + length, thread=thread))
    capture = build_capture(folder, files=["/a"], ops=ops, spans=given_spans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome, "SLICE_ROWS", slice_rows)
        events = exported(capture, folder)
    names = names_of(events)
    lines: dict[int, list[tuple[Decimal, Decimal]]] = defaultdict(list)
    shown = []
    for event in events:
        if event["ph"] == "X":
            lines[event["tid"]].append((Decimal(event["ts"]), Decimal(event["ts"]) + Decimal(event["dur"])))
            shown.append(names[0, event["tid"]].partition(" (")[0])
        if event["ph"] == "i":
            shown.append(names[0, event["tid"]])
    wanted = [f"lane {lane}" for _, _, lane, _ in drawn] + [f"lane {lane} due" for _, _, lane, due in drawn if due]
    wanted += [f"{'pipeline' if step else 'other'}, thread {thread}" for _, _, thread, step in spans]
    assert sorted(shown) == sorted(wanted)
    assert {lane for _, lane in names if lane < LANE_THREADS} <= {0, 1, 2}
    for line in lines.values():
        assert line == sorted(line, key=lambda interval: (interval[0], -interval[1]))
        for place, (start, end) in enumerate(line):
            assert all(other_end <= start or end <= other_end for _, other_end in line[:place])


def test_bad_names_and_damage_are_told(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, end_ns=20), Op("read", 0, start_ns=10, end_ns=5)])
    with pytest.raises(UsageError, match=r"ends in \.json\.gz"):
        write_chrome(capture, tmp_path / "out.json")
    with pytest.raises(CaptureError, match="ends before it starts"):
        write_chrome(capture, tmp_path / "out.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["test.capture"]
