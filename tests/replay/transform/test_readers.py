from __future__ import annotations

import numpy as np
import pytest

from dxt_replay.replay.causal.loop import CHECKPOINT, FETCH, NO_FETCH, NO_MOMENT
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.transform.rank_state import BY_BATCH, BY_FILE, Work
from dxt_replay.replay.transform.readers import with_read_ahead, with_readers
from tests.replay.transform.works import loop_of, requests, work

READ = (1, 0, 0, 10)


def dealt(given: Work, fed: list[int], readers: int, deal: str = BY_BATCH, of_loop: list[bool] | None = None) -> Work:
    return with_readers(given, np.array(fed), np.array(of_loop or [True] * len(fed)), readers, deal)


@pytest.mark.parametrize("readers", [1, 2, 3, 8])
def test_batches_are_dealt_in_turn_and_keep_their_requests(readers: int) -> None:
    fed = [number // 2 for number in range(12)]
    before = work([(1, 0, 100 * number, 100) for number in range(12)], need=fed)
    found = dealt(before, fed, readers)
    assert ((found["lane"] - 1) % readers == found["need"] % readers).all()
    pairs = [set(zip(each["offset"].tolist(), each["need"].tolist(), strict=True)) for each in (before, found)]
    assert pairs[0] == pairs[1]


def test_each_reader_makes_its_batches_in_their_order() -> None:
    # two workers, of which the second was ahead
    reads, fed = [(1, 0, 0, 10), (2, 0, 30, 10), (2, 0, 10, 10), (1, 0, 20, 10)], [0, 3, 1, 2]
    assert dealt(work(reads, need=fed), fed, 1)["need"].tolist() == [0, 1, 2, 3]


def test_files_go_to_readers_as_a_whole() -> None:
    reads = [(lane, name, 100 * part, 100) for part in range(3) for lane, name in ((1, 0), (2, 1), (3, 2), (4, 3))]
    found = dealt(work(reads), list(range(12)), 2, BY_FILE)
    assert {(name, lane) for lane, name, _, _ in requests(found)} == {(0, 1), (1, 2), (2, 1), (3, 2)}


def test_other_operations_keep_their_lane_and_readers_have_lanes_of_their_own() -> None:
    reads = [(7, 5, 0, 10), (1, 0, 0, 10), (2, 0, 10, 10)]
    found = dealt(work(reads), [NO_FETCH, 0, 1], 2, of_loop=[False, True, True])
    assert requests(found) == [(7, 5, 0, 10), (8, 0, 0, 10), (9, 0, 10, 10)]


def test_a_close_goes_with_the_batch_before_it_and_holds_up_no_other_one() -> None:
    given = work([(1, 0, 0, 10), (1, 0, 0, 0), (1, 1, 0, 10)]) | {"follows": np.array([1, 19, 3])}
    found = dealt(given, [4, NO_FETCH, 5], 2)
    assert found["lane"].tolist() == [1, 1, 2]
    assert found["follows"].tolist() == [1, NO_MOMENT, 3]


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
def test_a_read_waits_for_the_fetch_that_makes_room_for_its_batch(
    ahead: int, pass_first: list[int] | None, moments: list[int]
) -> None:
    first = None if pass_first is None else np.array(pass_first)
    given = work([READ] * 6, need=range(1, 7))
    found = with_read_ahead(given, np.ones(6, dtype=bool), ahead, loop_of(*6 * [FETCH]), first)
    assert found["follows"].tolist() == moments


def test_no_read_waits_for_a_fetch_behind_a_checkpoint_that_its_lane_has_yet_to_write() -> None:
    """The fetches are events 1, 2, 4 and 5, the checkpoint is event 3. The third read would wait for the end of fetch
    2, which comes after the checkpoint, and the checkpoint for its write, which comes after that read."""
    given = work([READ] * 4, need=[1, 2, 5, 3])
    loop = loop_of(FETCH, FETCH, CHECKPOINT, FETCH, FETCH)
    found = with_read_ahead(given, np.array([True, True, True, False]), 1, loop)
    assert found["follows"].tolist() == [NO_MOMENT, 3, 5, NO_EVENT]
