"""Files of other tools are named, with the way on, wherever a log, a profile or a capture is asked for."""

import gzip
import json

import pytest

from profiler_merge.recognise import DARSHAN, XPLANE, foreign, recognise
from replay.commands.main import main
from tests.darshan_writer import DxtRecord, write_dxt_log, write_log
from tests.places import SHARED
from tests.xplane_writer import Event, Line, profile
from traces.samples import sample

KINETO = {
    "schemaVersion": 1,
    "deviceProperties": [],
    "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add"}],
}
FILES = {
    "kineto": json.dumps(KINETO, indent=1).encode(),
    "execution trace": b'{"schema": "1.1.0-chakra.0.0.4", "pid": 7, "start_ts": 1, "nodes": [{}]}',
    "memory timeline": b"[[1700000000000, 1700000000100], [[0, 12, 0], [0, 24, 8]]]",
    "dftracer": b'[\n{"id":1,"name":"HH","cat":"dftracer","pid":1,"tid":1,"ph":"M","args":{}}\n',
    "horovod": b'[\n{"ph": "i", "name": "CYCLE_START", "ts": 77567277433, "s": "g"},\n',
    "tensorflow trace": b'{"displayTimeUnit":"ns","traceEvents":[{"ph":"M","args":{"name":"/host:CPU"}}]}',
    "chrome": b'{"traceEvents": [{"ph": "X", "name": "work", "ts": 1, "dur": 2}]}',
    "tfevents": b"\x18" + bytes(7) + b"\x01\x02\x03\x04\x09\0\0\0\0\0\0\xf0?\x1a\rbrain.Event:2" + bytes(4),
    "overview": b"\x12$\x09" + bytes(30) + b"type.googleapis.com/tensorflow.profiler.PerGenericStepDetails",
    "strace": b'31019 1795306000.260093 execve("/usr/bin/python", [...], 0x7f /* 39 vars */) = 0 <0.000208>\n',
    "darshan text": b"# darshan log version: 3.41\n# compression method: ZLIB\n",
    "recorder": b'{"file_id":[-9210576409139474804,9214],"proc_id":[-929352282003150188],"tmid":[0,6683055996]}',
    "dftracer index": b"SQLite format 3\0" + bytes(300) + b"CREATE TABLE LineOffsets(",
    "bpftrace": b"Attaching 4 probes...\n1 2 3\n",
    "perf": b"     0.000 ( 0.006 ms): python3/77 pread64(fd: 3</d/x>, buf: 0x7f, count: 512, pos: 0) = 512\n",
    "parquet": b"PAR1\x15\x04",
    "xplane": profile([Line(id=1, name="python", events=(Event(name="train"),))]),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_file_is_known_by_its_content(tmp_path, kind, pack):
    path = tmp_path / "unnamed"
    path.write_bytes(pack(FILES[kind]))
    found = recognise(path)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("version", ["3.00", "3.41"])
def test_a_darshan_log_is_known(tmp_path, version, byte_order):
    path = write_log(tmp_path / "unnamed", version=version, byte_order=byte_order)
    found = recognise(path)
    assert found is not None
    assert found.kind == DARSHAN
    assert foreign(path, DARSHAN) is None


def test_what_nobody_knows_is_left_to_the_reader(tmp_path):
    path = tmp_path / "unnamed"
    for content in (b"", b"hello", b'{"file_id": [1, 2]}', b"\x1f\x8b damaged", bytes(200)):
        path.write_bytes(content)
        assert recognise(path) is None
        assert foreign(path, XPLANE) is None
    assert foreign(tmp_path / "missing", DARSHAN) is None


def test_a_folder_is_what_most_of_its_files_are(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.pfw").write_bytes(FILES["dftracer"])
    (tmp_path / "a.json").write_bytes(FILES["chrome"])
    assert "a DFTracer trace (3 files)" in str(foreign(tmp_path, XPLANE))
    (tmp_path / "b.xplane.pb").write_bytes(FILES["xplane"])
    assert foreign(tmp_path, XPLANE) is None


def error_of(capfd, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    return capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("execution trace", "is a PyTorch execution trace: it has no times of the training loop"),
        ("kineto", "is a PyTorch profile (Kineto): give it to `dxt-replay merge` as --profile"),
        ("horovod", "is a Horovod timeline: give it to `dxt-replay merge` as --profile"),
        ("tensorflow trace", "is a trace.json of TensorFlow's profiler: give the .xplane.pb file beside it"),
        ("recorder", "is an index of Recorder data: it has no offsets"),
        ("dftracer index", "is DFTracer's index of a trace: it holds no events"),
        ("bpftrace", "is the output of bpftrace: it has no offsets"),
        ("perf", "is the output of perf trace: its times have no date"),
        ("xplane", "is a TensorFlow profile (XPlane): give it to `dxt-replay merge` as --profile"),
    ],
)
def test_the_commands_say_what_they_were_given(tmp_path, capfd, kind, said):
    path = tmp_path / "given"
    path.write_bytes(FILES[kind])
    output = tmp_path / "a.capture"
    for arguments in (
        ["merge", path, "-o", output],
        ["summary", path],
        ["report", path, "-o", tmp_path / "a.html"],
        ["stage", path, "--target", tmp_path / "target"],
        ["run", path, "--target", tmp_path / "target", "-o", output],
    ):
        assert f"{path} {said}" in error_of(capfd, *arguments), arguments
    assert not output.exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("strace", "is the output of strace: give it to `dxt-replay merge` as LOG"),
        ("dftracer", "is a DFTracer trace: give it to `dxt-replay merge` as LOG"),
    ],
)
def test_a_trace_is_to_be_merged(tmp_path, capfd, kind, said):
    path = tmp_path / "given"
    path.write_bytes(FILES[kind])
    assert f"{path} {said}" in error_of(capfd, "summary", path)
    log = sample("imagenet").log
    text = error_of(capfd, "merge", log, "--profile", path, "-o", tmp_path / "a.capture")
    assert f"{path} {said}" in text or "holds no event" in text
    text = error_of(capfd, "merge", log, path, "-o", tmp_path / "a.capture")
    assert "a capture has the operations of one of them" in text
    text = error_of(capfd, "merge", path, "-o", tmp_path / "a.capture")
    assert "no operation on a file of the job" in text or "holds no event" in text


def test_a_profile_option_says_what_it_was_given(tmp_path, capfd):
    log = sample("imagenet").log
    folder = tmp_path / "profile"
    folder.mkdir()
    path = folder / "timeline.json.gz"
    path.write_bytes(gzip.compress(FILES["chrome"]))
    for given in (folder, path):
        text = error_of(capfd, "merge", log, "--profile", given, "-o", tmp_path / "a.capture")
        assert "a trace in Chrome's JSON format" in text
        assert "timed and think" in text
    text = error_of(capfd, "merge", log, "--profile", log, "-o", tmp_path / "a.capture")
    assert "is a Darshan log: give it to `dxt-replay merge` as LOG" in text


def test_a_folder_of_logs_serves_as_a_capture(tmp_path, capsys):
    write_dxt_log(tmp_path / "a.darshan", [DxtRecord(record_id=1)])
    assert main(["summary", str(tmp_path)]) == 0
    headline = capsys.readouterr().out.partition("\n\n")[0]
    assert "The capture holds no reads and no writes" in headline
    assert "storage would save" not in headline


def real_files():
    """Each kind by its folder, where the other sources lie beside the checkout."""
    sources = SHARED / "other-sources"
    kinds = {"kineto": "kineto", "dftracer": "dftracer", "horovod": "horovod", "tf-legacy": "tensorflow trace"}
    found = [
        pytest.param(path, kind, id=f"{folder}-{path.name[:30]}")
        for folder, kind in kinds.items()
        for path in sorted((sources / folder).rglob("*"))
        if path.name.endswith((".gz", ".json"))
    ]
    found += [pytest.param(path, "overview", id=path.name) for path in (SHARED / "theta").rglob("*.input_pipeline.pb")]
    return found or [pytest.param(None, "", marks=pytest.mark.skip(reason="no other sources beside the checkout"))]


@pytest.mark.parametrize(("path", "kind"), real_files())
def test_real_files_of_other_tools(path, kind):
    found = recognise(path)
    assert found is not None
    assert found.kind == kind
