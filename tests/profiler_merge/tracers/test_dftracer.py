"""DFTracer's three generations as operations and spans: the real samples, and events written here."""

import gzip
import json

import numpy as np
import pytest

from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.tracers.dftracer import read_dftracer
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import APIS, OPS, SPAN_KINDS
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


def line(name, ts, dur=10, *, cat="POSIX", pid=100, tid=100, **args):
    event = {"id": 1, "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": T + ts, "dur": dur, "ph": "X"}
    return {**event, "args": args}


def stdio(name, ts, **args):
    return line(name, ts, cat="STDIO", fhash=7, **args)


def said(event, **args):
    return {"name": event, "cat": "dftracer", "pid": 100, "tid": 100, "ph": "M", "args": args}


def file_hash(path, value):
    return said("FH", name=path, value=value)


def write(path, *events):
    path.write_text("[\n" + "".join(json.dumps(event) + "\n" for event in events) + "]")
    return path


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
def test_the_generations(name, processes, rows, spans, tmp_path):
    files = [SAMPLES / file for file in RUNS[name]]
    job = read_dftracer(files)
    assert [len(rank.processes) for rank in job.ranks] == processes
    found = [job.of_rank(rank)[0] for rank in range(job.nprocs)]
    assert rows is None or sum(map(len, found)) == rows
    data = np.concatenate(found)
    assert (data["offset"][np.isin(data["op"], [OPS.index("read"), OPS.index("write")])] >= 0).all()
    # Within a thread nothing overlaps, so that no event was taken twice.
    for rank in found:
        for lane in np.unique(rank["thread"]):
            mine = rank[rank["thread"] == lane]
            assert (mine["start_ns"][1:] >= np.maximum.accumulate(mine["end_ns"])[:-1]).all()
    kinds = job.spans[0].kind if spans else ()
    assert {kind: int((kinds == SPAN_KINDS.index(kind)).sum()) for kind in spans or ()} == (spans or job.spans)
    # Every position that the program asked for agrees.
    assert not any("calls are missing" in text for text in job.warnings)
    if name == "1.0.8":  # DLIO computes and waits as its events say
        length_s = (job.spans[0].end_ns - job.spans[0].start_ns) / 1e9
        assert length_s[kinds == SPAN_KINDS.index("compute")].sum() == pytest.approx(34.0, abs=0.1)
        assert 15 < length_s[kinds == SPAN_KINDS.index("input_wait")].sum() < 21
    if name == "2.2":  # without descriptors only what is open once has sure offsets
        result = merge(files, [], tmp_path / "a.capture")
        assert (result.info.coverage.bytes, result.spans) == (None, 26)
        table = open_capture(result.capture).files
        states = dict(zip(table["path"].to_pylist(), table["offsets"].to_pylist(), strict=True))
        assert [states[f"/scratch/df/data/f{n}.bin"] for n in (0, 1)] == ["suspect", "as recorded"]


X = file_hash("/d/x", 7)
CALLS = {
    "descriptors": (
        [
            *(X, line("open", 0, ret=3, flags=0, fhash=7), line("open", 20, ret=4, flags=0, fhash=7)),
            line("open", 40, ret=-1, flags=0, fhash=7),
            line("read", 60, ret=10, count=10, fd=3, fhash=7),
            line("read", 80, ret=20, count=99, fd=4, fhash=7),
            line("lseek64", 100, ret=50, whence=0, offset=50, fd=3, fhash=7),
            line("read", 120, ret=0, count=10, fd=3, fhash=7),
            line("pread", 140, ret=5, offset=1000, count=5, fd=3, fhash=7),
            line("read", 160, ret=-1, count=10, fd=3, fhash=7),
            line("close", 180, ret=0, fd=3, fhash=7),
            line("read", 200, ret=1, count=1, fd=9, fhash=7),
        ],
        "open x -1 0, open x -1 0, read x 0 10, read x 0 20, seek x 50 0, read x 50 0, read x 1000 5, close x -1 0, "
        "read x -1 1",
    ),
    "streams and appends": (
        [
            *(X, stdio("fopen64", 0, mode="w"), stdio("fwrite", 20, ret=3, count=3, size=8)),
            *(stdio("fseek", 40, ret=0, offset=4, whence=0), stdio("fwrite", 60, ret=1, count=1, size=2)),
            *(stdio("fseek", 70, ret=0, offset=-1, whence=1), stdio("fflush", 75), stdio("fclose", 80)),
            line("open", 100, ret=3, flags=0o2001, fhash=7),
            line("write", 120, ret=6, count=6, fd=3, fhash=7),
        ],
        "STDIO open x -1 0, STDIO write x 0 24, STDIO seek x 4 0, STDIO write x 4 2, STDIO seek x 5 0, "
        "STDIO sync x -1 0, STDIO close x -1 0, open x -1 0, write x 24 6",
    ),
    # Both write into one file, and the child has the parent's pid.
    "a forked worker shares descriptors, and a folder is no file": (
        [
            *(file_hash("/d", 1), X, line("__xstat", 0, fhash=1), line("open", 20, ret=3, flags=0, fhash=7)),
            *(line("fork", 40, ret=0, tid=200), line("read", 60, ret=10, count=10, fd=3, fhash=7, tid=200)),
            *(line("fork", 45, ret=200), line("read", 80, ret=10, count=10, fd=3, fhash=7)),
            line("read", 100, ret=4, count=4, fd=3, fhash=7, tid=101),
        ],
        "open x -1 0, read x 0 10, read x 10 10, read x 20 4",
    ),
    # A file that is made later was not there; one that is opened as it is was.
    "a stat whose result is not recorded": (
        [
            *(file_hash("/d/made", 7), file_hash("/d/read", 8), line("__xstat", 0, fhash=7)),
            *(line("__xstat", 20, fhash=8), line("open", 40, ret=3, flags=0o1101, fhash=7)),
            *(line("open", 60, ret=4, flags=0, fhash=8), line("__xstat", 80, fhash=7)),
        ],
        "stat read -1 0, open made -1 0, open read -1 0, stat made -1 0",
    ),
    "relative names, and numbers without a name": (
        [
            *(file_hash("/d", 1), said("start", ppid=1, cwd=1), file_hash("./x", 7)),
            *(line("creat", 0, ret=3, fhash=7), line("fsync", 20, fd=3, fhash=7), line("fsync", 40, fd=3, fhash=9)),
        ],
        "open x -1 0, sync x -1 0",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_operations(name, tmp_path):
    events, expected = CALLS[name]
    job = read_dftracer([write(tmp_path / "a.pfw", *events)])
    (rows, _), found = job.of_rank(0), []
    for row in rows:
        api = "" if APIS[row["api"]] == "POSIX" else "STDIO "
        path = job.paths[row["file"]].decode().removeprefix("/d/")
        found.append(f"{api}{OPS[row['op']]} {path} {row['offset']} {row['length']}")
    assert ", ".join(found) == expected
    if name.startswith("a forked"):
        assert [process.pid for process in job.ranks[0].processes] == [100, 200]
    if name.startswith("a stat"):
        is_open = rows["op"] == OPS.index("open")
        assert rows["open_flags"][is_open].tolist() == [2 | 8 | 32, 1]
        assert set(rows["open_flags"][~is_open].tolist()) == {-1}
    if name.startswith("relative"):
        assert "1 operation left out: no file in the trace has their number" in job.warnings


def test_steps_from_one_fetch_to_the_next(tmp_path):
    events = [X, line("open", 0, ret=3, flags=0, fhash=7)]
    for at in (1000, 2000, 3000, 4000):
        events.append(line("read", at + 10, ret=10, count=10, fd=3, fhash=7))
        for name, begin, lasts, cat in (
            ("fetch", 0, 100, "dataloader"), ("forward", 150, 300, "compute"), ("backward", 500, 200, "compute"),
            ("all_reduce", 750, 50, "comm"),
        ):  # fmt: skip
            events.append(line(name, at + begin, lasts, cat=cat))
    events.append(line("epoch.block", 900, 2500, cat="pipeline"))
    capture = open_capture(merge([write(tmp_path / "a.pfw", *events)], [], tmp_path / "a.capture").capture)
    found = {}
    for row in capture.spans.to_pylist():
        times = [(row[name] + capture.info.job.zero_ns) // 1000 - T for name in ("start_ns", "end_ns")]
        found.setdefault(row["kind"], []).append(tuple(times))
    assert found["step"] == [(1000, 2000), (2000, 3000), (3000, 3400), (4000, 4700)]
    assert found["input_wait"] == [(at, at + 100) for at in (1000, 2000, 3000, 4000)]
    assert found["collective"] == [(at + 750, at + 800) for at in (1000, 2000, 3000, 4000)]
    assert len(found["compute"]) == 9  # one is cut where its epoch, and with it its step, ends
    (rows,) = capture.operations(0)
    assert rows["step"].to_pylist() == [-1, 0, 1, 2, 3]


def test_damage_and_what_cannot_be_used(tmp_path):
    events = [X, *(line("open", at, ret=3, flags=0, fhash=7) for at in range(300))]
    whole = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    first, rest = gzip.compress(whole[:1000]), gzip.compress(whole[1000:])
    path = tmp_path / "a.pfw.gz"
    for data, text in (
        (first + rest[:-30], "the end of a.pfw.gz is cut off: "),
        # A bit of the second member's CRC-32.
        (first + rest[:-5] + bytes([rest[-5] ^ 1]) + rest[-4:], "the compressed data of a.pfw.gz do not match"),
        (whole.replace(b'"POSIX"', b'"POSIX', 1) + b'{"name": "read", "cat": "POS', "2 damaged lines left out"),
    ):
        path.write_bytes(data)
        job = read_dftracer([path])
        (found,) = [each for each in job.warnings if each.startswith(text)]
        assert ("cut off" in found) == any("cut off" in each for each in job.warnings)
        assert 0 < len(job.of_rank(0)[0]) <= 300
    for events, text in (
        ([{**line("read", 0), "args": {}}], "DFTRACER_INC_METADATA=1"),
        ([], "holds no event"),
        ([said("CM", name="time_metric", value="weeks")], "counts its times in 'weeks'"),
    ):
        with pytest.raises(LogError, match=text):
            read_dftracer([write(tmp_path / "b.pfw", *events)])
