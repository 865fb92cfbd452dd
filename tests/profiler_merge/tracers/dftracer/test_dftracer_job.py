"""DFTracer's three generations as operations and spans: the real samples, and events written here."""

import gzip
import json

import numpy as np
import pytest

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.tracers.dftracer import read_dftracer
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import APIS, OPS, SPAN_KINDS, codes
from dxt_replay.traces.store.reader import open_capture
from tests.places import SHARED

SAMPLES = SHARED / "other-sources" / "dftracer"
T = 1_795_307_010_000_000
needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="the samples of other sources are not here")

RUNS = {
    "2023": ["unet3d_npz_rank0.trace-0-of-128.pfw.gz"],
    "1.0.5": ["cm1/cm1-DEFAULT-3537780-preload.pfw.gz", "cm1/cm1-DEFAULT-3537781-preload.pfw.gz"],
    "1.0.8": [f"unet3d_hdf5_8ranks/trace-{rank}-of-8.pfw.gz" for rank in range(4)],
    "2.2": ["v2.2/trace-c1b43580e3bedc0c-fork.pfw.gz", "v2.2/trace-f2d223cc00a85d9f-app.pfw.gz"],
}


def sample(name):
    return read_dftracer([SAMPLES / file for file in RUNS[name]])


def line(name, ts, dur=10, *, cat="POSIX", pid=100, tid=100, **args):
    return {
        "id": 1,
        "name": name,
        "cat": cat,
        "pid": pid,
        "tid": tid,
        "ts": T + ts,
        "dur": dur,
        "ph": "X",
        "args": args,
    }


def file_hash(path, value):
    return {"name": "FH", "cat": "dftracer", "pid": 100, "tid": 100, "ph": "M", "args": {"name": path, "value": value}}


def write(path, *events):
    path.write_text("[\n" + "".join(json.dumps(event) + "\n" for event in events) + "]")
    return path


def operations(path):
    job = read_dftracer([path])
    return [
        (OPS[row["op"]], APIS[row["api"]], job.paths[row["file"]].decode(), int(row["offset"]), int(row["length"]))
        for rank in range(job.nprocs)
        for row in job.of_rank(rank)[0]
    ]


@needs_samples
@pytest.mark.parametrize(
    ("name", "processes", "rows", "spans"),
    [
        ("2023", [21], 88_008, {"step": 5, "compute": 5, "input_wait": 5, "checkpoint": 1}),
        ("1.0.5", [1, 1], None, None),
        ("1.0.8", [7, 7, 7, 7], 5_213, {"step": 25, "compute": 25, "input_wait": 25, "checkpoint": 1}),
        ("2.2", [2], 143, {"step": 6, "compute": 12, "input_wait": 6, "checkpoint": 2}),
    ],
)
def test_the_generations(name, processes, rows, spans):
    job = sample(name)
    assert [len(rank.processes) for rank in job.ranks] == processes
    found = [job.of_rank(rank)[0] for rank in range(job.nprocs)]
    if rows is not None:
        assert sum(map(len, found)) == rows
    data = np.concatenate(found)
    assert (data["offset"][np.isin(data["op"], [OPS.index("read"), OPS.index("write")])] >= 0).all()
    # Within a thread nothing overlaps, so that no event was taken twice.
    for rank in found:
        for lane in np.unique(rank["thread"]):
            mine = rank[rank["thread"] == lane]
            assert (mine["start_ns"][1:] >= np.maximum.accumulate(mine["end_ns"])[:-1]).all()
    if spans is None:
        assert not job.spans
    else:
        kinds = job.spans[0].kind
        assert {kind: int((kinds == SPAN_KINDS.index(kind)).sum()) for kind in spans} == spans


@needs_samples
def test_every_position_that_the_program_asked_for_agrees():
    assert not any("calls are missing" in text for text in sample("2023").warnings)


@needs_samples
def test_dlio_computes_and_waits_as_its_events_say():
    spans = sample("1.0.8").spans[0]
    length_s = (spans.end_ns - spans.start_ns) / 1e9
    compute, wait = (spans.kind == SPAN_KINDS.index(kind) for kind in ("compute", "input_wait"))
    assert length_s[compute].sum() == pytest.approx(34.0, abs=0.1)
    assert 15 < length_s[wait].sum() < 21
    steps = np.flatnonzero(spans.kind == SPAN_KINDS.index("step"))
    assert (spans.start_ns[steps][1:] >= spans.end_ns[steps][:-1]).all()


@needs_samples
def test_without_descriptors_only_what_is_open_once_has_sure_offsets(tmp_path):
    job = sample("2.2")
    assert {job.paths[file].rsplit(b"/")[-1]: count for file, count in job.suspect.items()} == {b"f0.bin": 3}
    result = merge([SAMPLES / file for file in RUNS["2.2"]], [], tmp_path / "a.capture", MergeOptions())
    assert result.info.coverage.bytes is None
    files = open_capture(result.capture).files
    states = dict(zip(files["path"].to_pylist(), files["offsets"].to_pylist(), strict=True))
    assert states["/scratch/df/data/f0.bin"] == "suspect"
    assert states["/scratch/df/data/f1.bin"] == "as recorded"
    assert result.spans == 26


def test_descriptors(tmp_path):
    path = write(
        tmp_path / "a.pfw",
        file_hash("/d/x", 7),
        line("open", 0, ret=3, flags=0, fhash=7),
        line("open", 20, ret=4, flags=0, fhash=7),
        line("open", 40, ret=-1, flags=0, fhash=7),
        line("read", 60, ret=10, count=10, fd=3, fhash=7),
        line("read", 80, ret=20, count=99, fd=4, fhash=7),
        line("lseek64", 100, ret=50, whence=0, offset=50, fd=3, fhash=7),
        line("read", 120, ret=0, count=10, fd=3, fhash=7),
        line("pread", 140, ret=5, offset=1000, count=5, fd=3, fhash=7),
        line("read", 160, ret=-1, count=10, fd=3, fhash=7),
        line("close", 180, ret=0, fd=3, fhash=7),
        line("read", 200, ret=1, count=1, fd=9, fhash=7),
    )
    moved = [row[3:] for row in operations(path) if row[0] == "read"]
    assert moved == [(0, 10), (0, 20), (50, 0), (1000, 5), (-1, 1)]
    assert [row[0] for row in operations(path) if row[0] != "read"] == ["open", "open", "seek", "close"]


def test_streams_and_appends(tmp_path):
    path = write(
        tmp_path / "a.pfw",
        file_hash("/d/x", 7),
        line("fopen64", 0, cat="STDIO", mode="w", fhash=7),
        line("fwrite", 20, cat="STDIO", ret=3, count=3, size=8, fhash=7),
        line("fseek", 40, cat="STDIO", ret=0, offset=4, whence=0, fhash=7),
        line("fwrite", 60, cat="STDIO", ret=1, count=1, size=2, fhash=7),
        line("fclose", 80, cat="STDIO", fhash=7),
        line("open", 100, ret=3, flags=0o2001, fhash=7),
        line("write", 120, ret=6, count=6, fd=3, fhash=7),
    )
    assert operations(path) == [
        ("open", "STDIO", "/d/x", -1, 0), ("write", "STDIO", "/d/x", 0, 24), ("seek", "STDIO", "/d/x", 4, 0),
        ("write", "STDIO", "/d/x", 4, 2), ("close", "STDIO", "/d/x", -1, 0), ("open", "POSIX", "/d/x", -1, 0),
        ("write", "POSIX", "/d/x", 24, 6),
    ]  # fmt: skip


def test_forked_workers_and_folders(tmp_path):
    path = write(
        tmp_path / "a.pfw",
        file_hash("/d", 1),
        file_hash("/d/x", 7),
        line("__xstat", 0, fhash=1),
        line("open", 20, ret=3, flags=0, fhash=7),
        line("fork", 40, ret=0, tid=200),
        line("read", 60, ret=10, count=10, fd=3, fhash=7, tid=200),
        line("fork", 45, ret=200),
        line("read", 80, ret=10, count=10, fd=3, fhash=7),
        line("read", 100, ret=4, count=4, fd=3, fhash=7, tid=101),
    )
    (rank,) = read_dftracer([path]).ranks
    assert [process.pid for process in rank.processes] == [100, 200]
    found = operations(path)
    assert {row[2] for row in found} == {"/d/x"}
    assert [row[3] for row in found if row[0] == "read"] == [0, 10, 20]


def test_a_stat_whose_result_is_not_recorded(tmp_path):
    """A file that is made later was not there; one that is opened as it is was."""
    path = write(
        tmp_path / "a.pfw",
        file_hash("/d/made", 7),
        file_hash("/d/read", 8),
        line("__xstat", 0, fhash=7),
        line("__xstat", 20, fhash=8),
        line("open", 40, ret=3, flags=0o1101, fhash=7),
        line("open", 60, ret=4, flags=0, fhash=8),
        line("__xstat", 80, fhash=7),
    )
    assert [row[:3:2] for row in operations(path)] == [
        ("stat", "/d/read"), ("open", "/d/made"), ("open", "/d/read"), ("stat", "/d/made"),
    ]  # fmt: skip
    rows, _ = read_dftracer([path]).of_rank(0)
    assert rows["open_flags"][rows["op"] == OPS.index("open")].tolist() == [2 | 8 | 32, 1]
    assert set(rows["open_flags"][rows["op"] != OPS.index("open")].tolist()) == {-1}


def test_steps_from_one_fetch_to_the_next(tmp_path):
    events = [file_hash("/d/x", 7), line("open", 0, ret=3, flags=0, fhash=7)]
    for step in range(4):
        at = 1000 * (step + 1)
        events += [
            line("read", at + 10, ret=10, count=10, fd=3, fhash=7),
            line("fetch", at, 100, cat="dataloader", step=0),
            line("forward", at + 150, 300, cat="compute"),
            line("backward", at + 500, 200, cat="compute"),
            line("all_reduce", at + 750, 50, cat="comm"),
        ]
    events.append(line("epoch.block", 900, 2500, cat="pipeline"))
    result = merge([write(tmp_path / "a.pfw", *events)], [], tmp_path / "a.capture", MergeOptions())
    capture = open_capture(result.capture)
    spans = capture.spans
    kinds = codes(spans, "kind")
    start = (spans["start_ns"].to_numpy() + capture.info.job.zero_ns) // 1000 - T

    def found(kind):
        mine = kinds == SPAN_KINDS.index(kind)
        ends = start + (spans["end_ns"].to_numpy() - spans["start_ns"].to_numpy()) // 1000
        return list(zip(start[mine].tolist(), ends[mine].tolist(), strict=True))

    assert found("step") == [(1000, 2000), (2000, 3000), (3000, 3400), (4000, 4700)]
    assert found("input_wait") == [(at, at + 100) for at in (1000, 2000, 3000, 4000)]
    assert found("collective") == [(at + 750, at + 800) for at in (1000, 2000, 3000, 4000)]
    assert len(found("compute")) == 9  # one is cut where its epoch, and with it its step, ends
    (rows,) = capture.operations(0)
    assert rows["step"].to_pylist() == [-1, 0, 1, 2, 3]


def test_data_that_do_not_match_their_checksum_are_said_to_be_damaged(tmp_path):
    events = [file_hash("/d/x", 7), *(line("open", at, ret=3, flags=0, fhash=7) for at in range(9))]
    first = gzip.compress(b"".join(json.dumps(event).encode() + b"\n" for event in events))
    path = tmp_path / "a.pfw.gz"
    path.write_bytes(first + first[:-5] + bytes([first[-5] ^ 1]) + first[-4:])  # a bit of the second member's CRC-32
    job = read_dftracer([path])
    assert any(text.startswith("the compressed data of a.pfw.gz do not match") for text in job.warnings)
    assert not any("is cut off" in text for text in job.warnings)
    assert len(job.of_rank(0)[0]) >= 9


def test_damage_and_what_cannot_be_used(tmp_path):
    whole = b"".join(
        json.dumps(event).encode() + b"\n"
        for event in [file_hash("/d/x", 7), *(line("open", at, ret=3, flags=0, fhash=7) for at in range(300))]
    )
    path = tmp_path / "a.pfw.gz"
    path.write_bytes(gzip.compress(whole[:1000]) + gzip.compress(whole[1000:])[:-30])
    job = read_dftracer([path])
    assert any(text.startswith("the end of a.pfw.gz is cut off") for text in job.warnings)
    assert 0 < len(job.of_rank(0)[0]) <= 300
    path.write_bytes(whole.replace(b'"cat"', b'"cat', 1) + b'{"name": "read", "cat": "POS')
    assert "2 damaged lines left out" in read_dftracer([path]).warnings
    without_sizes = write(tmp_path / "b.pfw", {**line("read", 0), "args": {}})
    with pytest.raises(LogError, match="DFTRACER_INC_METADATA=1"):
        read_dftracer([without_sizes])
    path.write_text("[\n")
    with pytest.raises(LogError, match="holds no event"):
        read_dftracer([path])
