"""Bad input, through the command line as a user meets it: one clear message, exit status 2, nothing else touched."""

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
    *(b"/etc/passwd", b"../../x", b"/data/../../../../etc/shadow", b"/new\nline/a\tb", b"/not-utf8/\xff\xfe\x80"),
    *(b"/" + b"long" * 200, b"", b".", b"/", b"/dup", b"/dup/below", b"<STDOUT>", b"/dev/sda"),
]
LOG = sample("imagenet").log


def outcome(arguments, capsys):
    """Exit status and what was printed on stderr: with status 2 one error, short, and no traceback."""
    status = main([str(argument) for argument in arguments])
    message = capsys.readouterr().err
    if status == 2:
        assert sum(line.startswith(("dxt-replay: error:", "Error:")) for line in message.splitlines()) == 1, message
        assert "Traceback" not in message
        assert len(message) < 1500
    return status, message


def small_log(folder):
    reads = [(4096 * i, 4096, 0.1 + i, 0.2 + i) for i in range(4)]
    records = [DxtRecord(record_id=rank + 1, rank=rank, reads=reads) for rank in (0, 1)]
    job = JobSpec(nprocs=2, start_s=1000, end_s=1010)
    names = {1: b"/a", 2: b"/b"}  # in the container with the smallest header
    return write_dxt_log(folder / "job.darshan", records, names=names, job=job, version="3.21").read_bytes()


def says_damage(capture):
    return sum(" is damaged, and the capture lacks " in text for text in open_capture(capture).info.warnings) == 1


def test_a_log_that_is_cut(tmp_path, capsys):
    whole, cut, statuses = small_log(tmp_path), tmp_path / "cut.darshan", []
    for keep in range(0, len(whole), 17):
        cut.write_bytes(whole[:keep])
        status, _ = outcome(["merge", cut, "-o", tmp_path / "c.capture", "--force"], capsys)
        statuses.append(status)
        assert status == 2 or says_damage(tmp_path / "c.capture")
    # Without a whole job record nothing is read.
    assert statuses == sorted(statuses, reverse=True)
    assert set(statuses) == {0, 2}


def test_a_log_with_single_bits_flipped(tmp_path, capsys):
    whole, flipped, statuses = small_log(tmp_path), tmp_path / "flipped.darshan", set()
    for place in range(0, len(whole), 11):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        flipped.write_bytes(damaged)
        shutil.rmtree(tmp_path / "c.capture", ignore_errors=True)
        status, _ = outcome(["merge", flipped, "-o", tmp_path / "c.capture"], capsys)
        statuses.add(status)
        if status:
            assert not (tmp_path / "c.capture/capture.json").exists()
        elif not says_damage(tmp_path / "c.capture"):
            # 8 that were traced, and an open and a close of each file on each rank that the counters tell of.
            assert open_capture(tmp_path / "c.capture").operation_count() == 8 + 4
    assert statuses == {0, 2}


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n" + bytes(2000), b"words\n" * 300])
def test_files_that_are_something_else(tmp_path, capsys, content):
    log, profile = tmp_path / "x.darshan", tmp_path / "x.xplane.pb"
    for file in (log, profile):
        file.write_bytes(content)
    for words in (["merge", log], ["merge", LOG, "--profile", profile], ["merge", log / "x"]):
        assert outcome([*words, "-o", tmp_path / "c.capture"], capsys)[0] == 2
    assert outcome(["summary", log], capsys)[0] == 2


def test_a_profile_that_is_cut_and_a_folder_without_one(tmp_path, capsys):
    whole, place = sample("imagenet").profiles[0].read_bytes(), tmp_path / "profile"
    place.mkdir()
    for keep in (None, 10, len(whole) // 2, len(whole) - 1):
        if keep is not None:
            (place / "rank0.xplane.pb.gz").write_bytes(whole[:keep])
        assert outcome(["merge", LOG, "--profile", place, "-o", tmp_path / "c.capture"], capsys)[0] == 2
        assert not (tmp_path / "c.capture").exists()


@pytest.mark.parametrize("part", ["capture.json", "files.parquet", "spans.parquet", "ops"])
def test_a_capture_with_a_missing_part(tmp_path, capsys, part):
    capture = build_capture(tmp_path, ops=[read(0, length=10)], files=["/a"]).path
    (capture / part).rename(tmp_path / "elsewhere")
    target, page, replay = ["--target", tmp_path], tmp_path / "page.html", tmp_path / "r.capture"
    for words in (["summary"], ["report", "-o", page], ["stage", *target], ["compare", capture],
                  ["run", *target, "-o", replay]):  # fmt: skip
        assert outcome([words[0], capture, *words[1:]], capsys)[0] == 2
    assert not replay.exists()


def test_paths_that_would_leave_the_target(tmp_path, capsys):
    files = [File(path, size=5000) for path in HOSTILE]
    ops = [read(i, length=4096, start_ns=i) for i in range(len(files))]
    ops += [write(i, length=100, start_ns=100 + i) for i in range(len(files))]
    capture = build_capture(tmp_path, ops=ops, files=files).path
    target = tmp_path / "inside" / "target"
    target.mkdir(parents=True)
    before = {path for path in tmp_path.rglob("*") if target not in path.parents}
    assert outcome(["stage", capture, "--target", target], capsys)[0] == 0
    arguments = ["run", capture, "--target", target, "-o", tmp_path / "r.capture", "--pace", "none"]
    assert outcome(arguments, capsys)[0] == 0
    made = {path for path in tmp_path.rglob("*") if target not in path.parents} - before
    assert made == {tmp_path / "r.capture", *(tmp_path / "r.capture").rglob("*")}
    rows = [row for batch in open_capture(tmp_path / "r.capture").operations() for row in batch.to_pylist()]
    assert [row["length"] for row in rows if row["op"] == "read"] == [4096] * len(files)


def test_what_is_somebody_elses_stays(tmp_path, capsys):
    capture, mine = build_capture(tmp_path, ops=[read(0, length=10)], files=["/a/b"]).path, tmp_path / "t"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    assert outcome(["merge", LOG, "-o", mine], capsys)[0] == 2
    for more in ([], ["--remove"]):
        assert outcome(["stage", capture, "--target", mine, *more], capsys)[0] == 0
    assert [path.read_text() for path in mine.rglob("*")] == ["keep"]


def test_a_target_without_space_and_one_that_cannot_be_written(tmp_path, capsys):
    huge = build_capture(tmp_path, ops=[read(0, offset=2**60, length=1)], files=["/huge"]).path
    status, message = outcome(["stage", huge, "--target", tmp_path], capsys)
    assert status == 2
    assert "room" in message
    assert not list(tmp_path.rglob("huge"))
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "below", Path("/proc/dxt-replay")):
        assert outcome(["stage", huge, "--target", target], capsys)[0] == 2


@pytest.mark.parametrize(("kib", "status"), [(60_000, 2), (200_000, 2), (400_000, 0)])
def test_memory_that_ends_before_the_command_is_refused_in_one_line(tmp_path: Path, kib: int, status: int) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0)])
    ask = f"ulimit -v {kib}; exec {sys.executable} -m dxt_replay summary {capture.path}"
    done = subprocess.run(["/bin/sh", "-c", ask], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (status, status // 2)
    assert status == 0 or "out of memory" in done.stderr
