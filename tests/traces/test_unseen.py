"""What no trace holds: how it is known, how it changes the coverage, and what may still be judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import CaptureInfo, Coverage, Job, Unseen
from dxt_replay.traces.unseen import (
    StreamTotals,
    all_unseen,
    hidden_reads,
    mapped_files,
    received,
    unseen_of,
    watched,
    why_not_judged,
    with_mapped,
    with_requests,
    with_unseen,
    without_requests,
)
from tests.capture_builder import File, build_capture, files_table, read

WHOLE, NONE = Coverage(bytes=1.0, operations=1.0), Coverage(bytes=None, operations=None)
SHARD = Unseen(kind="mapped", name="/data/shard", bytes=300)
STORE = Unseen(kind="socket", name="10.0.0.1:9000", bytes=600)
OBJECTS = Unseen(kind="objects", name="DAOS", bytes=400)
PERHAPS = Unseen(kind="objects", name="DFS", bytes=None)
NOBODY = Unseen(kind="socket", name="peers that the trace does not show", bytes=None)
UNKNOWN = Unseen(kind="mapped", name="/data/index", bytes=None)


@pytest.mark.parametrize(
    ("coverage", "counted", "unseen", "share"),
    [
        (WHOLE, 100, (SHARD, STORE), (0.1, 1.0)),
        (Coverage(bytes=0.5, operations=0.5), 100, (SHARD,), (0.125, 0.5)),
        (NONE, 0, (SHARD,), (0, None)),
        (NONE, 100, (SHARD,), (None, None)),
        (WHOLE, 100, (SHARD, UNKNOWN), (None, 1.0)),
        (WHOLE, 100, (OBJECTS,), (0.2, None)),
        (WHOLE, 100, (), (1.0, 1.0)),
    ],
)
def test_the_bytes_of_a_coverage_count_what_was_read_past_the_trace(
    coverage: Coverage, counted: int, unseen: tuple[Unseen, ...], share: tuple[float | None, float | None]
) -> None:
    found = with_unseen(coverage, counted, unseen)
    assert ((found.bytes, found.operations), found.unseen) == (share, unseen)


@pytest.mark.parametrize(
    ("counted", "unseen", "why"),
    [
        (100, (), None),
        (1_000_000, (SHARD,), None),
        (1000, (NOBODY,), "bytes were received through sockets from peers that the trace does not show"),
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
            File(str(full), counters=opened), File(str(empty), counters=opened), File(str(tmp_path), counters=opened),
            File("/not/here/any/more", counters=opened), File("/not/here/either", counters=positioned),
            File(str(full) + "-read", counters=used), File("/dev/shm/torch_1", counters=opened),
        ],
        [],
    )  # fmt: skip
    before, after = (0, full.stat().st_mtime_ns - 1), (0, full.stat().st_mtime_ns)
    assert mapped_files(table, before) == [str(full), "/not/here/either"]
    assert mapped_files(table, after) == ["/not/here/either"], "what the job wrote is not its input"


@pytest.mark.parametrize(("moved", "mapped"), [(2000, 0), (1000, 1), (1999, 1), (3000, 1)])
def test_a_file_whose_reads_are_booked_to_another_was_read(moved: int, mapped: int, tmp_path: Path) -> None:
    """So Darshan 3.5.0 did where two threads opened and closed at one time."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(bytes(1000))
    once = {"posix_opens": 1}
    files = [
        File(str(paths[0]), counters=once),
        File(str(paths[1]), counters={**once, "posix_bytes_read": moved, "posix_reads": 4}),
    ]
    assert len(mapped_files(files_table(files, []), (0, 1))) == mapped


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


@pytest.mark.parametrize(
    ("moved", "mode", "hidden"),
    [(99, 0o644, True), (100, 0o644, False), (0, 0o644, True), (99, 0o744, False)],  # last: a program's own file
)
def test_a_ring_of_requests_leaves_a_file_that_was_read_in_part_unknown(
    tmp_path: Path, moved: int, mode: int, hidden: bool
) -> None:
    path = tmp_path / "part"
    path.write_bytes(bytes(100))
    path.chmod(mode)
    counters = {"posix_opens": 1} | ({"posix_reads": 1, "posix_bytes_read": moved} if moved else {})
    table = files_table([File(str(path), counters=counters)])
    assert [each.name for each in hidden_reads(["cp by io_uring"], table, (0, 1))] == ["cp by io_uring"] * hidden
    assert hidden_reads([], table, (0, 1)) == ()


@pytest.mark.parametrize(
    ("peers", "unknown", "seen", "expected"),
    [
        ({"10.0.0.1:9000": 700}, 0, (SHARD, STORE), [SHARD, replace(STORE, bytes=700)]),
        ({"10.0.0.1:9000": 500}, 0, (STORE,), [STORE]),
        ({"10.0.0.2:80": 1}, 0, (), [Unseen(kind="socket", name="10.0.0.2:80", bytes=1)]),
        # Bytes from nobody knows where matter from a hundredth on, unless a peer is known.
        ({}, 10, (), []),
        ({}, 11, (), [NOBODY]),
        ({}, 11, (STORE,), [STORE]),
    ],
)
def test_a_trace_and_the_watch_count_each_peer_once(
    peers: dict[str, int], unknown: int, seen: tuple[Unseen, ...], expected: list[Unseen]
) -> None:
    assert received(peers, unknown, 1000, seen) == expected


HALF = Coverage(bytes=0.5, operations=0.5, without_streams=(1.0, 1.0))
LARGE = replace(STORE, bytes=10_000)
OF_STORE = with_unseen(WHOLE, 100, (STORE,))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # Requests move their bytes, up to 4 KiB of headers each and two per cent, on the sockets to their servers.
        (without_requests((STORE, SHARD), 500, 1, {STORE.name}, ()), (SHARD,)),
        (without_requests((LARGE,), 5_000, 1, (), {"store:9000"}), (replace(LARGE, bytes=10_000 - 5_100 - 4_096),)),
        (without_requests((LARGE, SHARD), 5_000, 1, (), {"store:80"}), (LARGE, SHARD)),
        (with_requests(OF_STORE, 100, 600, ()), replace(WHOLE, unseen=())),
        (with_requests(OF_STORE, 100, 300, (replace(STORE, bytes=300),)).bytes, 400 / 700),
        (with_requests(NONE, 0, 9, ()), WHOLE),
        (with_requests(NONE, 100, 9, ()).bytes, None),
        (with_requests(HALF, 100, 100, ()).without_streams, (1.0, 1.0)),
        # The reads of mapped files, all of which are traced, beside what was counted.
        (with_mapped(Coverage(bytes=0.5, operations=0.5), 100, 100), (Coverage(bytes=0.75, operations=0.5), 200)),
        (with_mapped(NONE, 0, 100), (Coverage(bytes=1.0, operations=None), 100)),
        (with_mapped(NONE, 100, 100), (NONE, 200)),
        # Without streams, half of the bytes: 50 of 350.
        (with_unseen(HALF, 100, (SHARD,)).without_streams, (50 / 350, 1.0)),
        (with_unseen(HALF, 100, (OBJECTS,)).without_streams, (50 / 450, None)),
        *((bool(StreamTotals(*each).warnings()), much) for each, much in (
            ((9_999, (1 << 20) - 1), False), ((10_000, 0), True), ((1, 1 << 20), True))),
    ],
)  # fmt: skip
def test_what_is_known_of_requests_mapped_files_and_streams(found: object, expected: object) -> None:
    assert found == expected
