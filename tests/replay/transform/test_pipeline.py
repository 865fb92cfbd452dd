"""Who reads which batch and how far ahead: readers, and ranks that share the recorded work."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay import open_capture, transform
from dxt_replay.replay.causal.loop import CHECKPOINT, FETCH, NO_FETCH, NO_MOMENT
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.transform.pipeline import with_read_ahead, with_readers
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import READ, codes
from tests import simulated_application
from tests.capture_builder import Op, Span, build_capture, read
from tests.replay.transform.works import broken_rules, loop_of, requests, work
from tests.simulated_application import MS, US, Application, Storage

ONE = (1, 0, 0, 10)


def test_files_and_what_feeds_nothing_are_dealt_with_their_batches():
    """A close goes with the batch before it, and holds up no other one."""
    files = work([(lane, lane - 1, 100 * part, 100) for part in range(3) for lane in (1, 2, 3, 4)])
    found = with_readers(files, np.arange(12), np.ones(12, dtype=bool), 2, by_file=True)
    assert {(name, lane) for lane, name, _, _ in requests(found)} == {(0, 1), (1, 2), (2, 1), (3, 2)}
    closes = work([ONE, (1, 0, 0, 0), (1, 1, 0, 10)]) | {"follows": np.array([1, 19, 3])}
    found = with_readers(closes, np.array([4, NO_FETCH, 5]), np.ones(3, dtype=bool), 2)
    assert (found["lane"].tolist(), found["follows"].tolist()) == ([1, 1, 2], [1, NO_MOMENT, 3])


@pytest.mark.parametrize(
    ("ahead", "pass_first", "moments"),
    [
        # Fetch n is event n + 1: it begins at moment 2 n + 2, and ends at the next one.
        (3, None, [NO_MOMENT, NO_MOMENT, NO_MOMENT, 3, 5, 7]),
        (0, None, [2, 4, 6, 8, 10, 12]),
        (2, [0, 0, 0, 3, 3, 3], [2, 2, 3, 8, 8, 9]),
    ],
    ids=["room for three batches", "the training thread reads", "two passes over the data"],
)
def test_a_read_waits_for_the_fetch_that_makes_room_for_its_batch(ahead, pass_first, moments):
    first = None if pass_first is None else np.array(pass_first)
    given = work([ONE] * 6, need=range(1, 7))
    found = with_read_ahead(given, np.ones(6, dtype=bool), ahead, loop_of(*6 * [FETCH]), first)
    assert found["follows"].tolist() == moments


def test_no_read_waits_for_a_fetch_behind_a_checkpoint_that_its_lane_has_yet_to_write():
    """The fetches are events 1, 2, 4 and 5, the checkpoint is event 3. The third read would wait for the end of fetch
    2, which comes after the checkpoint, and the checkpoint for its write, which comes after that read."""
    given = work([ONE] * 4, need=[1, 2, 5, 3])
    loop = loop_of(FETCH, FETCH, CHECKPOINT, FETCH, FETCH)
    found = with_read_ahead(given, np.array([True, True, True, False]), 1, loop)
    assert found["follows"].tolist() == [NO_MOMENT, 3, 5, NO_EVENT]


STEP = 10 * MS


def changed(capture, ranks):
    output = capture.path.parent / "changed.capture"
    return transform(capture, output, ranks=ranks, force=True), open_capture(output)


def rows(capture):
    table = pa.Table.from_batches(list(capture.operations()))
    return list(table.filter(pa.array(codes(table, "op") == READ)).to_pylist())


def shared_file(folder, steps=12):
    """Two ranks that open a shared file and read its header, and then a sample of it in each step by themselves."""
    ops: list[Op] = []
    spans: list[Span] = []
    for rank in (0, 1):
        ops += [read(0, length=512, rank=rank, start_ns=100 * US), Op("open", 0, rank=rank, start_ns=50 * US)]
        for step in range(steps):
            begin = MS + step * STEP
            offset = 1000 + 1000 * (2 * step + rank)
            ops.append(read(0, offset=offset, length=1000, rank=rank, start_ns=begin + 100 * US))
            spans += [
                Span("step", begin, begin + STEP - MS, rank=rank, step=step, thread=1),
                Span("input_wait", begin, begin + 200 * US, name="next_batch", rank=rank, step=step, thread=1),
                Span("collective", begin + 8 * MS, begin + 9 * MS, rank=rank, step=step, thread=1),
            ]
    return build_capture(folder, files=["/data/train.h5"], ops=ops, spans=spans)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 24), (3, 8), (4, 6), (24, 1)])
def test_batches_are_read_once_and_headers_by_each_rank(tmp_path, ranks, steps):
    found, capture = changed(shared_file(tmp_path), ranks)
    reads = rows(capture)
    samples = [row for row in reads if row["length"] == 1000]
    assert sorted(row["offset"] for row in samples) == [1000 + 1000 * number for number in range(24)]
    assert len(reads) - len(samples) == ranks
    assert capture.ranks == tuple(range(ranks))
    kinds = np.array(capture.spans["kind"].to_pylist())
    assert [int((kinds == kind).sum()) for kind in ("step", "input_wait", "collective")] == [ranks * steps] * 3
    assert found.after.bytes_read == 24_000 + 512 * ranks


def test_each_step_of_all_ranks_takes_the_batches_that_come_next(tmp_path):
    found, capture = changed(shared_file(tmp_path), 4)
    samples = {(row["rank"], row["feeds"]): row["offset"] for row in rows(capture) if row["length"] == 1000}
    assert samples == {(rank, step): 1000 + 1000 * (4 * step + rank) for rank in range(4) for step in range(6)}
    # The compute time of a step stays.
    assert found.after.elapsed_ns == pytest.approx(found.before.elapsed_ns / 2, rel=0.1)


def test_batches_that_are_left_over_are_left_out_and_said(tmp_path):
    found, capture = changed(shared_file(tmp_path), 5)
    assert any("4 batches are left out" in note for note in found.assumptions)
    assert len([row for row in rows(capture) if row["length"] == 1000]) == 20
    with pytest.raises(UsageError, match="24 batches to share out, fewer than ranks"):
        changed(open_capture(tmp_path / "test.capture"), 25)


def private_files(folder):
    """Two ranks with two files each, of 8 requests, that a reader streams ahead of 16 steps."""
    ops: list[Op] = []
    spans: list[Span] = []
    for rank in (0, 1):
        for number in range(16):
            name = 2 * (number // 8) + rank
            begin = MS + max(number - 2, 0) * STEP + 10 * US * number
            ops.append(read(name, offset=4096 * (number % 8), length=4096, rank=rank, lane=1, start_ns=begin))
        for step in range(16):
            begin = MS + step * STEP
            spans += [
                Span("step", begin, begin + STEP, rank=rank, step=step, thread=1),
                Span("input_wait", begin, begin + MS, rank=rank, step=step, thread=1),
            ]
    return build_capture(folder, files=[f"/data/{name}.tfrecord" for name in "abcd"], ops=ops, spans=spans)


@pytest.mark.parametrize("ranks", [1, 4])
def test_whole_files_go_to_the_ranks_by_name(tmp_path, ranks):
    source = private_files(tmp_path)
    _, capture = changed(source, ranks)
    reads = rows(capture)
    assert {(row["file_id"], row["rank"]) for row in reads} == {(name, name % ranks) for name in range(4)}
    assert sum(row["length"] for row in reads) == sum(row["length"] for row in rows(source))
    for name in range(4):
        assert [row["offset"] for row in reads if row["file_id"] == name] == [4096 * number for number in range(8)]


def test_a_rank_reads_the_files_of_another_one_no_further_ahead_than_its_own(tmp_path):
    _, capture = changed(private_files(tmp_path), 1)
    of_others = [row for row in rows(capture) if row["file_id"] in (1, 3) and row["feeds"] >= 4]
    assert of_others
    assert all(row["follows"] is not None and row["feeds"] - row["follows"] <= 4 for row in of_others)
    assert not broken_rules(capture)
    with pytest.raises(UsageError, match="4 files, each read by one rank"):
        changed(open_capture(tmp_path / "test.capture"), 8)


def test_data_that_are_loaded_whole_are_loaded_by_each_rank(tmp_path):
    ops, spans = [], []
    for rank in (0, 1):
        ops += [read(0, offset=1000 * n, length=1000, rank=rank, start_ns=MS + n * 50 * US) for n in range(100)]
        for step in range(8):
            begin = MS + (0 if not step else 6 * MS + step * STEP)
            spans += [
                Span("step", begin, begin + STEP, rank=rank, step=step, thread=1),
                Span("input_wait", begin, begin + 6 * MS, name="next_batch", rank=rank, step=step, thread=1),
            ]
    source = build_capture(tmp_path, files=["/data/train.csv"], ops=ops, spans=spans)
    for ranks in (1, 4):
        found, _ = changed(source, ranks)
        assert found.after.bytes_read == 100_000 * ranks


def test_an_application_on_more_ranks(tmp_path):
    """Half the steps on twice as many ranks, held against the application itself."""
    application = Application(depth=4, readers=2, ranks=2, steps=80, collective_ns=500 * US, jitter=0.0)
    storage = Storage(latency_ns=300 * US)
    run = simulated_application.run(application, storage)
    source = build_capture(tmp_path, files=["/data/train"], ops=run.ops, spans=run.spans)
    fewer = Application(depth=4, readers=2, ranks=4, steps=40, collective_ns=500 * US, jitter=0.0)
    truth = simulated_application.run(fewer, storage)
    found, _ = changed(source, 4)
    assert found.after.elapsed_ns == pytest.approx(truth.elapsed_ns - 5 * MS, rel=0.05)
