"""Files of other tools are named, with the way on, wherever a log, a profile or a capture is asked for."""

import bz2
import gzip
import json
import tarfile
import zipfile

import pytest

from dxt_replay.profiler_merge.darshan.job_logs import find_logs
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.recognise import foreign, recognise
from dxt_replay.profiler_merge.sources import DARSHAN, PROFILES
from dxt_replay.replay.archive.archive_jobs import archive_jobs
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log, write_log
from tests.places import SHARED
from tests.xplane_writer import Event, Line, profile

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
    "tar": b"logs/a.darshan".ljust(257, b"\0") + b"ustar  \0" + bytes(300),
    "zip": b"PK\x03\x04\x14\0\0\0",
    "ctf": b"\xc1\x1f\xfc\xc1" + bytes(40),
    "nsys": b"SQLite format 3\0" + bytes(300) + b"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(",
    "rocprof": b'"Name","Calls","TotalDurationNs"\n',
    "chakra": b"\x07\n\x050.0.4" + bytes(20),
    "memory snapshot": b"\x80\x04\x95\0\0\0\0\0\0\0\0}\x94(\x8c\x08segments\x94]\x94",
    "parquet": b"PAR1\x15\x04",
    "xplane": profile([Line(id=1, name="python", events=(Event(name="train"),))]),
}


def test_formats_without_a_beginning_of_their_own_are_known_by_their_ending(tmp_path):
    path = tmp_path / "traces.otf2"
    path.write_bytes(b"\x01\x02\x03")
    assert recognise(path).what == "a trace of Score-P (OTF2)"


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
        assert foreign(path, "xplane") is None
    assert foreign(tmp_path / "missing", DARSHAN) is None


def test_a_folder_is_what_most_of_its_files_are(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.pfw").write_bytes(FILES["dftracer"])
    (tmp_path / "a.json").write_bytes(FILES["chrome"])
    assert "a DFTracer trace (3 files)" in str(foreign(tmp_path, "xplane"))
    (tmp_path / "b.xplane.pb").write_bytes(FILES["xplane"])
    assert foreign(tmp_path, "xplane") is None


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
        *([] if kind in PROFILES else [["merge", path, "-o", output]]),  # profiles alone make a capture
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


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
@pytest.mark.parametrize(
    ("inside", "said"), [(b"2.05\0" + bytes(400), "of Darshan 1 or 2"), (b"a,b\n1,2\n", "is compressed")]
)
def test_what_is_compressed_is_an_old_log_only_where_one_is_in_it(tmp_path, pack, inside, said):
    path = tmp_path / "x.gz"
    path.write_bytes(pack(inside))
    with pytest.raises(LogError, match=said):
        open_log(path)


@pytest.mark.parametrize("name", ["logs.tar.gz", "logs.tar", "logs.zip"])
def test_an_archive_of_logs_is_read_and_writes_nothing_outside(tmp_path, name):
    log = write_dxt_log(
        tmp_path / "a.darshan", [DxtRecord(record_id=1, reads=[(0, 8, 1.0, 2.0)])], job=JobSpec(nprocs=1)
    )
    inside = {"../../outside/a.darshan": log, "logs/readme": tmp_path / "readme"}
    (tmp_path / "readme").write_text("of no use", encoding="utf-8")
    packed = tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(packed, "w") as archive:
            for member, path in inside.items():
                archive.write(path, member)
    else:
        with tarfile.open(packed, "w:gz" if name.endswith(".gz") else "w") as archive:
            for member, path in inside.items():
                archive.add(path, member)
    before = {path.name for path in tmp_path.iterdir()}
    assert main(["merge", str(packed), "-o", str(tmp_path / "c.capture")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == before | {"c.capture"}
    assert open_capture(tmp_path / "c.capture").info.sources[0].name == "a.darshan"


def test_an_archive_without_logs_or_cut_off_is_refused(tmp_path, capfd):
    (tmp_path / "readme").write_text("of no use", encoding="utf-8")
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "readme", "readme")
    assert main(["merge", str(tmp_path / "x.tar.gz"), "-o", str(tmp_path / "c.capture")]) == 2
    assert "is an archive without a .darshan log" in " ".join(capfd.readouterr().err.split())
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04" + bytes(50))
    assert main(["merge", str(tmp_path / "x.zip"), "-o", str(tmp_path / "c.capture")]) == 2
    assert "cannot be unpacked" in " ".join(capfd.readouterr().err.split())


def test_logs_of_another_ending_are_found_too(tmp_path):
    write_dxt_log(tmp_path / "a.darshan_log", [DxtRecord(record_id=1, reads=[(0, 8, 1.0, 2.0)])], job=JobSpec(nprocs=1))
    (found,) = archive_jobs([tmp_path], captures=False).jobs
    assert (found.name, [path.name for path in found.logs]) == ("a", ["a.darshan_log"])
    assert find_logs(tmp_path) == [tmp_path / "a.darshan_log"]
