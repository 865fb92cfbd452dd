"""Replays through each interface: what was recorded is done, whatever makes the calls."""

import json

import pytest

from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.records import API_CHOICES
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import File, Op, read, write
from tests.places import needs_mpi
from tests.replay.run.test_story import mpi_job, staged
from tests.replay.run.test_story import replayed as replay

MS = 1_000_000


def made(op, file_id, at, **columns):
    return Op(op, file_id, start_ns=at * MS, origin="reconstructed", **{"offset": -1, **columns})


def checkpointing(folder):
    """Reads of one file by two lanes; a checkpoint that is written to a stream, renamed, and read again."""
    ops = [read(0, lane=i % 2, start_ns=i * MS, offset=4096 * i, length=4096) for i in range(10)]
    ops += [
        made("open", 0, 0.5),
        made("seek", 0, 1.5, offset=5000),
        made("stat", 3, 2.5),
        made("open", 1, 11, api="STDIO"),
        *(
            write(1, start_ns=(12 + i) * MS, offset=1000 * i, length=1000, api="STDIO", origin="reconstructed")
            for i in range(5)
        ),
        made("sync", 1, 18, api="STDIO"),
        made("close", 1, 19, api="STDIO"),
        made("rename", 1, 20, other_file_id=2),
        read(2, start_ns=21 * MS, length=5000),
        made("close", 0, 22),
    ]
    files = [
        "/data/train.bin", File("/ckpt/model.tmp", size=5000), File("/ckpt/model", size=5000), File("/data/x", size=7)
    ]  # fmt: skip
    return staged(folder, ops, files)


def collective(folder, *, second=(0, 1), lanes=(0, 0)):
    """Two ranks that read two files together; `second`: the order in which rank 1 does so."""
    ops = []
    for rank in range(2):
        for i, file in enumerate((0, 1) if rank == 0 else second):
            for k in range(3):
                columns = {"offset": 8192 * k + 4096 * rank, "length": 4096, "api": "MPIIO_COLL"}
                ops += [read(file, rank=rank, lane=lanes[i], start_ns=(10 * i + k) * MS, **columns)]
        ops.append(write(2, rank=rank, start_ns=50 * MS, offset=100 * rank, length=100, api="MPIIO_COLL"))
        ops.append(read(0, rank=rank, start_ns=60 * MS, offset=0, length=10, api="MPIIO"))
    return staged(folder, ops, ["/shared/a", "/shared/b", "/shared/out"])


def replayed(source, output="out.capture", pace=Pace.THINK, **choices):
    """The object that `run --json` prints, and the replay."""
    found = replay(source, pace, output, **choices).as_json()
    return found, open_capture(source.path.parent / output)


@pytest.mark.parametrize("api", [api for api in API_CHOICES if api != "s3"])
def test_every_interface_does_what_was_recorded_and_does_it_again(tmp_path, api):
    if api in ("mpiio", "auto"):
        pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    source = checkpointing(tmp_path)
    for number in range(2):
        found, made = replayed(source, f"{number}.capture", api=api)
        used = {"auto": ["posix", "stdio"], "hdf5": ["posix", "stdio"]}.get(api, [api])
        assert (found["api"], found["backends"]) == (api, used)
        assert (found["failed"], found["short"], found["errors"]) == (0, 0, {})
        assert found["left_out"] == (1 if api in ("posix", "mpiio") else 0), "without streams there is no flush"
        assert min(found["overhead"].values()) > 0
        assert compare(source, made).exact.differences == ()
    assert sorted(path.name for path in (tmp_path / "twin").rglob("ckpt/*")) == ([] if api == "null" else ["model"])


def test_direct_requests_move_the_same(tmp_path):
    ops = [read(0, start_ns=i * MS, offset=5000 * i + 7, length=5000) for i in range(9)]
    ops += [write(1, start_ns=(20 + i) * MS, offset=4096 * i, length=4096 if i < 4 else 33) for i in range(5)]
    source = staged(tmp_path, ops, ["/data/train.bin", "/out"])
    try:
        found, made = replayed(source, direct=True)
    except TargetError as error:
        pytest.skip(str(error))
    assert (found["failed"], found["short"], found["direct"], found["not_direct"]) == (0, 0, True, 1)
    assert any("1 writes went through the page cache" in text for text in found["warnings"])
    assert compare(source, made).exact.differences == ()


# ------------------------------------------------------------------------------------------------ collective MPI-IO

TOGETHER = """
import json, os, sys
from pathlib import Path
from dxt_replay.replay.commands.session import ending_together
from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.replay.ranks.mpi import connect
from dxt_replay.replay.run import feeder
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.store.reader import open_capture
from tests.replay.run.test_story import replayed
world, feed = connect(), feeder.lanes_to_feed

def stopping(lanes):
    if any(lane.items_done for lane in lanes):
        raise ReplayError("no room on rank 1")
    return feed(lanes)

with ending_together(world):
    for folder in map(Path, sys.argv[1:]):
        if folder.name == "failing" and world.rank == 1:
            feeder.lanes_to_feed = stopping
        result = replayed(open_capture(folder / "source.capture"), Pace.THINK, comm=world)
        if result is not None:
            (folder / "result").write_text(json.dumps(result.as_json()))
"""
COLLECTIVE = {
    "collective": ({}, ["mpiio", "mpiio_collective"], None),
    "orders": ({"second": (1, 0)}, ["mpiio"], "different orders"),
    "numbers": ({"second": (0, 0)}, ["mpiio", "mpiio_collective"], "different numbers"),
    "threads": ({"lanes": (0, 1)}, ["mpiio"], "several threads"),
    # Rank 0 then waits in a call that nothing else could end.
    "failing": ({}, [], None),
}


@needs_mpi
def test_collective_operations_are_made_by_all_ranks_or_are_independent_and_a_failure_ends_all(tmp_path):
    sources = {}
    for name, (shape, *_) in COLLECTIVE.items():
        (tmp_path / name).mkdir()
        sources[name] = collective(tmp_path / name, **shape)
    ended = mpi_job(2, "-c", TOGETHER, *(tmp_path / name for name in COLLECTIVE))
    assert ended.returncode != 0
    assert "process 1: no room on rank 1" in ended.stderr
    assert not (tmp_path / "failing/r.capture").exists()
    del sources["failing"]
    for name, source in sources.items():
        _, used, warning = COLLECTIVE[name]
        found = json.loads((tmp_path / name / "result").read_text())
        assert (found["backends"], found["failed"], found["short"]) == (used, 0, 0)
        assert [warning in text for text in found["warnings"]] == [True] if warning else found["warnings"] == []
        assert compare(source, open_capture(tmp_path / name / "r.capture")).exact.differences == ()


def test_one_process_for_several_ranks_makes_collective_operations_independent(tmp_path):
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    source = collective(tmp_path)
    found, made = replayed(source)
    assert found["backends"] == ["mpiio"]
    assert any("not each process replays one rank" in text for text in found["warnings"])
    assert compare(source, made).exact.differences == ()
