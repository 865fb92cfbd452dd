"""Files of each kind are known by their content, those of other kinds are named with the way on, wherever a log, a
profile or a capture is asked for; the registry of sources names readers that exist, and the documentation has each."""

import bz2
import gzip
import json
import os
import re

import pytest

from dxt_replay.profiler_merge.darshan.jobs import find_logs
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.given_files import find_profiles, foreign, kind_of
from dxt_replay.profiler_merge.profiles.reading import profile_kind, read_profile
from dxt_replay.profiler_merge.sources import DARSHAN, PROFILES, SOURCES, reader
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.jobs import find_jobs
from dxt_replay.traces.errors import LogError, ProfileError
from dxt_replay.traces.samples import sample
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log, write_log
from tests.places import ROOT, SHARED
from tests.xplane_writer import Event, Line, profile

SECTION = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8").partition("## Files of each tool")[2]
TABLE = [line for line in SECTION.partition("\n\n## ")[0].splitlines() if line.startswith("| ")][1:]


def test_a_source_that_is_read_has_readers_and_a_place_in_the_documentation():
    for source in SOURCES:
        names = [source.trace, source.recording, source.requests, source.spans, source.belongs]
        assert all(callable(reader(name)) for name in names if name)
        assert any(names) is not source.profile
        assert any(re.match(rf"\| [^|]*\b{source.tool}\b", line) for line in TABLE), source.tool
    assert len(TABLE) == len(SOURCES)


KINETO = {"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add"}]}
FILES = {
    "kineto": json.dumps(KINETO, indent=1).encode(),
    "dftracer": b'[\n{"id":1,"name":"HH","cat":"dftracer","pid":1,"tid":1,"ph":"M","args":{}}\n',
    "strace": b'31019 1795306000.260093 execve("/usr/bin/python", [...], 0x7f /* 39 vars */) = 0 <0.000208>\n',
    "xplane": profile([Line(id=1, name="python", events=(Event(name="train"),))]),
}
# Files of other tools, some of which lie beside profiles.
NO_SOURCES = {
    "et.json": b'{"schema": "1.1.0-chakra.0.0.4", "pid": 7, "nodes": [{"name": "aten::add"}]}',
    "host.trace.json": b'{"traceEvents":[{"ph":"M","args":{"name":"/host:CPU"}},{"name":"aten::add"}]}',
    "chrome.json": b'{"traceEvents": [{"ph": "X", "name": "work", "ts": 1, "dur": 2}]}',
    "horovod.json": b'[\n{"ph": "i", "name": "CYCLE_START", "ts": 77567277433, "s": "g"},\n',
    "x.tar": b"logs/a.darshan".ljust(257, b"\0") + b"ustar  \0" + bytes(300),
    "x.zip": b"PK\x03\x04\x14\0\0\0",
    "part-0.parquet": b"PAR1\x15\x04",
    "darshan.txt": b"# darshan log version: 3.41\n# compression method: ZLIB\n",
}
PACKS = pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("version", ["3.00", "3.41"])
def test_a_darshan_log_is_known(tmp_path, version, byte_order):
    path = write_log(tmp_path / "unnamed", version=version, byte_order=byte_order)
    assert (kind_of(path), foreign(path, DARSHAN)) == (DARSHAN, None)


def test_what_is_empty_or_damaged_is_left_to_the_reader(tmp_path):
    for name, content in (("a", b""), ("a", b"\x1f\x8b damaged"), ("a.darshan", b"hello"), ("a.xplane.pb", bytes(200))):
        (tmp_path / name).write_bytes(content)
        assert (kind_of(tmp_path / name), foreign(tmp_path / name, "xplane")) == (None, None)
    assert foreign(tmp_path / "missing", DARSHAN) is None


def error_of(capfd, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    return " ".join(capfd.readouterr().err.split())


@PACKS
@pytest.mark.parametrize("name", NO_SOURCES)
def test_one_sentence_refuses_all_other_files(tmp_path, capfd, name, pack):
    path, log, out = tmp_path / name, sample("imagenet").log, ("-o", tmp_path / "a.capture")
    path.write_bytes(pack(NO_SOURCES[name]))
    for arguments in (
        ["merge", path, *out], ["merge", log, path, *out], ["merge", log, "--profile", path, *out], ["summary", path],
        ["run", path, "--target", tmp_path / "target", *out],
    ):  # fmt: skip
        text = error_of(capfd, *arguments)
        assert f"{path} is neither a Darshan log, a trace of strace or DFTracer" in text, arguments
        assert "unpack it and give the folder" in text
    assert not out[1].exists()


def test_other_files_beside_profiles_are_left_alone_and_a_folder_is_what_most_of_its_files_are(tmp_path):
    for name, content in NO_SOURCES.items():
        (tmp_path / name).write_bytes(content)
    wanted = [tmp_path / "a.pt.trace.json", tmp_path / "host.xplane.pb"]
    for path, kind in zip(wanted, ("kineto", "xplane"), strict=True):
        path.write_bytes(FILES[kind])
    assert find_profiles(tmp_path) == wanted
    for number in range(3):
        (tmp_path / f"{number}.pfw").write_bytes(FILES["dftracer"])
    assert foreign(tmp_path, "xplane") is None
    wanted[1].unlink()
    assert "a DFTracer trace (3 files)" in foreign(tmp_path, "xplane")


OF_PROFILES = "give it to `dxt-replay merge` as --profile"
KNOWN = {
    "kineto": f"is a PyTorch profile (Kineto): {OF_PROFILES}",
    "xplane": f"is a TensorFlow profile (XPlane): {OF_PROFILES}",
    "strace": "is the output of strace: give it to `dxt-replay merge` as LOG",
    "dftracer": "is a DFTracer trace: give it to `dxt-replay merge` as LOG",
}


@pytest.mark.parametrize("kind", KNOWN)
def test_the_commands_say_what_they_were_given(tmp_path, capfd, kind):
    path, output, log = tmp_path / "given", tmp_path / "a.capture", sample("imagenet").log
    path.write_bytes(FILES[kind])
    (tmp_path / "target").mkdir()
    target, out = ("--target", tmp_path / "target"), ("-o", output)
    for arguments in (
        ["summary", path], ["report", path, "-o", tmp_path / "a.html"], ["stage", path, *target],
        ["run", path, *target, *out],
    ):  # fmt: skip
        assert f"{path} {KNOWN[kind]}" in error_of(capfd, *arguments), arguments
    if kind in PROFILES:
        assert not output.exists()
        return
    text = error_of(capfd, "merge", log, "--profile", path, *out)
    assert KNOWN[kind] in text or "holds no event" in text
    assert "a capture has the operations of one of them" in error_of(capfd, "merge", log, path, *out)
    text = error_of(capfd, "merge", path, *out)
    assert "no operation on a file of the job" in text or "holds no event" in text
    text = error_of(capfd, "merge", log, "--profile", log, *out)
    assert "is a Darshan log: give it to `dxt-replay merge` as LOG" in text


def test_folders_of_logs_and_logs_of_another_ending(tmp_path, capsys):
    """A folder of logs serves as a capture."""
    write_dxt_log(tmp_path / "a.darshan", [DxtRecord(record_id=1)])
    assert main(["summary", str(tmp_path)]) == 0
    headline = capsys.readouterr().out.partition("\n\n")[0]
    assert "The capture holds no reads and no writes" in headline
    assert "storage would save" not in headline
    (tmp_path / "a.darshan").unlink()
    write_dxt_log(tmp_path / "a.darshan_log", [DxtRecord(record_id=1, reads=[(0, 8, 1.0, 2.0)])], job=JobSpec(nprocs=1))
    ((found,), _) = find_jobs([tmp_path], captures=False)
    assert (found.name, [path.name for path in found.logs]) == ("a", ["a.darshan_log"])
    assert find_logs(tmp_path) == [tmp_path / "a.darshan_log"]


def real_files():
    """Each kind by its folder, where the other sources lie beside the checkout."""
    kinds = {"kineto": "kineto", "dftracer": "dftracer", "horovod": None, "tf-legacy": None}
    for folder, kind in kinds.items():
        for path in sorted((SHARED / "other-sources" / folder).rglob("*")):
            if path.name.endswith((".gz", ".json")):
                yield pytest.param(path, kind, id=f"{folder}-{path.name[:30]}")
    yield from (pytest.param(path, None, id=path.name) for path in (SHARED / "theta").rglob("*.input_pipeline.pb"))


@pytest.mark.parametrize(("path", "kind"), list(real_files()))
def test_real_files_of_other_tools(path, kind):
    assert kind_of(path) == kind


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
@pytest.mark.parametrize(
    ("inside", "said"), [(b"2.05\0" + bytes(400), "of Darshan 1 or 2"), (b"a,b\n1,2\n", "is compressed")]
)
def test_what_is_compressed_is_an_old_log_only_where_one_is_in_it(tmp_path, pack, inside, said):
    (tmp_path / "x.gz").write_bytes(pack(inside))
    with pytest.raises(LogError, match=said):
        open_log(tmp_path / "x.gz")


@pytest.mark.parametrize("name", ["host.xplane.pb", "host.pt.trace.json"])
def test_a_fifo_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert profile_kind(tmp_path / name) == "xplane"
    with pytest.raises(ProfileError, match="is not a file"):
        read_profile([tmp_path / name])
