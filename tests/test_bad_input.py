"""Bad input, through the command line as a user meets it: one clear message, exit status 2, nothing else touched."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import File, build_capture, read, write
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log

HOSTILE = [
    b"/etc/passwd",
    b"../../x",
    b"/data/../../../../etc/shadow",
    b"/new\nline/a\tb",
    b"/not-utf8/\xff\xfe\x80",
    b"/" + b"long" * 200,
    b"",
    b".",
    b"/",
    b"/dup",
    b"/dup/below",
    b"<STDOUT>",
    b"/dev/sda",
]


def outcome(arguments, capsys):
    """Exit status and what was printed on stderr."""
    status = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.err


def assert_told_once(status, message):
    assert status == 2
    lines = [line for line in message.splitlines() if line.startswith("dxt-replay: error:")]
    assert len(lines) == 1, message
    assert "Traceback" not in message
    assert len(message) < 1500


def small_log(folder):
    job = JobSpec(nprocs=2, start_s=1000, end_s=1010)
    reads = [(4096 * i, 4096, 0.1 + i, 0.2 + i) for i in range(4)]
    records = [DxtRecord(record_id=rank + 1, rank=rank, reads=reads) for rank in (0, 1)]
    return write_dxt_log(folder / "job.darshan", records, names={1: b"/a", 2: b"/b"}, job=job)


def says_damage(capture):
    return sum(" is damaged, and the capture lacks " in text for text in open_capture(capture).info.warnings) == 1


def test_a_log_cut_at_every_tenth_byte(tmp_path, capsys):
    whole = small_log(tmp_path).read_bytes()
    cut = tmp_path / "cut.darshan"
    statuses = []
    for keep in range(0, len(whole), 10):
        cut.write_bytes(whole[:keep])
        status, message = outcome(["merge", cut, "-o", tmp_path / "c.capture", "--force"], capsys)
        statuses.append(status)
        if status:
            assert_told_once(status, message)
        else:
            assert says_damage(tmp_path / "c.capture")
    # Without a whole job record nothing is read.
    assert statuses == sorted(statuses, reverse=True)
    assert set(statuses) == {0, 2}


def test_a_log_with_single_bits_flipped(tmp_path, capsys):
    whole = small_log(tmp_path).read_bytes()
    flipped = tmp_path / "flipped.darshan"
    statuses = set()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        flipped.write_bytes(damaged)
        shutil.rmtree(tmp_path / "c.capture", ignore_errors=True)
        status, message = outcome(["merge", flipped, "-o", tmp_path / "c.capture"], capsys)
        statuses.add(status)
        if status:
            assert_told_once(status, message)
            assert not (tmp_path / "c.capture/capture.json").exists()
        elif not says_damage(tmp_path / "c.capture"):
            # 8 that were traced, and an open and a close of each file on each rank that the counters tell of.
            assert open_capture(tmp_path / "c.capture").operation_count() == 8 + 4
    assert statuses == {0, 2}


@pytest.mark.parametrize(
    "content", [b"", b"\x89PNG\r\n\x1a\n" + bytes(2000), b"words\n" * 300], ids=["empty", "png", "text"]
)
@pytest.mark.parametrize("command", ["merge", "profile", "summary"])
def test_files_that_are_something_else(tmp_path, capsys, content, command):
    file = tmp_path / ("x.xplane.pb" if command == "profile" else "x.darshan")
    file.write_bytes(content)
    arguments = {
        "merge": ["merge", file, "-o", tmp_path / "c.capture"],
        "profile": ["merge", sample("imagenet").log, "--profile", file, "-o", tmp_path / "c.capture"],
        "summary": ["summary", file],
    }[command]
    assert_told_once(*outcome(arguments, capsys))


@pytest.mark.parametrize("what", ["missing", "directory", "unreadable parent"])
def test_a_log_that_is_not_there(tmp_path, capsys, what):
    path = {"missing": tmp_path / "no.darshan", "directory": tmp_path, "unreadable parent": Path("/proc/1/mem/x")}[what]
    assert_told_once(*outcome(["merge", path, "-o", tmp_path / "c.capture"], capsys))


def test_a_folder_without_a_profile(tmp_path, capsys):
    (tmp_path / "profile").mkdir()
    arguments = ["merge", sample("imagenet").log, "--profile", tmp_path / "profile", "-o", tmp_path / "c.capture"]
    assert_told_once(*outcome(arguments, capsys))
    assert not (tmp_path / "c.capture").exists()


@pytest.mark.parametrize("choice", [["--part", "ranks=5"], ["--part", "steps=7-9"]])
@pytest.mark.parametrize("command", ["summary", "report", "stage"])
def test_ranks_and_steps_that_the_capture_does_not_have(tmp_path, capsys, choice, command):
    capture = build_capture(tmp_path, ops=[read(0, length=10)], files=["/a"]).path
    more = {"summary": [], "report": ["-o", tmp_path / "page.html"], "stage": ["--target", tmp_path]}[command]
    status, message = outcome([command, capture, *more, *choice], capsys)
    assert_told_once(status, message)
    assert f"{capture} has no " in message


def test_a_profile_that_is_cut(tmp_path, capsys):
    whole = sample("imagenet").profiles[0].read_bytes()
    for keep in (10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "rank0.xplane.pb.gz").write_bytes(whole[:keep])
        arguments = ["merge", sample("imagenet").log, "--profile", tmp_path / "rank0.xplane.pb.gz"]
        assert_told_once(*outcome([*arguments, "-o", tmp_path / "c.capture"], capsys))


@pytest.mark.parametrize("part", ["capture.json", "files.parquet", "spans.parquet", "ops"])
@pytest.mark.parametrize("command", ["summary", "stage", "run", "compare"])
def test_a_capture_with_a_missing_part(tmp_path, capsys, part, command):
    capture = build_capture(tmp_path, ops=[read(0, length=10)], files=["/a"]).path
    (capture / part).rename(tmp_path / "elsewhere")
    target = ["--target", tmp_path / "t"]
    arguments = {
        "summary": [capture],
        "stage": [capture, *target],
        "run": [capture, *target, "-o", tmp_path / "r.capture"],
        "compare": [capture, capture],
    }[command]
    assert_told_once(*outcome([command, *arguments], capsys))
    assert not (tmp_path / "r.capture").exists()


def test_paths_that_would_leave_the_target(tmp_path, capsys):
    files = [File(path, size=5000) for path in HOSTILE]
    ops = [read(i, length=4096, start_ns=i) for i in range(len(files))]
    ops += [write(i, length=100, start_ns=100 + i) for i in range(len(files))]
    capture = build_capture(tmp_path, ops=ops, files=files).path
    target = tmp_path / "inside" / "target"
    target.parent.mkdir()
    before = {path for path in tmp_path.rglob("*") if target not in path.parents}
    target.mkdir(exist_ok=True)
    assert outcome(["stage", capture, "--target", target], capsys)[0] == 0
    arguments = ["run", capture, "--target", target, "-o", tmp_path / "r.capture", "--pace", "none"]
    assert outcome(arguments, capsys)[0] == 0
    made = {path for path in tmp_path.rglob("*") if target not in path.parents} - before
    assert {path.relative_to(tmp_path).parts[0] for path in made} == {"inside", "r.capture"}
    assert made - set((tmp_path / "r.capture").rglob("*")) == {target, tmp_path / "r.capture"}
    rows = [row for batch in open_capture(tmp_path / "r.capture").operations() for row in batch.to_pylist()]
    assert [row["length"] for row in rows if row["op"] == "read"] == [4096] * len(files)


def test_what_was_staged_is_taken_away_and_nothing_else(tmp_path, capsys):
    capture = build_capture(tmp_path, ops=[read(0, length=10)], files=["/a/b"]).path
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "notes.txt").write_text("keep")
    assert outcome(["stage", capture, "--target", tmp_path / "t"], capsys)[0] == 0
    assert outcome(["stage", capture, "--target", tmp_path / "t", "--remove"], capsys)[0] == 0
    assert [path.name for path in (tmp_path / "t").rglob("*")] == ["notes.txt"]


def test_a_target_without_space(tmp_path, capsys):
    capture = build_capture(tmp_path, ops=[read(0, offset=2**60, length=1)], files=["/huge"]).path
    status, message = outcome(["stage", capture, "--target", tmp_path], capsys)
    assert_told_once(status, message)
    assert "room" in message
    assert not list(tmp_path.rglob("huge"))


def test_a_target_that_cannot_be_written(tmp_path, capsys):
    capture = build_capture(tmp_path, ops=[read(0, length=10)], files=["/a"]).path
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "below", Path("/proc/dxt-replay")):
        assert_told_once(*outcome(["stage", capture, "--target", target], capsys))


def test_an_output_that_is_somebody_elses(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    assert_told_once(*outcome(["merge", sample("imagenet").log, "-o", tmp_path / "mine"], capsys))
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "c", "--target", "t", "-o", "o", "--speed", "-1"],
        ["run", "c", "--target", "t", "-o", "o", "--pace", "sideways"],
        ["merge"],
        ["stage", "c", "--target", "t", "--map", "nonsense"],
        ["nothing"],
        ["demo", "unknown-application"],
    ],
)
def test_wrong_use_exits_with_2_and_no_traceback(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    build_capture(tmp_path, ops=[read(0, length=10)], files=["/a"], name="c")
    shutil.move(tmp_path / "c.capture", tmp_path / "c")
    status, message = outcome(arguments, capsys)
    assert status == 2
    assert "Traceback" not in message
    assert message


def test_json_output_is_one_object(tmp_path, capsys):
    assert main(["merge", str(sample("imagenet").log), "-o", str(tmp_path / "c.capture"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    keys = {"capture", "ranks", "operations", "files", "spans", "coverage", "clock", "warnings"}
    assert keys <= document.keys()


@pytest.mark.parametrize(("kib", "status"), [(60_000, 2), (200_000, 2), (400_000, 0), (1_500_000, 0)])
def test_memory_that_ends_before_the_command_is_refused_in_one_line(tmp_path: Path, kib: int, status: int) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0)])
    ask = f"ulimit -v {kib}; exec {sys.executable} -m dxt_replay summary {capture.path}"
    done = subprocess.run(["/bin/sh", "-c", ask], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (status, status // 2)
    assert status == 0 or "out of memory" in done.stderr
