"""What no trace holds: how it is known, how it changes the coverage, and what may still be judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import CaptureInfo, Coverage, Job, Unseen
from dxt_replay.traces.unseen import (
    all_unseen,
    hidden_reads,
    mapped_files,
    received,
    unseen_of,
    watched,
    why_not_judged,
    with_unseen,
)
from tests.capture_builder import File, build_capture, files_table, read

WHOLE = Coverage(bytes=1.0, operations=1.0)
SHARD = Unseen(kind="mapped", name="/data/shard", bytes=300)
STORE = Unseen(kind="socket", name="10.0.0.1:9000", bytes=600)
OBJECTS = Unseen(kind="objects", name="DAOS", bytes=400)
PERHAPS = Unseen(kind="objects", name="DFS", bytes=None)
UNKNOWN = Unseen(kind="mapped", name="/data/index", bytes=None)


def test_the_bytes_of_a_coverage_count_what_was_read_past_the_trace() -> None:
    assert with_unseen(WHOLE, 100, (SHARD, STORE)).bytes == 0.1
    assert with_unseen(Coverage(bytes=0.5, operations=0.5), 100, (SHARD,)).bytes == 0.125
    assert with_unseen(Coverage(bytes=None, operations=None), 0, (SHARD,)).bytes == 0
    assert with_unseen(Coverage(bytes=None, operations=None), 100, (SHARD,)).bytes is None
    assert with_unseen(WHOLE, 100, (SHARD, UNKNOWN)).bytes is None
    assert with_unseen(WHOLE, 100, ()) is WHOLE
    assert with_unseen(WHOLE, 100, (SHARD,)).unseen == (SHARD,)
    assert with_unseen(WHOLE, 100, (SHARD,)).operations == 1.0
    assert with_unseen(WHOLE, 100, (OBJECTS,)).operations is None


@pytest.mark.parametrize(
    ("counted", "unseen", "why"),
    [
        (100, (), None),
        (1_000_000, (SHARD,), None),
        (100, (UNKNOWN,), "1 file was opened and never read by a call that the recorder sees (mapped, sendfile"),
        (
            100,
            (SHARD, STORE),
            "the trace holds 10.0 % of the bytes; at least 300 B through mapped files and 600 B through sockets are "
            "not in it",
        ),
        (100, (OBJECTS,), "the trace holds 20.0 % of the bytes; at least 400 B through calls of an object store are"),
        (100, (PERHAPS,), "bytes were moved by DFS calls, and whether calls in the trace made them is not known"),
    ],
)
def test_too_little_is_not_judged(counted: int, unseen: tuple[Unseen, ...], why: str | None) -> None:
    found = why_not_judged(with_unseen(WHOLE, counted, unseen), unseen)
    assert (found is None) == (why is None)
    assert found is None or found.startswith(why or "")


def test_a_file_with_data_that_is_opened_and_never_read_was_mapped(tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.write_bytes(b"x")
    empty.touch()
    opened = {"posix_opens": 1}
    positioned, used = opened | {"posix_seeks": 1}, opened | {"posix_reads": 2}
    table = files_table(
        [
            File(str(full), counters=opened),
            File(str(empty), counters=opened),
            File(str(tmp_path), counters=opened),
            File("/not/here/any/more", counters=opened),
            File("/not/here/either", counters=positioned),
            File(str(full) + "-read", counters=used),
            File("/dev/shm/torch_1", counters=opened),
        ],
        [],
    )
    before, after = (0, full.stat().st_mtime_ns - 1), (0, full.stat().st_mtime_ns)
    assert mapped_files(table, before) == [str(full), "/not/here/either"]
    assert mapped_files(table, after) == ["/not/here/either"], "what the job wrote is not its input"


def test_what_a_recording_saw_is_known_and_the_rest_is_not() -> None:
    assert all_unseen((SHARD, STORE), ["/data/shard", "/data/index"]) == (SHARD, STORE, UNKNOWN)


def test_the_log_of_a_recording_leads_to_what_it_saw(tmp_path: Path) -> None:
    log = tmp_path / "run.recording" / "logs" / "rank0" / "2026" / "11" / "23" / "a.darshan"
    log.parent.mkdir(parents=True)
    assert watched([log]) == ()
    (tmp_path / "run.recording" / "recording.txt").touch()
    assert watched([log, log]) == ()
    found = {"mapped": {"/data/shard": {"size": 900, "bytes": 300}}, "received": {"10.0.0.1:9000": 600}}
    (tmp_path / "run.recording" / "unseen.json").write_text(json.dumps(found))
    assert watched([log, log]) == (SHARD, STORE)
    for damage in ("{", "[]", '{"mapped": {"/a": {}}, "received": {}}', '{"mapped": {}, "received": {"a": -1}}'):
        (tmp_path / "run.recording" / "unseen.json").write_text(damage)
        with pytest.raises(LogError, match=r"unseen.json is damaged"):
            watched([log])


def test_captures_keep_it_and_those_of_older_releases_show_what_their_counters_say(tmp_path: Path) -> None:
    coverage = with_unseen(WHOLE, 100, (SHARD, STORE))
    said = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), coverage=coverage)
    new = build_capture(tmp_path / "new", files=["/a"], ops=[read(0, length=100)], info=said)
    assert unseen_of(new.info, new.files) == (SHARD, STORE)
    counters = {"posix_opens": 1, "posix_seeks": 1}
    old = build_capture(tmp_path / "old", files=[File("/data/index", counters=counters)], ops=[])
    assert unseen_of(old.info, old.files) == (UNKNOWN,)


def test_a_ring_of_requests_leaves_a_file_that_was_read_in_part_unknown(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(bytes(100))
    for moved, names in ((99, ["cp by io_uring"]), (100, []), (0, ["cp by io_uring"])):
        counters = {"posix_opens": 1} | ({"posix_reads": 1, "posix_bytes_read": moved} if moved else {})
        found = hidden_reads(["cp by io_uring"], files_table([File(str(path), counters=counters)]), (0, 1))
        assert [each.name for each in found] == names
    assert hidden_reads([], files_table([File(str(path), counters={"posix_opens": 1})]), (0, 1)) == ()


def test_a_trace_and_the_watch_count_each_peer_once() -> None:
    assert received({"10.0.0.1:9000": 700}, 0, 100, (SHARD, STORE)) == [SHARD, replace(STORE, bytes=700)]
    assert received({"10.0.0.1:9000": 500}, 0, 100, (STORE,)) == [STORE]
    assert received({"10.0.0.2:80": 1}, 0, 100, ()) == [Unseen(kind="socket", name="10.0.0.2:80", bytes=1)]


def test_bytes_from_nobody_knows_where_matter_from_a_hundredth_on() -> None:
    assert received({}, 10, 1000, ()) == []
    (unknown,) = received({}, 11, 1000, ())
    assert (unknown.kind, unknown.bytes) == ("socket", None)
    assert received({}, 11, 1000, (STORE,)) == [STORE]
    why = why_not_judged(with_unseen(WHOLE, 1000, (unknown,)), (unknown,))
    assert why == "bytes were received through sockets from peers that the trace does not show"
