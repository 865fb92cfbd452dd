"""strace's output as operations: against known truth, and call by call."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.tracers.strace import read_strace
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.schema import OPS, codes
from dxt_replay.traces.store.reader import open_capture
from tests.examples import examples
from tests.places import recorded

T = 1_795_306_000
START = '{tid} 1795306000.000000 execve("/usr/bin/python", [...], 0x7 /* 9 vars */) = 0 <0.000100>'


def trace(path, *lines, tid=100):
    """A trace: calls as `TID call(...) = result`, or without the TID, a millisecond apart."""
    text = [START.format(tid=tid)]
    for number, line in enumerate(lines, 1):
        own, _, call = line.partition(" ") if line[0].isdigit() else (str(tid), "", line)
        text.append(f"{own} {T}.{number:03}000 {call} <0.000100>")
    path.write_text("\n".join(text) + "\n")
    return path


def operations(path, **options):
    """(operation, path, offset, length) in order, of all ranks."""
    job = read_strace([path], **options)
    rows = np.concatenate([job.of_rank(rank)[0] for rank in range(job.nprocs)])
    return [(OPS[row["op"]], job.paths[row["file"]].decode(), int(row["offset"]), int(row["length"])) for row in rows]


def data(path):
    return [row[1:] for row in operations(path) if row[0] in ("read", "write")]


@pytest.mark.parametrize("form", ["one", "many"])
def test_the_reads_of_a_job_are_where_they_were(form, tmp_path):
    truth = json.loads(recorded(f"other-sources/strace/truth-{form}.json").read_text())["reads"]
    names = "many" if form == "many" else "one.strace.gz"
    found = recorded(f"other-sources/strace/{names}")
    files = sorted(found.iterdir()) if found.is_dir() else [found]
    job = read_strace(files)
    pids = {process.number: process.pid for process in job.ranks[0].processes}
    rows, threads = job.of_rank(0)
    main = json.loads(recorded(f"other-sources/strace/truth-{form}.json").read_text())["reads"][0][0]
    raw = [number for number, path in enumerate(job.paths) if path.endswith(b"/raw.bin")]
    found = rows[(rows["op"] == OPS.index("read")) & np.isin(rows["file"], raw)]
    mine = sorted((pids[row["process"]], row["start_ns"], row["offset"], row["length"]) for row in found)
    true = sorted((pid, at_ns, offset, length) for pid, _, _, offset, length, at_ns in truth)
    assert [(pid, offset, length) for pid, _, offset, length in mine] == [
        (pid, offset, length) for pid, _, offset, length in true
    ]
    late = np.array([one[1] - other[1] for one, other in zip(mine, true, strict=True)])
    assert 0 < np.median(late) < 1_000_000

    # Workers of the program were forked, and its other thread is the queue's.
    assert {process.pid for process, _ in threads} >= {pid for pid, *_ in truth}
    result = merge(files, [], tmp_path / "a.capture", MergeOptions())
    lanes = open_capture(tmp_path / "a.capture").lanes.to_pylist()
    assert {(row["pid"], row["thread"], row["role"]) for row in lanes if row["pid"] == row["thread"]} == {
        (main, main, "main"), *((pid, pid, "worker") for pid, *_ in truth if pid != main),
    }  # fmt: skip
    assert [(row["pid"], row["role"]) for row in lanes if row["pid"] != row["thread"]] == [(main, "thread")]
    assert {row["host"] for row in lanes} == {None}
    assert (len(result.info.ranks), result.operations, result.reconstructed) == (1, 795, 0)
    assert result.info.sources[0].kind == "strace"
    assert any("AIO): /scratch/train/data/raw.bin" in text for text in result.info.warnings)
    assert result.info.coverage.bytes is None
    capture = open_capture(result.capture)
    paths = exact_paths(capture.files)
    assert b"/scratch/train/data/ck11.pkl" in paths
    assert b"/scratch/train/out.txt" not in paths, "the shell had redirected standard output to it"


OPENED = b'5 1795306000.100 openat(AT_FDCWD</d>, "a", O_RDONLY) = 3</d/a>'
READ = ("read", "/d/a", 0, 4)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([OPENED, b'5 1795306000.500 read(3</d/a>, ""..., 10) = 4 <0.000012>'], [READ]),
        ([OPENED, b'5  1795306000.500000 read(3</d/a>, ""..., 10)    = 4'], [READ]),
        ([OPENED, b'[pid     5] 1795306000.500000000 read(3</d/a>, "a) = 9", 10) = 4 <0.000012000>'], [READ]),
        ([OPENED[2:], b'1795306000.500 read(3</d/a>, "(", 10) = 4 <0.000012>'], [READ]),
        ([OPENED, b'5 1795306000.500 read(3</d/a>, "", 10) = -1 EIO (Input/output error) <0.1>'], []),
        ([b'1795306000.500 open("/d/a) = 3", 0) = -1 ENOENT (No such file) <0.1>', OPENED[2:]], []),
        ([OPENED.replace(b"</d/a>", rb"</d/\303\251\74\76\n\\>")], [("open", "/d/\xe9<>\n\\", -1, 0)]),
        (
            [
                *(OPENED, b"5 1795306000.300 read(3</d/a>,  <unfinished ...>", b"8 1795306000.4 rubbish"),
                *(b"8 1795306000.400 fsync(3</d/a>) = 0", b'5 1795306000.500 <... read resumed>""..., 99) = 4 <0.2>'),
                *(b'9 1795306000.600 <... read resumed>""..., 99) = 9 <0.2>', b"5 1795306000.700 exit_group(0) = ?"),
                *(b"5 1795306000.800 --- SIGCHLD {si_signo=SIGCHLD} ---", b"strace: Process 18 attached", b""),
            ],
            [READ, ("sync", "/d/a", -1, 0)],
        ),
    ],
)
def test_lines_in_all_their_forms(lines, found, tmp_path):
    path = tmp_path / "a.strace"
    path.write_bytes(b"\n".join([*lines, b""]))
    first = [("open", "/d/a", -1, 0)] if OPENED in lines or OPENED[2:] in lines else []
    assert operations(path) == first + found
    damaged = [text for text in read_strace([path]).warnings if "damaged" in text]
    assert damaged == ["1 damaged line left out"] * any(b"rubbish" in line for line in lines)


def test_a_position_belongs_to_the_open_file(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x>',
        'openat(AT_FDCWD</d>, "x", O_RDONLY) = 4</d/x>',
        'read(3</d/x>, ""..., 10) = 10',
        "dup(3</d/x>) = 5</d/x>",
        'read(5</d/x>, ""..., 10) = 7',
        'read(4</d/x>, ""..., 5) = 5',
        "fcntl(5</d/x>, F_DUPFD_CLOEXEC, 0) = 6</d/x>",
        "lseek(6</d/x>, 3, SEEK_CUR) = 20",
        'readv(3</d/x>, [{iov_base=""..., iov_len=9}, {iov_base=""..., iov_len=1}], 2) = 10',
        'pread64(3</d/x>, ""..., 8, 1000) = 8',
        "dup2(4</d/x>, 3</d/x>) = 3</d/x>",
        'read(3</d/x>, ""..., 1) = 1',
    )
    assert data(path) == [("/d/x", *found) for found in ((0, 10), (10, 7), (0, 5), (20, 10), (1000, 8), (5, 1))]
    opened = [row for row in operations(path) if row[0] in ("open", "seek")]
    assert opened == [("open", "/d/x", -1, 0), ("open", "/d/x", -1, 0), ("seek", "/d/x", 20, 0)]


def test_opens_keep_their_flags_and_direct_io_is_said(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "x", O_RDONLY|O_DIRECT|O_CLOEXEC) = 3</d/x>',
        'read(3</d/x>, ""..., 10) = 10',
        'openat(AT_FDCWD</d>, "y", O_RDWR|O_CREAT|O_EXCL|O_APPEND|O_DSYNC, 0666) = 4</d/y>',
        'creat("/d/z", 0666) = 5</d/z>',
    )
    merge([path], [], tmp_path / "a.capture", MergeOptions())
    capture = open_capture(tmp_path / "a.capture")
    (batch,) = capture.operations(0, columns=["op", "open_flags"])
    found = dict.fromkeys(("open", "read"), ())
    for op, flags in zip(batch["op"].to_pylist(), batch["open_flags"].to_pylist(), strict=True):
        found[op] = (*found[op], flags)
    read_only, written, append, create, exclusive, truncate, direct, sync = (1 << bit for bit in range(8))
    all_of_y = read_only | written | append | create | exclusive | sync
    assert found == {"open": (read_only | direct, all_of_y, written | create | truncate), "read": (None,)}
    assert any(text.startswith("1 open asked for direct I/O (O_DIRECT)") for text in capture.info.warnings)


def test_announced_sequential_reads_are_a_flag_of_their_open(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "x", O_RDONLY|O_CLOEXEC) = 3</d/x>',
        'openat(AT_FDCWD</d>, "x", O_RDONLY) = 4</d/x>',
        "fadvise64(4</d/x>, 0, 2097440, POSIX_FADV_SEQUENTIAL) = 0",
        "fadvise64(3</d/x>, 0, 0, POSIX_FADV_DONTNEED) = 0",
        'read(3</d/x>, ""..., 10) = 10',
    )
    merge([path], [], tmp_path / "a.capture", MergeOptions())
    (batch,) = open_capture(tmp_path / "a.capture").operations(0, columns=["open_flags"])
    assert batch["open_flags"].to_pylist() == [1, 1 | 256, None]


def test_a_file_that_is_made_anew_is_empty(tmp_path):
    """O_EXCL fails where a file is: what was written under that name before is gone."""
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "x", O_WRONLY|O_CREAT, 0644) = 3</d/x>',
        'write(3</d/x>, ""..., 100) = 100',
        'openat(AT_FDCWD</d>, "x", O_WRONLY|O_CREAT|O_EXCL|O_APPEND, 0644) = 4</d/x>',
        'write(4</d/x>, ""..., 10) = 10',
        'write(4</d/x>, ""..., 10) = 10',
    )
    assert data(path) == [("/d/x", 0, 100), ("/d/x", 0, 10), ("/d/x", 10, 10)]


def test_appending_can_be_switched_on_and_off(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "x", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 3</d/x>',
        'write(3</d/x>, ""..., 100) = 100',
        "lseek(3</d/x>, 0, SEEK_SET) = 0",
        "fcntl(3</d/x>, F_SETFL, O_WRONLY|O_APPEND|O_LARGEFILE) = 0",
        'write(3</d/x>, ""..., 10) = 10',
        "lseek(3</d/x>, 5, SEEK_SET) = 5",
        "fcntl(3</d/x>, F_SETFL, O_WRONLY|O_LARGEFILE) = 0",
        'write(3</d/x>, ""..., 10) = 10',
    )
    assert data(path) == [("/d/x", 0, 100), ("/d/x", 100, 10), ("/d/x", 5, 10)]


def test_a_fork_shares_positions_and_a_thread_shares_descriptors(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x>',
        # The child's first read comes before its parent's clone returns.
        '200 read(3</d/x>, ""..., 10) = 10',
        "clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7) = 200",
        '100 read(3</d/x>, ""..., 10) = 10',
        "100 clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD, child_tid=0x7}, 88) = 300",
        '300 openat(AT_FDCWD</d>, "y", O_RDONLY) = 4</d/y>',
        '100 read(4</d/y>, ""..., 6) = 6',
        '200 openat(AT_FDCWD</d>, "z", O_RDONLY) = 4</d/z>',
        '300 read(4</d/y>, ""..., 6) = 6',
        '200 read(4</d/z>, ""..., 6) = 6',
    )
    assert data(path) == [
        ("/d/x", 0, 10), ("/d/x", 10, 10), ("/d/y", 0, 6), ("/d/y", 6, 6), ("/d/z", 0, 6),
    ]  # fmt: skip
    (rank,) = read_strace([path]).ranks
    assert [process.pid for process in rank.processes] == [100, 200]
    assert read_strace([path]).of_rank(0)[0]["thread"].max() == 2


def test_writes_and_names(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "log", O_WRONLY|O_CREAT|O_APPEND, 0644) = 3</d/log>',
        'newfstatat(3</d/log>, "", {st_mode=S_IFREG|0644, st_size=50, ...}, AT_EMPTY_PATH) = 0',
        'write(3</d/log>, ""..., 10) = 10',
        "lseek(3</d/log>, 0, SEEK_SET) = 0",
        'write(3</d/log>, ""..., 10) = 10',
        'openat(AT_FDCWD</d>, "t.tmp", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 4</d/t.tmp>',
        'write(4</d/t.tmp>, ""..., 4) = 4',
        "fsync(4</d/t.tmp>) = 0",
        'rename("/d/t.tmp", "/d/t") = 0',
        'write(4</d/t>, ""..., 4) = 4',
        "close(4</d/t>) = 0",
        'renameat2(AT_FDCWD</d>, "t", AT_FDCWD</d>, "../d/./u", RENAME_NOREPLACE) = 0',
        'unlink("/d/u") = 0',
        "copy_file_range(3</d/log>, NULL, 3</d/log>, [100], 10, 0) = 10",
    )
    found = operations(path)
    assert [row for row in found if row[0] == "write"] == [
        ("write", "/d/log", 50, 10), ("write", "/d/log", 60, 10), ("write", "/d/t.tmp", 0, 4),
        ("write", "/d/t", 4, 4), ("write", "/d/log", 100, 10),
    ]  # fmt: skip
    assert [row[:2] for row in found if row[0] not in ("write", "open", "seek", "stat")] == [
        ("sync", "/d/t.tmp"), ("rename", "/d/t.tmp"), ("close", "/d/t"), ("rename", "/d/t"), ("read", "/d/log"),
    ]  # fmt: skip
    merge([path], [], tmp_path / "a.capture", MergeOptions())
    capture = open_capture(tmp_path / "a.capture")
    names = capture.files["path"].to_pylist()
    (rows,) = capture.operations(0)
    targets = [file for file in rows["other_file_id"].to_pylist() if file is not None]
    assert [names[file] for file in targets] == ["/d/t", "/d/u"]
    assert set(rows["offset"].to_numpy()[codes(rows, "op") == OPS.index("rename")]) == {-1}
    assert any("1 unlink left out" in text for text in capture.info.warnings)


def test_an_unknown_descriptor_is_unknown_until_a_seek(tmp_path):
    path = tmp_path / "a"
    path.write_text(
        f'{T}.001000 read(9</d/x>, ""..., 10) = 10 <0.1>\n{T}.002000 lseek(9</d/x>, 0, SEEK_CUR) = 70 <0.1>\n'
        f'{T}.003000 read(9</d/x>, ""..., 10) = 10 <0.1>\n'
    )
    assert data(path) == [("/d/x", -1, 10), ("/d/x", 70, 10)]
    result = merge([path], [], tmp_path / "a.capture", MergeOptions())
    assert open_capture(result.capture).files["offsets"].to_pylist() == ["suspect"]


def test_programs_and_devices_are_left_out(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "/usr/lib/libc.so.6", O_RDONLY) = 3</usr/lib/libc.so.6>',
        'read(3</usr/lib/libc.so.6>, ""..., 10) = 10',
        'openat(AT_FDCWD</d>, "/d/v/lib/python3.11/x.json", O_RDONLY) = 4</d/v/lib/python3.11/x.json>',
        'read(5<pipe:[123]>, ""..., 10) = 10',
        'write(1</dev/pts/0>, ""..., 10) = 10',
        'openat(AT_FDCWD</d>, "/d", O_RDONLY|O_DIRECTORY) = 6</d>',
        "close(6</d>) = 0",
        'openat(AT_FDCWD</d>, "/d/a.bin", O_RDONLY) = 7</d/a.bin>',
        'openat(AT_FDCWD</d>, "/d/b.bin", O_RDONLY) = 8</d/b.bin>',
    )
    assert operations(path, exclude=["*/b.bin"]) == [("open", "/d/a.bin", -1, 0)]
    assert operations(path, include=["/usr/*"])[:2] == [
        ("open", "/usr/lib/libc.so.6", -1, 0),
        ("read", "/usr/lib/libc.so.6", 0, 10),
    ]
    assert "2 operations on files of the system" in read_strace([path]).warnings[0]


def test_standard_streams_are_no_storage(tmp_path):
    """The shell opened the files of 0 to 2 before the trace begins; what the job itself opens there is its own."""
    path = trace(
        tmp_path / "a",
        'newfstatat(1</d/log>, "", {st_mode=S_IFREG|0644, st_size=0, ...}, AT_EMPTY_PATH) = 0',
        "fstat(0</d/in>, {st_mode=S_IFREG|0644, st_size=3000000, ...}) = 0",
        "lseek(0</d/in>, 0, SEEK_CUR) = 0",
        'read(0</d/in>, ""..., 1048576) = 1048576',
        'write(1</d/log>, ""..., 10) = 10',
        "fcntl(1</d/log>, F_DUPFD, 10) = 10</d/log>",
        'write(10</d/log>, ""..., 10) = 10',
        "copy_file_range(0</d/in>, NULL, 1</d/log>, NULL, 100, 0) = 100",
        'openat(AT_FDCWD</d>, "own", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 3</d/own>',
        "dup2(3</d/own>, 1</d/log>) = 1</d/own>",
        'write(1</d/own>, ""..., 7) = 7',
        'openat(AT_FDCWD</d>, "log", O_RDONLY) = 4</d/log>',
        'read(4</d/log>, ""..., 20) = 20',
        "dup2(10</d/log>, 1</d/own>) = 1</d/log>",
        'write(1</d/log>, ""..., 10) = 10',
    )
    assert operations(path) == [
        ("open", "/d/own", -1, 0), ("write", "/d/own", 0, 7), ("open", "/d/log", -1, 0), ("read", "/d/log", 0, 20),
    ]  # fmt: skip
    (said,) = (text for text in read_strace([path]).warnings if "standard input" in text)
    assert "6 operations on standard input, output and error (1.00 MiB)" in said


def test_splice_reads_a_file_and_io_uring_is_named(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "in", O_RDONLY) = 3</d/in>',
        "splice(3</d/in>, NULL, 5<pipe:[7]>, NULL, 100, 0) = 100",
        "splice(4<pipe:[7]>, NULL, 6</d/out>, [50], 100, 0) = 100",
        "io_uring_enter(8<anon_inode:[io_uring]>, 1, 1, IORING_ENTER_GETEVENTS, NULL, 8) = 1",
    )
    assert data(path) == [("/d/in", 0, 100), ("/d/out", 50, 100)]
    job = read_strace([path])
    assert (job.hidden, job.complete) == (("python by io_uring",), False)


def test_a_folder_that_was_opened_like_a_file_is_none(tmp_path):
    path = trace(
        tmp_path / "a",
        'openat(AT_FDCWD</d>, "x", O_RDONLY|O_CLOEXEC) = 3</d/x>',
        'newfstatat(3</d/x>, "", {st_mode=S_IFDIR|0700, st_size=4096, ...}, AT_EMPTY_PATH) = 0',
        "lseek(3</d/x>, 0, SEEK_SET) = 0",
    )
    assert operations(path) == []


def test_a_thread_without_a_call_of_interest_was_followed(tmp_path):
    path = trace(tmp_path / "a", "clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD}, 88) = 101")
    assert not read_strace([path]).complete
    path.write_text(path.read_text() + f"101 {T}.900000 +++ exited with 0 +++\n")
    assert read_strace([path]).complete


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
def test_redirected_output_of_a_real_job_is_no_write(tmp_path):
    log, result, record = (tmp_path / name for name in ("log.txt", "result.bin", "a.strace"))
    job = f"print('x' * 9999); open({str(result)!r}, 'wb').write(bytes(77))"
    with log.open("wb") as output:
        options = ["-f", "-ttt", "-T", "-y", "-s", "0", "-o", str(record)]
        done = subprocess.run(["strace", *options, sys.executable, "-c", job], stdout=output, stderr=subprocess.PIPE)
    if done.returncode or not record.exists():
        pytest.skip("strace may not trace here")
    assert log.stat().st_size == 10_000
    assert {row[1] for row in operations(record) if Path(row[1]).parent == tmp_path} == {str(result)}
    assert [row[1:] for row in operations(record) if row[0] == "write"] == [(str(result), 0, 77)]


def test_ranks_below_a_launcher(tmp_path):
    lines = []
    for pid in (101, 102):
        lines += [
            f"100 clone(child_stack=NULL, flags=SIGCHLD) = {pid}",
            f'{pid} execve("/usr/bin/python", [...], 0x7) = 0',
            f'{pid} openat(AT_FDCWD</d>, "r{pid}", O_RDONLY) = 3</d/r{pid}>',
        ]
    path = trace(tmp_path / "a", 'execve("/usr/bin/mpiexec", [...], 0x7) = 0', *lines)
    ranks = read_strace([path]).ranks
    assert [rank.own.pid for rank in ranks] == [101, 102]


def test_a_trace_for_each_rank(tmp_path):
    paths = [
        trace(tmp_path / f"rank{rank}.strace", f'openat(AT_FDCWD</d>, "x", O_RDONLY) = {3 + rank}</d/x>', tid=50 - rank)
        for rank in range(2)
    ]
    job = read_strace(paths[::-1])
    assert [rank.own.pid for rank in job.ranks] == [50, 49]


def test_damage_is_counted_and_the_rest_is_read(tmp_path):
    whole = trace(tmp_path / "a", *['openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x>'] * 200).read_bytes()
    path = tmp_path / "b"
    path.write_bytes(whole.replace(b"\n", b"\nrubbish\n", 1))
    job = read_strace([path])
    assert job.warnings[0] == "1 damaged line left out"
    assert not job.complete
    path.write_bytes(gzip.compress(whole)[:-40])
    cut = read_strace([path])
    assert cut.warnings[0].startswith("the end of b")
    assert 0 < len(cut.of_rank(0)[0]) < 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('10:00:00.1234 openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x>\n', "without -ttt"),
        ('openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x>\n', "without -ttt"),
        (f'{T}.001000 openat(AT_FDCWD, "x", O_RDONLY) = 3 <0.1>\n', "without -y"),
        (f"{T}.001000 exit_group(0) = ?\n", "no system call"),
    ],
)
def test_what_cannot_be_used_says_why(tmp_path, text, said):
    path = tmp_path / "a.strace"
    path.write_text(text)
    with pytest.raises(LogError, match=said):
        merge([path], [], tmp_path / "a.capture", MergeOptions())


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["read", "pread", "seek", "dup"]), st.integers(0, 50)), max_size=40
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_offsets_are_those_of_the_kernel(tmp_path_factory, steps):
    """Random calls are carried out on a real file, and written down as strace does."""
    folder = tmp_path_factory.mktemp("kernel")
    import os

    name = folder / "x.bin"
    name.write_bytes(bytes(300))
    opened = [os.open(name, os.O_RDONLY) for _ in range(3)]
    lines = [f'openat(AT_FDCWD</d>, "x", O_RDONLY) = {fd}<{name}>' for fd in opened]
    expected = []
    try:
        for which, what, amount in steps:
            fd = opened[which % len(opened)]
            if what == "read":
                offset = os.lseek(fd, 0, os.SEEK_CUR)
                got = len(os.read(fd, amount))
                expected.append((offset, got))
                lines.append(f'read({fd}<{name}>, ""..., {amount}) = {got}')
            elif what == "pread":
                got = len(os.pread(fd, amount, 3 * amount))
                expected.append((3 * amount, got))
                lines.append(f'pread64({fd}<{name}>, ""..., {amount}, {3 * amount}) = {got}')
            elif what == "seek":
                lines.append(f"lseek({fd}<{name}>, {amount}, SEEK_SET) = {os.lseek(fd, amount, os.SEEK_SET)}")
            else:
                opened.append(os.dup(fd))
                lines.append(f"dup({fd}<{name}>) = {opened[-1]}<{name}>")
    finally:
        for fd in opened:
            os.close(fd)
    found = data(trace(folder / "a", *lines))
    assert [(offset, length) for _, offset, length in found] == expected
