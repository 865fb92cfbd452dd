from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dxt_replay.replay.causal.training_loop import CHECKPOINT, FETCH
from dxt_replay.replay.transform.rank_work import BY_BATCH, BY_FILE, NOTHING
from dxt_replay.replay.transform.readers import with_read_ahead, with_readers
from tests.replay.transform.works import loop_of, requests, work


@pytest.mark.parametrize("readers", [1, 2, 3, 8])
def test_batches_are_dealt_in_turn_and_keep_their_requests(readers: int) -> None:
    reads = [(1, 0, 100 * number, 100) for number in range(12)]
    feeds = [number // 2 for number in range(12)]
    before = work(reads, feeds=feeds)
    found = with_readers(before, np.ones(12, dtype=bool), readers, BY_BATCH)
    assert ((found.lane - 1) % readers == found.feeds % readers).all()
    assert sorted(found.offset.tolist()) == sorted(before.offset.tolist())
    assert dict(zip(found.offset.tolist(), found.feeds.tolist(), strict=True)) == dict(
        zip(before.offset.tolist(), before.feeds.tolist(), strict=True)
    )


def test_each_reader_makes_its_batches_in_their_order() -> None:
    # two workers, of which the second was ahead
    reads = [(1, 0, 0, 10), (2, 0, 30, 10), (2, 0, 10, 10), (1, 0, 20, 10)]
    found = with_readers(work(reads, feeds=[0, 3, 1, 2]), np.ones(4, dtype=bool), 1, BY_BATCH)
    assert found.feeds.tolist() == [0, 1, 2, 3]


def test_files_go_to_readers_as_a_whole() -> None:
    reads = [(lane, name, 100 * part, 100) for part in range(3) for lane, name in ((1, 0), (2, 1), (3, 2), (4, 3))]
    found = with_readers(work(reads, feeds=list(range(12))), np.ones(12, dtype=bool), 2, BY_FILE)
    assert {(name, lane) for lane, name, _, _ in requests(found)} == {(0, 1), (1, 2), (2, 1), (3, 2)}


def test_other_operations_keep_their_lane_and_readers_have_lanes_of_their_own() -> None:
    reads = [(7, 5, 0, 10), (1, 0, 0, 10), (2, 0, 10, 10)]
    found = with_readers(work(reads, feeds=[NOTHING, 0, 1]), np.array([False, True, True]), 2, BY_BATCH)
    assert requests(found) == [(7, 5, 0, 10), (8, 0, 0, 10), (9, 0, 10, 10)]


def test_a_close_goes_with_the_batch_before_it_and_holds_up_no_other_one() -> None:
    reads = [(1, 0, 0, 10), (1, 0, 0, 0), (1, 1, 0, 10)]
    given = dataclasses.replace(work(reads, feeds=[4, NOTHING, 5]), follows=np.array([1, 19, 3]))
    found = with_readers(given, np.ones(3, dtype=bool), 2, BY_BATCH)
    assert found.lane.tolist() == [1, 1, 2]
    assert found.follows.tolist() == [1, NOTHING, 3]


def test_a_read_waits_until_the_fetch_that_makes_room_for_its_batch_has_ended() -> None:
    found = with_read_ahead(work([(1, 0, 0, 10)] * 5, feeds=range(5)), np.ones(5, dtype=bool), 3, loop_of(*5 * [FETCH]))
    assert found.follows.tolist() == [NOTHING, NOTHING, NOTHING, 1, 3]


def test_the_training_thread_reads_when_it_fetches() -> None:
    found = with_read_ahead(work([(1, 0, 0, 10)] * 3, feeds=range(3)), np.ones(3, dtype=bool), 0, loop_of(*3 * [FETCH]))
    assert found.follows.tolist() == [0, 2, 4]


def test_no_batch_is_read_before_its_pass_over_the_data_begins() -> None:
    of_pass = np.array([0, 0, 0, 3, 3, 3])
    given = work([(1, 0, 0, 10)] * 6, feeds=range(6))
    found = with_read_ahead(given, np.ones(6, dtype=bool), 2, loop_of(*6 * [FETCH]), of_pass)
    assert found.follows.tolist() == [0, 0, 1, 6, 6, 7]


def test_no_read_waits_for_a_fetch_behind_a_checkpoint_that_its_lane_has_yet_to_write() -> None:
    """The fetches are events 1, 2, 4 and 5, the checkpoint is event 3. The third read would wait for the end of fetch
    2, which comes after the checkpoint, and the checkpoint for its write, which comes after that read."""
    given = work([(1, 0, 0, 10)] * 4, feeds=[0, 1, 3, NOTHING])
    given = dataclasses.replace(given, blocks=np.array([NOTHING, NOTHING, NOTHING, 3]))
    loop = loop_of(FETCH, FETCH, CHECKPOINT, FETCH, FETCH)
    found = with_read_ahead(given, given.feeds != NOTHING, 1, loop)
    assert found.follows.tolist() == [NOTHING, 1, 3, NOTHING]
