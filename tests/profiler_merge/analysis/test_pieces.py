"""Sums over pieces of a capture are those over all of it, and the same bit for bit on any number of processes."""

import dataclasses
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis import tables
from dxt_replay.profiler_merge.analysis.named_tables import CONTENTS, views
from dxt_replay.profiler_merge.analysis.overview import overview
from dxt_replay.profiler_merge.analysis.summary import Summary
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.workers import ALONE, Workers
from tests.capture_builder import Op, build_capture
from tests.examples import examples
from tests.places import CAPTURES
from tests.workers_equality import ONE, OPERATIONS, SPANS, plain

TABLES = tuple(name for name in tables.TABLES if name not in CONTENTS)


def everything(capture: Capture, workers: Workers, by: str = "file") -> object:
    return plain([views(capture, TABLES, by=by, workers=workers), overview(capture, workers=workers, most_bars=100)])


@settings(max_examples=examples(8))
@given(ops=OPERATIONS, by=st.sampled_from(["rank", "file", "format", "step", "size"]))
def test_the_ranks_alone_come_to_the_whole(ops: list[Op], by: str) -> None:
    """Durations are equal and lengths whole numbers, so that means have no rounding that the order could change."""
    with TemporaryDirectory() as folder:
        capture = build_capture(Path(folder), files=["/a", "/b.h5", "/c", "/d"], ops=ops, spans=SPANS, ranks=range(5))
        rank_by_rank = Workers(1, piece_operations=1)
        assert everything(capture, rank_by_rank, by) == everything(capture, ALONE, by)


@settings(max_examples=examples(12))
@given(
    ops=st.lists(st.tuples(ONE, st.sampled_from([0, 1_000, 40_000, 900_000])), max_size=60),
    rows=st.integers(1, 7),
    by=st.sampled_from(["file", "step"]),
)
def test_stretches_of_ranks_come_to_the_whole(ops: list[tuple[Op, int]], rows: int, by: str) -> None:
    """Operations overlap, some for longer than row groups last. Lanes are those of the test, whatever overlaps."""
    lasting = [dataclasses.replace(op, end_ns=op.start_ns + length) for op, length in ops]
    with TemporaryDirectory() as folder:
        files = ["/a", "/b.h5", "/c", "/d"]
        capture = build_capture(
            Path(folder), files=files, ops=lasting, spans=SPANS, ranks=range(5), row_group_rows=rows
        )
        whole = without_samples(capture, ALONE, by)
        for workers in (Workers(1, piece_operations=1), Workers(executor=Pickling(), piece_operations=1)):
            assert without_samples(capture, workers, by) == whole


def without_samples(capture: Capture, workers: Workers, by: str) -> object:
    """Everything but the sampled offsets, which are those of each stretch, and the mean of bandwidths, whose last digit
    depends on the order."""
    made = views(capture, TABLES, by=by, workers=workers)
    page = overview(capture, workers=workers, most_bars=10)
    summaries = [round_mean(each) for each in (made.summary, page.analysis.summary)]
    page = dataclasses.replace(page, offsets=(), analysis=dataclasses.replace(page.analysis, summary=summaries[1]))
    return plain([dataclasses.replace(made, summary=summaries[0]), page])


def round_mean(summary: Summary) -> Summary:
    spread = summary.bandwidth_per_op_mib_s
    rounded = None if spread.mean is None else float(f"{spread.mean:.12g}")
    return dataclasses.replace(summary, bandwidth_per_op_mib_s=dataclasses.replace(spread, mean=rounded))


class Pickling(Executor):
    """Does the work at once, on copies as another process would have them."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(pickle.loads(pickle.dumps(work(*pickle.loads(pickle.dumps(given))))))
        return done


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
