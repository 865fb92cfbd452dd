"""strace's output as operations: against known truth, against the kernel, and call by call."""

import gzip
import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.tracers.strace import read_strace
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.schema import OPS
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


def merged(folder, *traces):
    folder.mkdir(exist_ok=True)
    return open_capture(merge(traces, [], folder / "a.capture").capture)


@pytest.mark.parametrize("form", ["one", "many"])
def test_the_reads_of_a_job_are_where_they_were(form, tmp_path):
    truth = json.loads(recorded(f"other-sources/strace/truth-{form}.json").read_text())["reads"]
    found = recorded(f"other-sources/strace/{'many' if form == 'many' else 'one.strace.gz'}")
    files = sorted(found.iterdir()) if found.is_dir() else [found]
    job = read_strace(files)
    pids = {process.number: process.pid for process in job.ranks[0].processes}
    rows, threads = job.of_rank(0)
    raw = [number for number, path in enumerate(job.paths) if path.endswith(b"/raw.bin")]
    found = rows[(rows["op"] == OPS.index("read")) & np.isin(rows["file"], raw)]
    mine = sorted((pids[row["process"]], row["start_ns"], row["offset"], row["length"]) for row in found)
    true = sorted((pid, at_ns, offset, length) for pid, _, _, offset, length, at_ns in truth)
    assert [(each[0], *each[2:]) for each in mine] == [(each[0], *each[2:]) for each in true]
    late = np.array([one[1] - other[1] for one, other in zip(mine, true, strict=True)])
    assert 0 < np.median(late) < 1_000_000

    # Workers of the program were forked, and its other thread is the queue's.
    main, workers = truth[0][0], {pid for pid, *_ in truth} - {truth[0][0]}
    assert {process.pid for process, _ in threads} >= {main, *workers}
    result = merge(files, [], tmp_path / "a.capture")
    capture = open_capture(result.capture)
    lanes = [(row["pid"], row["thread"], row["role"]) for row in capture.lanes.to_pylist()]
    assert {row for row in lanes if row[0] == row[1]} == {(main, main, "main"), *((p, p, "worker") for p in workers)}
    assert [(pid, role) for pid, thread, role in lanes if pid != thread] == [(main, "thread")]
    assert (len(result.info.ranks), result.operations, result.reconstructed) == (1, 795, 0)
    assert any("AIO): /scratch/train/data/raw.bin" in text for text in result.info.warnings)
    assert result.info.coverage.bytes is None
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


def opened(name, flags="O_RDONLY", fd=3):
    return f'openat(AT_FDCWD</d>, "{name}", {flags}) = {fd}</d/{name}>'


CALLS = {
    "a position belongs to the open file": (
        [
            *(opened("x"), opened("x", fd=4), 'read(3</d/x>, ""..., 10) = 10', "dup(3</d/x>) = 5</d/x>"),
            *('read(5</d/x>, ""..., 10) = 7', 'read(4</d/x>, ""..., 5) = 5'),
            *("fcntl(5</d/x>, F_DUPFD_CLOEXEC, 0) = 6</d/x>", "lseek(6</d/x>, 3, SEEK_CUR) = 20"),
            'readv(3</d/x>, [{iov_base=""..., iov_len=9}, {iov_base=""..., iov_len=1}], 2) = 10',
            *('pread64(3</d/x>, ""..., 8, 1000) = 8', "dup2(4</d/x>, 3</d/x>) = 3</d/x>"),
            'preadv2(3</d/x>, [{iov_base=""..., iov_len=4}], 1, 500, RWF_HIPRI) = 4',
            'read(3</d/x>, ""..., 1) = 1',
        ],
        "open x, open x, read x 0 10, read x 10 7, read x 0 5, seek x 20, read x 20 10, read x 1000 8, "
        "read x 500 4, read x 5 1",
    ),
    "O_EXCL fails where a file is: what was written under that name before is gone": (
        [
            *(opened("x", "O_WRONLY|O_CREAT, 0644"), 'write(3</d/x>, ""..., 100) = 100'),
            *(opened("x", "O_WRONLY|O_CREAT|O_EXCL|O_APPEND, 0644", 4), 'write(4</d/x>, ""..., 10) = 10'),
            'write(4</d/x>, ""..., 10) = 10',
        ],
        "open x, write x 0 100, open x, write x 0 10, write x 10 10",
    ),
    "appending can be switched on and off": (
        [
            *(opened("x", "O_WRONLY|O_CREAT|O_TRUNC, 0644"), 'write(3</d/x>, ""..., 100) = 100'),
            "fcntl(3</d/x>, F_SETFL, O_WRONLY|O_APPEND|O_LARGEFILE) = 0",
            *("lseek(3</d/x>, 0, SEEK_SET) = 0", 'write(3</d/x>, ""..., 10) = 10'),
            *("lseek(3</d/x>, 5, SEEK_SET) = 5", "fcntl(3</d/x>, F_SETFL, O_WRONLY|O_LARGEFILE) = 0"),
            'write(3</d/x>, ""..., 10) = 10',
        ],
        "open x, write x 0 100, seek x 0, write x 100 10, seek x 5, write x 5 10",
    ),
    "a fork shares positions and a thread shares descriptors": (
        [
            # The child's first read comes before its parent's clone returns.
            *(opened("x"), '200 read(3</d/x>, ""..., 10) = 10'),
            "clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7) = 200",
            '100 read(3</d/x>, ""..., 10) = 10',
            "100 clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD, child_tid=0x7}, 88) = 300",
            *("300 " + opened("y", fd=4), '100 read(4</d/y>, ""..., 6) = 6', "200 " + opened("z", fd=4)),
            *('300 read(4</d/y>, ""..., 6) = 6', '200 read(4</d/z>, ""..., 6) = 6'),
        ],
        "open x, read x 0 10, read x 10 10, open y, read y 0 6, open z, read y 6 6, read z 0 6",
    ),
    "writes, names and copies": (
        [
            opened("log", "O_WRONLY|O_CREAT|O_APPEND, 0644"),
            'newfstatat(3</d/log>, "", {st_mode=S_IFREG|0644, st_size=50, ...}, AT_EMPTY_PATH) = 0',
            *('write(3</d/log>, ""..., 10) = 10', "lseek(3</d/log>, 0, SEEK_SET) = 0"),
            *('write(3</d/log>, ""..., 10) = 10', opened("t.tmp", "O_WRONLY|O_CREAT|O_TRUNC, 0644", 4)),
            *('write(4</d/t.tmp>, ""..., 4) = 4', "fsync(4</d/t.tmp>) = 0", 'rename("/d/t.tmp", "/d/t") = 0'),
            *('write(4</d/t>, ""..., 4) = 4', "close(4</d/t>) = 0"),
            'renameat2(AT_FDCWD</d>, "t", AT_FDCWD</d>, "../d/./u", RENAME_NOREPLACE) = 0',
            *('unlink("/d/u") = 0', "copy_file_range(3</d/log>, NULL, 3</d/log>, [100], 10, 0) = 10"),
            "sendfile(8<TCP:[7]>, 3</d/log>, [30], 5) = 5",
        ],
        "open log, stat log, write log 50 10, seek log 0, write log 60 10, open t.tmp, write t.tmp 0 4, sync t.tmp, "
        "rename t.tmp, write t 4 4, close t, rename t, read log 70 10, write log 100 10, read log 30 5",
    ),
    "splice reads a file, and a pipe is none": (
        [
            *(opened("in"), "splice(3</d/in>, NULL, 5<pipe:[7]>, NULL, 100, 0) = 100"),
            "splice(4<pipe:[7]>, NULL, 6</d/out>, [50], 100, 0) = 100",
        ],
        "open in, read in 0 100, write out 50 100",
    ),
    "names are relative to the working directory": (
        [
            *('chdir("/e") = 0', 'stat("f", {st_mode=S_IFREG|0644, st_size=9, ...}) = 0'),
            *("fchdir(7</d>) = 0", 'rename("a", "b") = 0'),
        ],
        "stat /e/f, rename a",
    ),
    "a folder that was opened like a file is none": (
        [
            opened("x", "O_RDONLY|O_CLOEXEC"),
            'newfstatat(3</d/x>, "", {st_mode=S_IFDIR|0700, st_size=4096, ...}, AT_EMPTY_PATH) = 0',
            "lseek(3</d/x>, 0, SEEK_SET) = 0",
        ],
        "",
    ),
    "programs and devices are left out": (
        [
            'openat(AT_FDCWD</d>, "/usr/lib/libc.so.6", O_RDONLY) = 3</usr/lib/libc.so.6>',
            *('read(3</usr/lib/libc.so.6>, ""..., 10) = 10', 'read(5<pipe:[123]>, ""..., 10) = 10'),
            *('write(9</dev/pts/0>, ""..., 10) = 10', 'openat(AT_FDCWD</d>, "/d", O_RDONLY|O_DIRECTORY) = 6</d>'),
            *("close(6</d>) = 0", opened("a.bin", fd=7)),
        ],
        "open a.bin",
    ),
    # The shell opened the files of 0 to 2 before the trace begins; what the job itself opens there is its own.
    "standard streams are no storage": (
        [
            'newfstatat(1</d/log>, "", {st_mode=S_IFREG|0644, st_size=0, ...}, AT_EMPTY_PATH) = 0',
            "fstat(0</d/in>, {st_mode=S_IFREG|0644, st_size=3000000, ...}) = 0",
            *("lseek(0</d/in>, 0, SEEK_CUR) = 0", 'read(0</d/in>, ""..., 1048576) = 1048576'),
            *('write(1</d/log>, ""..., 10) = 10', "fcntl(1</d/log>, F_DUPFD, 10) = 10</d/log>"),
            'write(10</d/log>, ""..., 10) = 10',
            *("copy_file_range(0</d/in>, NULL, 1</d/log>, NULL, 100, 0) = 100", opened("own", "O_WRONLY|O_CREAT")),
            *("dup2(3</d/own>, 1</d/log>) = 1</d/own>", 'write(1</d/own>, ""..., 7) = 7', opened("log", fd=4)),
            *('read(4</d/log>, ""..., 20) = 20', "dup2(10</d/log>, 1</d/own>) = 1</d/log>"),
            'write(1</d/log>, ""..., 10) = 10',
        ],
        "open own, write own 0 7, open log, read log 0 20",
    ),
}
"""Calls, and the operations that they are: what, which file below /d, offset if any, length if any."""


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_operations(name, tmp_path):
    calls, expected = CALLS[name]
    found = []
    for op, path, offset, length in operations(trace(tmp_path / "a", *calls)):
        numbers = [offset, length] if op in ("read", "write") else [offset] if op == "seek" else []
        found.append(" ".join([op, path.removeprefix("/d/"), *map(str, numbers)]))
    assert ", ".join(found) == expected


def test_what_a_capture_says_of_the_calls(tmp_path):
    path = trace(
        tmp_path / "a",
        *(opened("x", "O_RDONLY|O_DIRECT|O_CLOEXEC"), 'read(3</d/x>, ""..., 10) = 10'),
        opened("y", "O_RDWR|O_CREAT|O_EXCL|O_APPEND|O_DSYNC, 0666", 4),
        *('creat("/d/z", 0666) = 5</d/z>', opened("s", fd=6)),
        "fadvise64(6</d/s>, 0, 2097440, POSIX_FADV_SEQUENTIAL) = 0",
        *("fadvise64(3</d/x>, 0, 0, POSIX_FADV_DONTNEED) = 0", 'rename("/d/z", "/d/u") = 0', 'unlink("/d/u") = 0'),
        'write(1</d/log>, ""..., 1048576) = 1048576',
        *('openat(AT_FDCWD</d>, "/usr/lib/l", O_RDONLY) = 9</usr/lib/l>', 'read(9</usr/lib/l>, ""..., 1) = 1'),
    )
    capture = merged(tmp_path, path)
    (batch,) = capture.operations(0, columns=["op", "open_flags", "other_file_id", "offset"])
    rows = batch.to_pylist()
    read_only, written, append, create, exclusive, truncate, direct, sync, sequential = (1 << bit for bit in range(9))
    all_of_y = read_only | written | append | create | exclusive | sync
    assert [row["open_flags"] for row in rows] == [
        *(read_only | direct, None, all_of_y, written | create | truncate, read_only | sequential, None)
    ]
    names = capture.files["path"].to_pylist()
    assert [(names[row["other_file_id"]], row["offset"]) for row in rows if row["op"] == "rename"] == [("/d/u", -1)]
    for said in (
        *("1 open asked for direct I/O (O_DIRECT)", "1 unlink left out", "2 operations on files of the system"),
        "1 operation on standard input, output and error (1.00 MiB)",
    ):
        assert any(said in text for text in capture.info.warnings), said


def test_an_unknown_descriptor_is_unknown_until_a_seek(tmp_path):
    path = tmp_path / "a"
    path.write_text(
        f'{T}.001000 read(9</d/x>, ""..., 10) = 10 <0.1>\n{T}.002000 lseek(9</d/x>, 0, SEEK_CUR) = 70 <0.1>\n'
        f'{T}.003000 read(9</d/x>, ""..., 10) = 10 <0.1>\n'
    )
    assert [row[2] for row in operations(path)] == [-1, 70, 70]
    assert merged(tmp_path, path).files["offsets"].to_pylist() == ["suspect"]
    path.write_text(path.read_text() + f"{T}.004000 lseek(9</d/x>, 0, SEEK_CUR) = 99 <0.1>\n")
    assert any(text.startswith("1 of 1 seeks that ask for the position") for text in read_strace([path]).warnings)


KEPT = (
    *("/dev/shm/x/a.bin", "/dev/shm/sem.x/a.bin", "/dev/shm/torch_1_2_3/a.bin", "/dev/shm/torch_weights", "/var/tmp/a"),
    *("/data/model.pth", "/data/my-info/a.bin", "/data/dist-info/a.bin", "/opt/data/a", "/opt/data/shared/a.bin"),
    *("/library/a", "/devices/a"),
)
LEFT_OUT = (
    *("/dev/null", "/dev/shm/sem.QpKmld", "/dev/shm/torch_22640_353182064_0", "/dev/shm/psm_21467a1f", "/usr/share/x"),
    *("/proc/self/maps", "/opt/conda/lib/x.json", "/opt/conda/envs/a/share/x.json", "/var/lib/x", "/data/train.py"),
    *("/data/env/lib/python3.11/site-packages/a.dat", "/data/torch-2.0.dist-info/RECORD", "/data/libtorch.so.2"),
)
NO_FILES = ("pipe:[123]", "TCP:[10.0.0.1:1->10.0.0.2:2]", "anon_inode:[eventpoll]", "/memfd:x", "/anon_hugepage")


@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, KEPT), ({"include": ["*"]}, (*KEPT, *LEFT_OUT)), ({"include": ["*"], "exclude": ["/d*"]}, None)],
)
def test_which_paths_are_files_of_the_job(options, kept, tmp_path):
    """Not the system and programs unless they are included, never what is no file; `exclude` is stronger."""
    paths = (*KEPT, *LEFT_OUT, *NO_FILES)
    calls = [f"fsync({number}<{path.replace('>', chr(92) + '76')}>) = 0" for number, path in enumerate(paths, 3)]
    found = {row[1] for row in operations(trace(tmp_path / "a", *calls), **options)}
    assert found == ({path for path in (*KEPT, *LEFT_OUT) if path[:2] != "/d"} if kept is None else set(kept))


def test_threads_that_were_not_followed_and_io_uring_leave_a_trace_incomplete(tmp_path):
    path = trace(tmp_path / "a", "clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD}, 88) = 101")
    assert not read_strace([path]).complete
    path.write_text(path.read_text() + f"101 {T}.900000 +++ exited with 0 +++\n")
    assert read_strace([path]).complete
    ring = "io_uring_enter(8<anon_inode:[io_uring]>, 1, 1, IORING_ENTER_GETEVENTS, NULL, 8) = 1"
    job = read_strace([trace(tmp_path / "b", ring)])
    assert (job.hidden, job.complete) == (("python by io_uring",), False)


def test_ranks_below_a_launcher_and_a_trace_for_each_rank(tmp_path):
    lines = [opened("lost")]
    for pid in (101, 102):
        lines += [
            f"100 clone(child_stack=NULL, flags=SIGCHLD) = {pid}",
            *(f'{pid} execve("/usr/bin/python", [...], 0x7) = 0', f"{pid} {opened(f'r{pid}')}"),
        ]
    job = read_strace([trace(tmp_path / "a", 'execve("/usr/bin/mpiexec", [...], 0x7) = 0', *lines)])
    assert [rank.own.pid for rank in job.ranks] == [101, 102]
    assert "1 operations of launchers, and of programs beside the ranks, are left out" in job.warnings
    paths = [trace(tmp_path / f"rank{1 + rank}.strace", opened("x", fd=3 + rank), tid=50 - rank) for rank in range(2)]
    job = read_strace(paths[::-1])
    assert [rank.own.pid for rank in job.ranks] == [50, 49]
    assert any("there are traces of rank 1, 2 alone" in text for text in job.warnings)


def test_lanes_of_the_ranks_own_process_come_first(tmp_path):
    lines = ["200 " + opened("y"), "clone(child_stack=NULL, flags=SIGCHLD) = 200", opened("x")]
    rows, threads = read_strace([trace(tmp_path / "a", *lines)]).of_rank(0)
    assert (rows["thread"].tolist(), [process.pid for process, _ in threads]) == ([1, 0], [100, 200])
    assert (rows["end_ns"] - rows["start_ns"]).tolist() == [100_000] * 2


def test_damage_is_counted_and_the_rest_is_read(tmp_path):
    whole = trace(tmp_path / "a", *[opened("x")] * 200).read_bytes()
    path = tmp_path / "b"
    path.write_bytes(whole.replace(b"\n", b"\nrubbish\n", 1))
    job = read_strace([path])
    assert (job.warnings[0], job.complete) == ("1 damaged line left out", False)
    path.write_bytes(gzip.compress(whole)[:-40])
    cut = read_strace([path])
    assert cut.warnings[0].startswith("the end of b is cut off: ")
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
        merge([path], [], tmp_path / "a.capture")


STEP = st.tuples(st.integers(0, 2), st.sampled_from(["read", "pread", "seek", "dup"]), st.integers(0, 50))


@given(st.lists(STEP, max_size=40))
@settings(max_examples=examples(60), deadline=None)
def test_offsets_are_those_of_the_kernel(tmp_path_factory, steps):
    """Random calls are carried out on a real file, and written down as strace does."""
    folder = tmp_path_factory.mktemp("kernel")
    name = folder / "x.bin"
    name.write_bytes(bytes(300))
    descriptors = [os.open(name, os.O_RDONLY) for _ in range(3)]
    lines = [f'openat(AT_FDCWD</d>, "x", O_RDONLY) = {fd}<{name}>' for fd in descriptors]
    expected = []
    try:
        for which, what, amount in steps:
            fd = descriptors[which % len(descriptors)]
            if what == "read":
                expected.append((os.lseek(fd, 0, os.SEEK_CUR), len(os.read(fd, amount))))
                lines.append(f'read({fd}<{name}>, ""..., {amount}) = {expected[-1][1]}')
            elif what == "pread":
                expected.append((3 * amount, len(os.pread(fd, amount, 3 * amount))))
                lines.append(f'pread64({fd}<{name}>, ""..., {amount}, {3 * amount}) = {expected[-1][1]}')
            elif what == "seek":
                lines.append(f"lseek({fd}<{name}>, {amount}, SEEK_SET) = {os.lseek(fd, amount, os.SEEK_SET)}")
            else:
                descriptors.append(os.dup(fd))
                lines.append(f"dup({fd}<{name}>) = {descriptors[-1]}<{name}>")
    finally:
        for fd in descriptors:
            os.close(fd)
    found = operations(trace(folder / "a", *lines))
    assert [(offset, length) for op, _, offset, length in found if op == "read"] == expected


def test_both_ends_of_a_connection_are_known_in_either_family_or_not_at_all(tmp_path):
    """strace -y does not show them."""
    calls = [
        ('read(3<TCPv6:[[::ffff:10.0.0.1]:5000->[::ffff:10.0.0.2]:6000]>, ""..., 9)', 9),
        ("close(4<TCP:[10.0.0.2:6000->10.0.0.1:5000]>)", 0),
        ('recvfrom(5<TCPv6:[[2001:db8::1]:5000->[2001:db8::2]:443]>, ""..., 9)', 7),
        ('recvfrom(5<TCPv6:[[2001:db8::1]:5000->[2001:db8::2]:443]>, ""..., 9, MSG_PEEK, NULL, NULL)', 9),
        ('read(6<TCPv6:[[2001:db8::1]:5001->[2001:db8::2]:443]>, ""..., 9)', 1),
        ('read(7<UNIX-STREAM:[1->2]>, ""..., 9)', 9),
        ('read(8</data/TCP:[1]>, ""..., 9)', 9),
        ('pread64(9</data/a>, ""..., 9, 0)', 15),
    ]
    unknown = ('read(9<socket:[4711]>, ""..., 9000000)', 3_000_000)
    for number, (lines, received, of_unknown, peer, share) in enumerate((
        (calls, {"2001:db8::2:443": 8}, 0, "2001:db8::2:443", (9 + 15) / (9 + 15 + 8)),
        ([calls[-1], unknown], {}, 3_000_000, None, None),
    )):  # fmt: skip
        log = tmp_path / f"{number}.strace"
        log.write_text("".join(f"7 1795306000.100 {call} = {result} <0.1>\n" for call, result in lines))
        job, coverage = read_strace([log]), merged(tmp_path / str(number), log).info.coverage
        assert (job.received, job.received_of_unknown) == (received, of_unknown)
        (unseen,) = coverage.unseen
        assert (unseen.kind, unseen.bytes) == ("socket", received.get(peer))
        assert peer in (None, unseen.name)
        assert coverage.bytes == (share if share is None else pytest.approx(share))
