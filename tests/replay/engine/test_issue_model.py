"""Random operations on four files, held to what a model that knows only sizes says of them."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.replay.engine.direct import check_direct
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import (
    CLOSE,
    MARK,
    OPEN,
    READ_AT,
    RENAME,
    SEEK,
    SLEEP,
    SPIN,
    STAT,
    SYNC,
    WRITE_AT,
    LoopPace,
)
from dxt_replay.traces.errors import TargetError
from tests.examples import examples
from tests.fakes import PythonPosix, make_batch
from tests.replay.engine.issue_lanes import open_paths, run_lane

SLOTS = st.integers(-1, 4)
LENGTHS = st.one_of(st.integers(1, 300), st.sampled_from([4096, 5000, 70_000, -1]))
OFFSETS = st.one_of(st.integers(0, 20_000), st.just(-3))
ITEMS = st.one_of(
    st.tuples(st.sampled_from([READ_AT, WRITE_AT]), SLOTS, OFFSETS, LENGTHS, st.integers(-100, 20_000)),
    st.tuples(st.sampled_from([SLEEP, SPIN, MARK]), st.just(-1), st.just(0), st.integers(-5, 20_000), st.just(0)),
    st.tuples(st.sampled_from([OPEN, CLOSE, STAT, SYNC, SEEK]), SLOTS, OFFSETS, st.just(0), st.integers(0, 9_000)),
    st.tuples(st.just(RENAME), SLOTS, SLOTS, st.just(0), st.just(0)),
)
PLANS = st.lists(st.lists(ITEMS, min_size=1, max_size=12), min_size=1, max_size=4)
BACKENDS = st.one_of(
    st.sampled_from(["posix", "direct", "stdio", PythonPosix()]),
    st.lists(st.sampled_from(["posix", "stdio", PythonPosix()]), min_size=4, max_size=4),
)
WRITABLE = (True, False, True, True)
CREATED = 3


class Sizes:
    """What each operation gives, from the sizes of the files by slot; None for one that does not exist."""

    def __init__(self, sizes: list[int | None]) -> None:
        self.sizes = sizes

    def result(self, kind: int, slot: int, place: int, amount: int) -> int:
        if kind >= SLEEP:
            return 0
        if not 0 <= slot < len(self.sizes):
            return -errno.EBADF
        if kind == RENAME:
            return self._rename(slot, place)
        if kind == SEEK and place < 0:
            return -errno.EINVAL
        if kind != STAT and self.sizes[slot] is None and slot == CREATED:
            self.sizes[slot] = 0
        size = self.sizes[slot]
        if size is None:
            return -errno.ENOENT
        if kind > WRITE_AT:
            return 0
        if place < 0 or amount < 0:
            return -errno.EINVAL
        if kind == READ_AT:
            return max(0, min(amount, size - place))
        if not WRITABLE[slot]:
            return -errno.EBADF
        self.sizes[slot] = max(size, place + amount)
        return amount

    def _rename(self, slot: int, new: int) -> int:
        if not 0 <= new < len(self.sizes):
            return -errno.EBADF
        if not (WRITABLE[slot] and WRITABLE[new]):
            return -errno.EROFS
        if self.sizes[slot] is None:
            return -errno.ENOENT
        if new != slot:
            self.sizes[new], self.sizes[slot] = self.sizes[slot], None
        return 0


@settings(max_examples=examples(150))
@given(
    plan=PLANS,
    pace=st.sampled_from(list(LoopPace)),
    uses=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    backends=BACKENDS,
)
def test_operations_give_what_the_sizes_say(tmp_path_factory, plan, pace, uses, backends):
    folder = tmp_path_factory.mktemp("plans")
    if backends == "direct":
        try:
            check_direct(folder, [])
        except TargetError as error:
            pytest.skip(str(error))
    model = Sizes([0, 100, 9_000, None])
    paths = [folder / f"f{index}" for index in range(4)]
    for path, size in zip(paths, model.sizes, strict=True):
        if size is not None:
            path.write_bytes(np.random.default_rng(size).bytes(size))
    slots = [
        FileSlot(path=bytes(path), writable=writable, create=index == CREATED, uses=count)
        for index, (path, writable, count) in enumerate(zip(paths, WRITABLE, uses, strict=True))
    ]
    files = Files(slots, backends)
    assert len(files) == len(slots)
    completed, lane = run_lane(files, *(make_batch(*items) for items in plan), pace=pace)
    files.close_all()
    assert [path for path in open_paths() if path.startswith(bytes(folder))] == []
    expected = [[model.result(*item[:4]) for item in items] for items in plan]
    assert [done.result.tolist() for done in completed] == expected
    assert [path.stat().st_size if os.path.exists(path) else None for path in paths] == model.sizes
    assert lane.items_done == sum(map(len, plan))
    for items, done in zip(plan, completed, strict=True):
        assert np.all(done.begin_ns >= done.due_ns)
        assert np.all(done.end_ns >= done.begin_ns)
        assert np.all(done.begin_ns[1:] >= done.end_ns[:-1])
        if pace is LoopPace.NONE:
            assert np.array_equal(done.due_ns, done.begin_ns)
        if pace is LoopPace.ABSOLUTE:
            assert done.due_ns.tolist() == [item[4] for item in items]
