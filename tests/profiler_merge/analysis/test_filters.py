from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler_merge.analysis.filters import EVERYTHING, Filters
from profiler_merge.analysis.sizes import request_sizes
from profiler_merge.analysis.summary import summarise
from tests.capture_builder import File, Op, Span, build_capture, read, write
from traces.errors import UsageError
from traces.store.reader import Capture


def capture(tmp_path: Path) -> Capture:
    return build_capture(
        tmp_path,
        files=[File("/data/a.h5", counters={"posix_reads": 77, "posix_bytes_read": 7}), "/data/b.csv", "/lib/c.py"],
        ops=[
            read(0, length=1, start_ns=10, step=0),
            read(1, length=2, start_ns=20, step=1, rank=1),
            write(1, length=4, start_ns=30, step=1, rank=2, api="STDIO"),
            read(2, length=8, start_ns=40, step=2),
            Op("stat", 2, start_ns=50, step=2),
            read(0, length=16, start_ns=60, step=3, rank=3, api="MPIIO_COLL"),
        ],
    )


@pytest.mark.parametrize(
    ("filters", "total"),
    [
        ({}, 31 - 16),
        ({"paths": ("*.csv",)}, 6),
        ({"paths": ("*.csv", "/lib/*")}, 14),
        ({"paths": ("b.csv",)}, 0),
        ({"paths": ("/data/*",), "exclude": ("*.h5",)}, 6),
        ({"ranks": (0, 2)}, 13),
        ({"ops": ("write",)}, 4),
        ({"ops": ("stat",)}, 0),
        ({"apis": ("STDIO",)}, 4),
        ({"apis": ("STDIO", "POSIX")}, 15),
        ({"apis": ("MPIIO",)}, 16),
        ({"from_ns": 20}, 14),
        ({"until_ns": 30}, 3),
        ({"from_ns": 20, "until_ns": 40}, 6),
        ({"steps": (1, 2)}, 14),
        ({"steps": (1, 2), "ops": ("read",), "ranks": (1, 2)}, 2),
    ],
)
def test_conditions_are_joined_by_and_paths_by_or(tmp_path: Path, filters: dict[str, Any], total: int) -> None:
    found = summarise(capture(tmp_path), filters=Filters(**filters))
    assert found.bytes.read + found.bytes.written == total


def test_what_is_left_out_is_not_in_the_counters(tmp_path: Path) -> None:
    source = capture(tmp_path)
    assert summarise(source, filters=Filters(paths=("*.h5",))).interfaces["POSIX"].reads == 77
    assert summarise(source, filters=Filters(ranks=(0,))).interfaces["POSIX"].source == "operations"
    assert summarise(source, filters=Filters(ranks=(0,))).interfaces["POSIX"].reads == 2


def test_means_are_over_the_chosen_ranks(tmp_path: Path) -> None:
    one = summarise(capture(tmp_path), filters=Filters(ranks=(1,)))
    assert one.io_time_s.sum_per_rank_mean == one.io_time_s.sum_per_rank_max == pytest.approx(1e-6)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.lists(st.integers(1, 49), unique=True, max_size=4))
def test_adjacent_windows_add_up(tmp_path: Path, starts: list[int], cuts: list[int]) -> None:
    ops = [read(0, length=n + 1, start_ns=start, end_ns=start + 9) for n, start in enumerate(starts)]
    source = build_capture(tmp_path, files=["/a"], ops=ops)
    bounds = [None, *sorted(cuts), None]
    parts = [Filters(from_ns=begin, until_ns=end) for begin, end in pairwise(bounds)]
    moved = [sum(part.bytes for part in request_sizes(source, filters).classes) for filters in parts]
    assert sum(moved) == sum(op.length for op in ops)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ops": ("reed",)}, "no operation 'reed'"),
        ({"apis": ("NFS",)}, "no interface 'NFS'"),
        ({"from_ns": 5, "until_ns": 5}, "ends before it begins"),
        ({"steps": (3, 2)}, "first one first"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Filters(**wrong)


def test_spans_of_the_window_are_cut_and_parts_of_steps_left_out(tmp_path: Path) -> None:
    spans = build_capture(
        tmp_path,
        spans=[
            Span("step", start_ns=0, end_ns=10, step=0),
            Span("compute", start_ns=2, end_ns=10, step=0),
            Span("step", start_ns=10, end_ns=20, step=1),
            Span("compute", start_ns=12, end_ns=20, step=1),
            Span("step", start_ns=0, end_ns=20, step=0, rank=1),
        ],
    ).spans

    def rows(**filters: Any) -> list[tuple[str, int, int]]:
        found = Filters(**filters).spans(spans).to_pylist()
        return [(row["kind"], row["start_ns"], row["end_ns"]) for row in found]

    assert EVERYTHING.spans(spans) is spans
    assert rows(from_ns=5) == [("compute", 5, 10), ("step", 10, 20), ("compute", 12, 20)]
    assert rows(until_ns=15, ranks=(0,)) == [("step", 0, 10), ("compute", 2, 10), ("compute", 12, 15)]
    assert rows(steps=(1, 5)) == [("step", 10, 20), ("compute", 12, 20)]
    assert rows(ranks=(1,)) == [("step", 0, 20)]
