"""The processes of a job: one in the foreground, those that outlive it, and what all of them read past every tracer."""

import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from socket import create_server

import numpy as np
import pytest

from dxt_replay.profiler_merge.mapped_reads import FAULT_ROW, MAPPING, mapped_reads
from dxt_replay.profiler_merge.recorder import processes
from dxt_replay.profiler_merge.recorder.page_faults import PageFaults, collected_faults
from dxt_replay.profiler_merge.recorder.processes import adopted, run_in_foreground, signals_held
from dxt_replay.profiler_merge.recorder.watch import Watch, data_mappings, descendants, mapped_files
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import APIS, OPS, codes
from dxt_replay.traces.store.reader import open_capture
from tests.places import PYTHON_PATH, ROOT

MIB, PAGE = 1 << 20, 4096

# A command in the foreground: of a process of its own, as signals are of a whole process.

RUN = """
import os, sys
from dxt_replay.profiler_merge.recorder.processes import run_in_foreground, signals_held
{imports}
with signals_held() as mask:
    ended = run_in_foreground(sys.argv[1:], os.environ, mask)
print("ended", ended.status, list(ended.signals), flush=True)
"""
HEEDING = """
import signal, sys, time
def heed(number, frame):
    print("heard", number, flush=True)
    number == last and sys.exit(7)
*_, last = numbers = list(map(int, sys.argv[1:]))
for number in numbers:
    signal.signal(number, heed)
print("ready", flush=True)
while True:
    time.sleep(0.1)  # not pause(): a signal just before it would be heeded after the next one
"""


def words_of(command, imports=""):
    return [sys.executable, "-c", RUN.format(imports=imports), *command]


def heeding(*numbers):
    return [sys.executable, "-c", HEEDING, *(str(int(number)) for number in numbers)]


HELD = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (["cat"], "one\ntwo\nended 0 []\n"),
        (["sh", "-c", "exit 3"], "ended 3 []\n"),
        (["sh", "-c", "kill -KILL $$"], "ended 137 []\n"),
        (["sh", "-c", "kill -TERM $$"], "ended 143 []\n"),
        ([sys.executable, "-c", HELD], "[]\nended 0 []\n"),  # the signals held back are those of before
    ],
)
def test_input_output_and_status_are_the_commands_own(command, printed):
    done = subprocess.run(words_of(command), cwd=ROOT, text=True, stdout=-1, check=True, input="one\ntwo\n")
    assert done.stdout == printed


@pytest.mark.parametrize("imports", ["", "import numpy"])  # with threads that take signals, and without
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_goes_on_to_the_command_once(number, imports):
    words = words_of(heeding(number), imports)
    with subprocess.Popen(words, cwd=ROOT, text=True, stdout=-1, start_new_session=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        rest = process.stdout.read()
    assert rest == f"heard {int(number)}\nended 7 [{int(number)}]\n"


def test_output_goes_to_a_descriptor_and_a_missing_command_is_said(tmp_path):
    with (tmp_path / "out").open("wb") as file, signals_held() as mask:
        run_in_foreground(["echo", "hello"], os.environ, mask, output=file.fileno())
        with pytest.raises(UsageError, match="no-such-command was not found"):
            run_in_foreground(["no-such-command"], os.environ, mask)
    assert (tmp_path / "out").read_text(encoding="utf-8") == "hello\n"


@pytest.mark.parametrize("imports", ["", "import numpy"])
def test_what_the_terminal_sends_to_both_is_not_sent_on(imports):
    pid, terminal = pty.fork()
    if not pid:
        words = words_of(heeding(signal.SIGINT, signal.SIGUSR1), imports)
        os.execve(sys.executable, words, {**os.environ, "PYTHONPATH": PYTHON_PATH})
    with os.fdopen(terminal, "rb", buffering=0) as lines:
        seen = read_until(lines, b"ready")
        os.write(terminal, b"\x03")
        seen += read_until(lines, b"heard 2")
        os.kill(pid, signal.SIGUSR1)
        seen += read_until(lines, b"ended")
    os.waitpid(pid, 0)
    assert seen.count(b"heard 2") == 1
    assert b"heard 10" in seen


def read_until(file, words):
    seen = b""
    while words not in seen:
        seen += file.read(1000) or b""
    return seen


# Those that outlive the program, and what all of them read.


@pytest.fixture
def family():
    """With signals held, as `signals_held` does for `Family.wait`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*processes.FORWARDED, signal.SIGCHLD))
    with adopted() as found:
        yield found
    while signal.sigtimedwait(processes.FORWARDED, 0):
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


# A child, an orphan, one without an environment, one of a killed parent, and one beside which another one still lives.
CAT = "cat data > /dev/null"
SLEEPS = "(cat data > /dev/null; exec sleep 60) & exit 0"


@pytest.mark.parametrize("command", [CAT, f"{CAT} & exit 0", f"env -i {CAT}", f"{CAT}; kill -9 $$", SLEEPS])
def test_all_bytes_of_the_tree_are_counted_and_who_still_lives_is_named(tmp_path, monkeypatch, family, command):
    if command == SLEEPS:
        monkeypatch.setattr(processes, "PATIENCE_S", 0.5)
    (tmp_path / "data").write_bytes(bytes(3 * MIB))
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False)
    alive = family.wait(lambda pids: None)
    assert list(alive.values()) == ["sleep"] * (command == SLEEPS)
    moved = family.moved()
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if moved is None:
        pytest.skip("this kernel does not count the bytes of processes")
    assert 3 * MIB <= moved["rchar"] < 4 * MIB


def test_a_signal_ends_the_wait():
    """In a process of its own: the signal would end this one if the wait did not take it."""
    program = """
import os, signal, subprocess, time
from dxt_replay.profiler_merge.recorder.processes import adopted, signals_held
with signals_held(), adopted() as family:
    subprocess.run(["sh", "-c", "sleep 60 & exit 0"], check=True)
    begin = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
    (pid,) = family.wait(lambda pids: None)
    print(time.monotonic() - begin < 5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    signal.sigtimedwait([signal.SIGINT], 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_processes_of_others_are_let_alone():
    with subprocess.Popen(["sleep", "60"]) as other:
        with adopted() as family:
            assert family.wait(lambda pids: None) == {}
        other.kill()


# From outside: mapped files and sockets.

SMAPS = b"""\
7f0000000000-7f0000400000 r--s 00000000 08:01 99                         /data/train.arrow
Size:               4096 kB
Rss:                1024 kB
7f0000400000-7f0000800000 r--p 00400000 08:01 99                         /data/train.arrow
Rss:                 512 kB
7f0000800000-7f0000900000 r-xp 00000000 08:01 98                         /data/my program
Rss:                 512 kB
7f0000900000-7f0000a00000 r--p 00100000 08:01 98                         /data/my program
7f0000a00000-7f0000b00000 r--p 00000000 08:01 97                         /usr/lib/locale/locale-archive
7f0000b00000-7f0000c00000 rw-s 00000000 00:01 96                         /dev/shm/torch_1
7f0000c00000-7f0000d00000 r--s 00000000 08:01 95                         /data/gone (deleted)
7f0000d00000-7f0000e00000 rw-p 00000000 00:00 0
Rss:                 999 kB
7f0000e00000-7f0000f00000 r--p 00000000 08:01 94                         /opt/python/lib/python3.11/site-packages/a.dat
7f0000f00000-7f0001000000 rw-p 00000000 00:00 0                          [heap]
"""
JOB = """
import mmap, os, socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as store:
    left = int(sys.argv[2])
    while left:
        left -= len(store.recv(65536))
    data = os.open(sys.argv[3], os.O_RDONLY)
    mapped = mmap.mmap(data, 0, prot=mmap.PROT_READ)
    print(sum(mapped[: int(sys.argv[4]) : 4096]), flush=True)
    sys.stdin.read()
"""


def test_files_of_programs_and_of_the_system_are_no_data():
    assert list(data_mappings(SMAPS)) == [b"/data/train.arrow"]
    assert mapped_files(SMAPS) == {b"/data/train.arrow": (8 * MIB, 1536 * 1024)}


def test_what_a_child_maps_and_receives_is_counted(tmp_path):
    """The program is a grandchild; it touches the first 6 of 16 MiB, and reads 3,000,000 bytes of a socket."""
    data, sent = tmp_path / "train.bin", 3_000_000
    data.write_bytes(bytes(16 * MIB))
    with create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]

        def serve():
            connection, _ = store.accept()
            with connection:
                connection.sendall(bytes(sent))
                connection.recv(1)  # until the job closes it

        server = threading.Thread(target=serve)
        server.start()
        words = [sys.executable, "-c", JOB, str(port), str(sent), str(data), str(6 * MIB)]
        job = subprocess.Popen(["sh", "-c", '"$@"; true', "sh", *words], stdin=-1, stdout=-1, text=True)
        assert job.stdout.readline() == "0\n"
        watched = Watch()
        watched.look(descendants(job.pid))
        assert len(list(descendants(job.pid))) == 2
        job.communicate("")
        server.join()
    watched.write(tmp_path / "unseen.json", {})
    found = json.loads((tmp_path / "unseen.json").read_text())
    entry = found["mapped"][str(data)]
    assert entry["size"] == 16 * MIB
    assert 6 * MIB <= entry["bytes"] <= 7 * MIB  # the kernel maps some pages around the one that is asked for
    if found["received"]:  # a kernel without socket diagnosis says nothing of sockets
        assert found["received"] == {f"127.0.0.1:{port}": sent}


def test_a_look_is_not_repeated_at_once(monkeypatch):
    """A look of 1 s may follow 50 s later."""
    now, looked, watched = [100.0], [], Watch()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pids():
        looked.append(now[0])
        now[0] += 1
        yield from ()

    for second in (0, 1, 49, 51, 52):
        now[0] = 100.0 + second
        watched.look(pids())
    assert looked == [100.0, 151.0]


def test_a_process_that_is_gone_is_no_error_and_names_that_are_not_utf_8_are_kept(tmp_path):
    done = subprocess.Popen(["true"])
    done.wait()
    watched, path = Watch(), tmp_path / "unseen.json"
    watched.look([done.pid])
    watched.write(path, {})
    assert not path.exists()
    watched._sizes["/data/\udcff"], watched._resident["/data/\udcff"][1] = 10, 30
    watched.write(path, {})
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    assert json.loads(text)["mapped"] == {"/data/\udcff": {"size": 10, "bytes": 10}}


# Page faults, as the kernel tells them: against the pages that a program is known to touch.

TOUCHING = """
import mmap, os, sys
for pages in sys.argv[2:]:
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
        os.close(descriptor)
        for page in pages.split(","):
            mapped[4096 * int(page)]
"""
SEQUENTIAL = """
import mmap, resource, sys, time
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    time.sleep(0.2)
    slept = 0
    for page in range(4096):
        before, begin = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, time.monotonic_ns()
        mapped[4096 * page]
        end, after = time.monotonic_ns(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        slept += (end - begin) * (after > before)
print(slept)
"""
# Far apart, in random order, of two mappings.
RNG = random.Random(3)
PAGES = [RNG.sample(range(0, 4096, 64), count) for count in (20, 30)]
LISTS = [",".join(map(str, each)) for each in PAGES]


@pytest.fixture
def data(tmp_path):
    try:
        PageFaults().close()
    except OSError:
        pytest.skip("perf_event_open is not allowed here")
    path = tmp_path / "train.bin"
    path.write_bytes(os.urandom(16 << 20))
    with path.open("rb") as file:  # cached in large pieces, as it was written, one fault would map 2 MiB
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def faults_of(path, data):
    """The head, and the rows of a file."""
    with path.open("rb") as file:
        head, rows = json.loads(file.readline()), np.frombuffer(file.read(), dtype=FAULT_ROW)
    return head, rows[rows["file"] == head["files"].index(str(data))]


def test_each_touched_page_is_a_fault_in_order(data, tmp_path):
    with PageFaults().collected(tmp_path / "faults"):
        job = subprocess.Popen([sys.executable, "-c", TOUCHING, data, *LISTS])
        assert job.wait() == 0
    head, mine = faults_of(tmp_path / "faults", data)
    number = head["files"].index(str(data))
    assert (head["lost"], head["sizes"][number], number in head["programs"]) == (0, 16 << 20, False)
    assert set(mine["pid"].tolist()) == set(mine["tid"].tolist()) == {job.pid}
    made = np.flatnonzero(mine["kind"] == MAPPING)
    assert mine["length"][made].tolist() == [16 << 20] * 2
    touched = [part["offset"][part["kind"] != MAPPING] // PAGE for part in np.split(mine, made)[1:]]
    assert [part.tolist() for part in touched] == PAGES
    assert (mine["end_ns"] >= mine["start_ns"]).all()


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_they_become_operations_of_a_recording(data, tmp_path):
    out = tmp_path / "run.capture"
    command = [sys.executable, "-m", "dxt_replay.replay.commands.main", "record", "--with", "strace", "-o", out]
    words = [*command, "--", sys.executable, "-c", TOUCHING, data, *LISTS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "strace cannot trace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    capture = open_capture(out)
    (rows,) = list(capture.operations(0))
    mapped = np.flatnonzero(codes(rows, "api") == APIS.index("MMAP"))
    op, offset = codes(rows, "op")[mapped], rows.column("offset").to_numpy()[mapped]
    names = ["open", *["read"] * len(PAGES[0]), "close", "open", *["read"] * len(PAGES[1])]
    assert [OPS[each] for each in op] == names
    assert (offset[op == OPS.index("read")] // PAGE).tolist() == [page for pages in PAGES for page in pages]
    assert capture.info.coverage.bytes == 1.0
    assert [each.bytes for each in capture.info.coverage.unseen if each.kind == "mapped"] in ([], [0])
    assert mapped_reads([tmp_path / "run.recording" / "logs" / "x"]).complete


def test_faults_that_slept_have_their_wait_whether_minor_or_major(data, tmp_path):
    with PageFaults().collected(tmp_path / "faults"):
        done = subprocess.run([sys.executable, "-c", SEQUENTIAL, data], capture_output=True, text=True, check=True)
    if int(done.stdout) < 1_000_000:
        pytest.skip("this storage does not let a fault wait")
    _, mine = faults_of(tmp_path / "faults", data)
    waited = (mine["end_ns"] - mine["start_ns"]).sum()
    assert 0.5 * int(done.stdout) < waited <= int(done.stdout)  # which includes the two clocks and the count


def test_each_process_that_began_is_known_by_its_program(tmp_path):
    program = "import os, subprocess; subprocess.run(['cat', '/dev/null']); os.fork() or os._exit(0)"
    with collected_faults(tmp_path / "faults") as began:
        subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)
        time.sleep(0.1)
    if not began:
        pytest.skip("perf_event_open is not allowed here")
    names = [program for _, program in began]
    assert names.count("cat") == 1
    assert sum(name.startswith("python") for name in names) == 2
    assert len({pid for pid, _ in began}) == 3
