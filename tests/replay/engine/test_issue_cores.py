"""Which core runs, and that both do the same."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.replay.engine import clock as clock_module
from dxt_replay.replay.engine import issue, items, lane_files
from dxt_replay.replay.engine.backends import base, posix
from dxt_replay.replay.engine.backends.base import FileSlot
from dxt_replay.replay.engine.backends.null import NullBackend
from dxt_replay.replay.engine.backends.posix import DirectPosixBackend, PosixBackend, check_direct
from dxt_replay.replay.engine.backends.stdio import StdioBackend
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import choose_core, make_files, make_lane
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
from dxt_replay.traces.errors import ReplayError, TargetError, UsageError
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import core_fixture, open_paths, run_lane  # noqa: F401

# ------------------------------------------------------------------------------------------- both cores do the same

LENGTHS = st.one_of(st.integers(0, 300), st.sampled_from([4096, 5000, 70_000, -1]))
OFFSETS = st.one_of(st.integers(0, 20_000), st.just(-3))
ITEMS = st.one_of(
    st.tuples(st.just(READ_AT), st.integers(-1, 4), OFFSETS, LENGTHS, st.integers(-100, 20_000)),
    st.tuples(st.just(WRITE_AT), st.integers(-1, 4), OFFSETS, LENGTHS, st.integers(-100, 20_000)),
    st.tuples(st.sampled_from([SLEEP, SPIN, MARK]), st.just(-1), st.just(0), st.integers(-5, 20_000), st.just(0)),
    st.tuples(
        st.sampled_from([OPEN, CLOSE, STAT, SYNC, SEEK]), st.integers(-1, 4), OFFSETS, st.just(0), st.integers(0, 9_000)
    ),
    st.tuples(st.just(RENAME), st.integers(-1, 4), st.integers(-1, 4), st.just(0), st.just(0)),
)
ALONE = st.sampled_from(
    [
        PosixBackend(),
        DirectPosixBackend(),
        StdioBackend(),
        NullBackend(),
    ]
)
MIXED = st.lists(st.sampled_from([PosixBackend(), StdioBackend(), NullBackend()]), min_size=4, max_size=4)
BACKENDS = st.one_of(ALONE, st.just(StdioBackend()), MIXED)
PLANS = st.lists(st.lists(ITEMS, min_size=1, max_size=12), min_size=1, max_size=4)


def run_plan(folder, core, plan, pace, uses, backend):
    """Everything that a plan leaves: results, dues, file contents by size, open files, failures."""
    folder.mkdir()
    for index, size in enumerate((0, 100, 9_000)):
        (folder / f"f{index}").write_bytes(bytes(range(250)) * (size // 250) + bytes(size % 250))
    slots = [
        FileSlot(path=bytes(folder / "f0"), writable=True, uses=uses[0]),
        FileSlot(path=bytes(folder / "f1"), uses=uses[1]),
        FileSlot(path=bytes(folder / "f2"), writable=True, uses=uses[2]),
        FileSlot(path=bytes(folder / "f3"), writable=True, create=True, uses=uses[3]),
    ]
    files = make_files(slots, backend=backend, core=core)
    assert files.core == core
    assert len(files) == len(slots)
    completed, lane = run_lane(files, *(make_batch(*items) for items in plan), pace=pace)
    still_open = [path for path in open_paths() if path.startswith(bytes(folder))]
    files.close_all()
    for done in completed:
        assert np.all(done.begin_ns >= done.due_ns)
        assert np.all(done.end_ns >= done.begin_ns)
        assert np.all(done.begin_ns[1:] >= done.end_ns[:-1])
        if pace is LoopPace.NONE:
            assert np.array_equal(done.due_ns, done.begin_ns)
    return {
        "results": [done.result.tolist() for done in completed],
        "due": [done.due_ns.tolist() for done in completed] if pace is LoopPace.ABSOLUTE else None,
        "done": lane.items_done,
        "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "holes": {path.name: zeros(path) for path in sorted(folder.iterdir())},
        "open": sorted(os.path.basename(path) for path in still_open),
        "open at the end": [path for path in open_paths() if path.startswith(bytes(folder))],
        "not direct": lane.not_direct,
        "failures": [(failure.slot, failure.call, failure.errno) for failure in files.failures()],
    }


def zeros(path):
    """Pages of 64 bytes that nothing was written to: a random one of that size is never all zero."""
    content = path.read_bytes()
    return [begin for begin in range(0, len(content), 64) if not any(content[begin : begin + 64])]


@settings(max_examples=150)
@given(
    plan=PLANS,
    pace=st.sampled_from(list(LoopPace)),
    uses=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    backend=BACKENDS,
)
def test_both_cores_do_the_same(tmp_path_factory, plan, pace, uses, backend):
    pytest.importorskip("dxt_replay.replay.engine._issue")
    folder = tmp_path_factory.mktemp("plans")
    if isinstance(backend, DirectPosixBackend):
        needs_direct(folder)
    python, compiled = (run_plan(folder / core, core, plan, pace, uses, backend) for core in ("python", "compiled"))
    assert python["open at the end"] == []
    assert compiled == python


def needs_direct(folder):
    try:
        check_direct(folder, [])
    except TargetError as error:
        pytest.skip(str(error))


def test_both_cores_have_the_same_constants():
    constants = pytest.importorskip("dxt_replay.replay.engine._issue").CONSTANTS
    homes = (issue, clock_module, items, base, lane_files, posix)
    shared = {name: next((getattr(home, name) for home in homes if hasattr(home, name)), None) for name in constants}
    assert {name: value for name, value in shared.items() if value is not None} == {
        name: value for name, value in constants.items() if "BUCKET" not in name
    }


# -------------------------------------------------------------------------------------------------- choice of core


def test_the_environment_decides_in_place_of_auto(monkeypatch):
    monkeypatch.setenv("DXT_REPLAY_CORE", "python")
    assert choose_core().name == "python"
    assert "DXT_REPLAY_CORE=python chose the Python issue loop" in (choose_core().warning or "")
    assert choose_core("python").warning is None
    assert make_files([]).core == "python"
    monkeypatch.setenv("DXT_REPLAY_CORE", "fast")
    with pytest.raises(UsageError, match="fast"):
        choose_core()
    assert choose_core("python").name == "python"


def test_a_missing_compiled_core_is_a_warning_or_an_error(monkeypatch):
    monkeypatch.delenv("DXT_REPLAY_CORE", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "dxt_replay.replay.engine._issue", None)
    chosen = choose_core()
    assert chosen.name == "python"
    assert "C compiler" in chosen.warning
    with pytest.raises(ReplayError, match="C compiler"):
        choose_core("compiled")
    monkeypatch.setenv("DXT_REPLAY_CORE", "compiled")
    with pytest.raises(ReplayError, match="C compiler"):
        make_files([])


def test_other_back_ends_run_in_python(core):
    class Wrapped(PosixBackend):
        pass

    assert make_files([], backend=Wrapped(), core=core).core == "python"
    assert make_files([], backend=PosixBackend(), core=core).core == core
    slots = [FileSlot(path=b"/a"), FileSlot(path=b"/b")]
    assert make_files(slots, backend=[StdioBackend(), PosixBackend()], core=core).core == core
    assert make_files(slots, backend=[Wrapped(), PosixBackend()], core=core).core == "python"
    assert make_files(slots, backend=[PosixBackend(), DirectPosixBackend()], core=core).core == "python"
    with pytest.raises(ValueError, match="zip"):
        make_files(slots, backend=[StdioBackend()], core=core)


def test_a_lane_needs_a_table_of_this_module():
    with pytest.raises(TypeError, match="make_files"):
        make_lane(object(), pace=LoopPace.NONE, start=StartGate(), stop=StopFlag())
