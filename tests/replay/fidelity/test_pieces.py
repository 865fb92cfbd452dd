"""A comparison over pieces of both captures is that over all of them, and the same on any number of processes."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dxt_replay.replay.fidelity.compare import compare
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers
from tests.capture_builder import Op, build_capture
from tests.examples import examples
from tests.workers_equality import OPERATIONS, SPANS, plain

FILES = ["/a", "/b.h5", "/c", "/d"]


def pair(folder: Path, ops: list[Op], changes: list[int]) -> tuple[Capture, Capture]:
    """A capture and a replay of it, in which some operations are another kind, or missing."""
    source = build_capture(folder, files=FILES, ops=ops, spans=SPANS, ranks=range(5), name="source")
    replayed = [
        replace(op, op="read" if change == 1 else op.op, due_ns=op.start_ns, start_ns=op.start_ns + 4096 * change)
        for op, change in zip(ops, changes, strict=False)
        if change != 2
    ]
    replay = build_capture(folder, files=FILES, ops=replayed, ranks=range(5), name="replay", replay_of=source)
    return source, replay


@settings(max_examples=examples(8), phases=[Phase.generate])
@given(ops=OPERATIONS, changes=st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_the_ranks_alone_come_to_the_whole(ops: list[Op], changes: list[int]) -> None:
    with TemporaryDirectory() as folder:
        source, replay = pair(Path(folder), ops, changes)
        done: list[int] = []
        found = compare(source, replay, on_rows=done.append, workers=Workers(1, piece_operations=1)).as_json()
        whole = compare(source, replay, workers=ALONE).as_json()
        # the curves are sums of fractions, whose last digits follow the order
        for name, value in whole.pop("curves").items():
            assert found["curves"][name] == (None if value is None else pytest.approx(value))
        del found["curves"]
        assert plain(found) == plain(whole)
        assert sum(done) == source.operation_count() + replay.operation_count()


def test_any_number_of_processes_comes_to_the_same_bits(tmp_path: Path) -> None:
    ops = [
        Op("read", number % 4, offset=4096 * number, length=4000 + number, start_ns=977 * number, rank=number % 5)
        for number in range(500)
    ]
    source, replay = pair(tmp_path, ops, [0, 3, 0, 1, 0] * 100)
    found = plain(compare(source, replay, workers=Workers(1, piece_operations=1)))
    with Workers(2, piece_operations=1) as workers:
        assert plain(compare(source, replay, workers=workers)) == found
