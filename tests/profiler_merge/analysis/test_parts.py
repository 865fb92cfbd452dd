from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Op, Span, build_capture, read, write
from tests.examples import examples


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
        spans=[
            Span("step", 10 + 10 * place, 20 + 10 * place, rank=rank, step=step)
            for place, (rank, step) in enumerate([(0, 0), (1, 1), (2, 1), (0, 2), (0, 2), (3, 3)])
        ],
    )


@pytest.mark.parametrize(
    ("conditions", "total"),
    [
        ({}, 31 - 16),
        ({"paths": ("*.csv",)}, 6),
        ({"paths": ("*.csv", "/lib/*")}, 14),
        ({"paths": ("/data/*",), "exclude": ("*.h5",)}, 6),
        ({"ranks": (0, 2)}, 13),
        ({"operations": ("write",)}, 4),
        ({"operations": ("stat",)}, 0),
        ({"interfaces": ("STDIO",)}, 4),
        ({"interfaces": ("STDIO", "POSIX")}, 15),
        ({"interfaces": ("MPIIO",)}, 16),
        ({"from_ns": 20}, 14),
        ({"until_ns": 30}, 3),
        ({"from_ns": 20, "until_ns": 40}, 6),
        ({"steps": (1, 2)}, 14),
        ({"steps": (1, 2), "operations": ("read",), "ranks": (1, 2)}, 2),
    ],
)
def test_conditions_are_joined_by_and_paths_by_or(tmp_path: Path, conditions: dict[str, Any], total: int) -> None:
    found = summarise(part_of(capture(tmp_path), Part(**conditions)))
    assert found.bytes.read + found.bytes.written == total


def test_what_is_left_out_is_not_in_the_counters(tmp_path: Path) -> None:
    source = capture(tmp_path)
    assert summarise(part_of(source, Part(paths=("*.h5",)))).interfaces["POSIX"].reads == 77
    assert summarise(part_of(source, Part(ranks=(0,)))).interfaces["POSIX"].source == "operations"
    assert summarise(part_of(source, Part(ranks=(0,)))).interfaces["POSIX"].reads == 2


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.lists(st.integers(1, 49), unique=True, max_size=4))
def test_adjacent_windows_add_up(tmp_path: Path, starts: list[int], cuts: list[int]) -> None:
    ops = [read(0, length=n + 1, start_ns=start, end_ns=start + 9) for n, start in enumerate(starts)]
    source = build_capture(tmp_path, files=["/a"], ops=ops)
    bounds = [None, *sorted(cuts), None]
    moved = 0
    for begin, end in pairwise(bounds):
        try:
            part = part_of(source, Part(from_ns=begin, until_ns=end))
        except UsageError:  # the window is empty
            continue
        moved += summarise(part).bytes.read
    assert moved == sum(op.length for op in ops)
