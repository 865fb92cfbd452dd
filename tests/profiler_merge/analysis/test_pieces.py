"""Sums over pieces of a capture are those over all of it, and the same bit for bit on any number of processes."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis import tables
from dxt_replay.profiler_merge.analysis.named_tables import CONTENTS, views
from dxt_replay.profiler_merge.analysis.overview import overview
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.workers import ALONE, Workers
from tests.capture_builder import Op, build_capture
from tests.examples import examples
from tests.places import CAPTURES
from tests.workers_equality import OPERATIONS, SPANS, plain

TABLES = tuple(name for name in tables.TABLES if name not in CONTENTS)


def everything(capture: Capture, workers: Workers, by: str = "file") -> object:
    return plain([views(capture, TABLES, by=by, workers=workers), overview(capture, workers=workers, most_bars=100)])


@settings(max_examples=examples(8))
@example(ops=[Op("read", rank, length=4096, rank=rank) for rank in (0, 1)], by="rank")
@given(ops=OPERATIONS, by=st.sampled_from(["rank", "file", "format", "step", "size"]))
def test_the_ranks_alone_come_to_the_whole(ops: list[Op], by: str) -> None:
    """Durations are equal and lengths whole numbers, so that means have no rounding that the order could change."""
    with TemporaryDirectory() as folder:
        capture = build_capture(Path(folder), files=["/a", "/b.h5", "/c", "/d"], ops=ops, spans=SPANS, ranks=range(5))
        rank_by_rank = Workers(1, piece_operations=1)
        assert everything(capture, rank_by_rank, by) == everything(capture, ALONE, by)


def test_any_number_of_processes_comes_to_the_same_bits(tmp_path: Path) -> None:
    folder = CAPTURES / "climate"
    if not folder.exists():
        pytest.skip("the recorded captures are not here")
    merge([folder / "job.darshan"], sorted((folder / "profile").rglob("*.xplane.pb*")), tmp_path / "x.capture")
    capture = open_capture(tmp_path / "x.capture")
    assert len(capture.ranks) > 1
    found = everything(capture, Workers(1, piece_operations=1))
    for count in (2, 3):
        with Workers(count, piece_operations=1) as workers:
            assert everything(capture, workers) == found
