"""A lane and the system: the calls that strace sees, links that no write follows, and limits that are said before."""

import errno
import os
import re
import resource
import shutil
import subprocess
import sys

import pytest

from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import OPEN, RENAME, WRITE_AT
from dxt_replay.replay.engine.limits import check_direct, require_descriptors, require_threads
from dxt_replay.replay.engine.link_free import looks_at_whole_paths, refuse_links
from dxt_replay.traces.errors import ReplayError, TargetError
from tests.fakes import PythonPosix
from tests.places import ROOT
from tests.replay.engine.issue_lanes import results

STRACE = shutil.which("strace")
CALLS = "openat,openat2,pread64,pwrite64,fsync,lseek,newfstatat,close,renameat,fadvise64"
PROGRAM = """
import sys
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AHEAD, READ_AT, RENAME, SEEK, STAT, SYNC, WRITE_AT
from dxt_replay.replay.engine.link_free import looks_at_whole_paths
from tests.fakes import PythonPosix
from tests.replay.engine.issue_lanes import results
backend, folder, items, *may = sys.argv[1:]
slots = [FileSlot(path=f"{folder}/{name}".encode(), writable=bool(may), create=bool(may), uses=100)
    for name in ("data", "new", "last")]
print(looks_at_whole_paths(), results(Files(slots, PythonPosix() if backend == "python" else backend), *eval(items)))
"""


def program(*words, **environment):
    words = tuple(map(str, words))
    return subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def traced(folder, backend, items, *may):
    """What PROGRAM prints, and its calls on the files of a folder in short: names, and lengths and offsets."""
    log = folder / "log"
    tracing = (STRACE, "-f", "-y", "-o", log, "-e", f"trace={CALLS}")
    done = program(*tracing, sys.executable, "-c", PROGRAM, backend, folder, items, *may)
    if STRACE is None or "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    found = []
    for line in log.read_text().splitlines():
        of_folder = f"{folder}/" in line or " renameat(" in line
        call, arguments = re.findall(r"^\d+ +(\w+)\((.*)\) += ", line)[0] if of_folder else ("", "")
        if call and ', "", ' not in line:  # an fstat belongs to an open
            names = re.findall(r'"(?:[^"]*/)?(data|new)"', arguments)
            numbers = re.findall(r", (\d+)", re.sub(r'"[^"]*"(\.\.\.)?|\{[^}]*\}', "", arguments))
            advice = re.findall(r"FADV_(\w+)", arguments)
            shown = call in ("pread64", "pwrite64", "lseek")
            found.append(" ".join([call, *names, *(numbers if shown else []), *advice]))
    return done.stdout.strip(), found


MADE = {
    "posix": ["openat2 data", "pread64 100 5000", "pwrite64 8192 4096", "pwrite64 3 10"],
    # A direct file that is written to in parts of blocks gets a second descriptor, which is closed with it.
    "direct": ["openat2 data", "pread64 4096 4096", "pwrite64 8192 4096", "openat2 data", "pwrite64 3 10"],
}


@pytest.mark.skipif(STRACE is None, reason="no strace")
@pytest.mark.parametrize("backend", MADE)
def test_each_operation_is_one_call(tmp_path, backend):
    if not looks_at_whole_paths():
        pytest.skip("this system has no openat2")
    try:
        check_direct(tmp_path, [])
    except TargetError as error:
        pytest.skip(str(error))
    (tmp_path / "data").write_bytes(bytes(10_000))
    moves = "(READ_AT, 0, 5000, 100, 0), (WRITE_AT, 0, 4096, 8192, 0), (WRITE_AT, 0, 10, 3, 0)"
    others = "(SYNC, 0, 0, 0, 0), (SEEK, 0, 77, 0, 0), (STAT, 0, 0, 0, 0), (CLOSE, 0, 0, 0, 0), (RENAME, 0, 1, 0, 0)"
    printed, found = traced(tmp_path, backend, f"[(OPEN, 0, 0, 0, 0), {moves}, {others}]", "write")
    assert printed == "True [0, 100, 8192, 3, 0, 0, 0, 0, 0]"
    closes = ["close"] * (2 if backend == "direct" else 1)
    assert found == [*MADE[backend], "fsync", "lseek 77", "newfstatat data", *closes, "renameat data new"]


@pytest.mark.skipif(STRACE is None, reason="no strace")
@pytest.mark.parametrize("backend", ["posix", "mapped"])
def test_sequential_reads_are_announced_for_an_open_that_says_so_and_for_no_other(tmp_path, backend):
    (tmp_path / "data").write_bytes(bytes(10_000))
    items = "[(kind, 0, place, 0, 0) for place in (-1, READ_AHEAD, -1) for kind in (OPEN, CLOSE)]"
    _, found = traced(tmp_path, backend, items)
    assert [call for call in found if call != "close"] == [
        "openat data",
        "openat data",
        "fadvise64 SEQUENTIAL",
        "openat data",
    ]


# ----------------------------------------------------------------------------------------------------------- links


@pytest.fixture(params=["posix", "direct", "stdio", "python"])
def backend(request):
    return PythonPosix() if request.param == "python" else request.param


@pytest.fixture
def twin(tmp_path):
    """Beside a directory with a file, to which it has a link."""
    if not looks_at_whole_paths():
        pytest.skip("this system has no openat2")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_bytes(b"kept")
    (tmp_path / "twin").mkdir()
    (tmp_path / "twin/link").symlink_to(tmp_path / "outside")
    return tmp_path / "twin"


def issued(backend, twin, names, *items):
    """The results of items on files that may be written; nothing outside has changed."""
    slots = [FileSlot(path=bytes(twin / name), writable=True, create=True, uses=9) for name in names]
    found = results(Files(slots, backend), *items)
    assert [path.read_bytes() for path in (twin.parent / "outside").iterdir()] == [b"kept"]
    return found


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("link/kept", {errno.ELOOP}),
        ("link/new", {errno.ELOOP}),
        ("second name", {errno.EMLINK}),
        ("pipe", {errno.EPERM, errno.EINVAL}),  # a pipe has no O_DIRECT
    ],
)
def test_only_a_plain_file_with_one_name_reached_through_no_link_is_written(backend, twin, name, refused):
    os.link(twin / "link/kept", twin / "second name")
    os.mkfifo(twin / "pipe")
    calls = [(WRITE_AT, 0, 0, 5, 0), (OPEN, 0, 0, 0, 0), (WRITE_AT, 0, 0, 5, 0)][: 1 if name == "pipe" else 3]
    assert {-number for number in issued(backend, twin, (name,), *calls)} <= refused


@pytest.mark.parametrize("names", [("link/kept", "moved"), ("mine", "link/moved"), ("mine", "link/kept")])
def test_a_rename_stays_between_directories(backend, twin, names):
    (twin / "mine").write_bytes(b"mine")
    assert issued(backend, twin, names, (RENAME, 0, 1, 0, 0)) == [-errno.ELOOP]
    assert (twin / "mine").exists()


@pytest.mark.parametrize("name", ["link/kept", "link/new", "link"])
def test_libraries_that_open_paths_themselves_are_kept_from_links(twin, name):
    with pytest.raises(OSError, match=f"Errno {errno.ELOOP}"):
        refuse_links(bytes(twin / name))
    refuse_links(bytes(twin / "absent"))


@pytest.mark.parametrize("backend", ["posix", "stdio", "python"])
def test_under_a_preloaded_tracer_the_calls_of_libc_are_made(twin, backend):
    (twin / "last").symlink_to(twin.parent / "outside/kept")
    (twin / "data").write_bytes(b"plain")
    items = "[(WRITE_AT, slot, 0, 5, 0) for slot in range(3)]"
    done = program(sys.executable, "-c", PROGRAM, backend, twin, items, "write", LD_PRELOAD="libm.so.6")
    assert done.stdout.strip() == f"False [5, 5, -{errno.ELOOP}]", done.stderr
    assert (twin.parent / "outside/kept").read_bytes() == b"kept"
    assert (twin / "data").read_bytes() != b"plain"


# ---------------------------------------------------------------------------------------------------------- limits

MAPPINGS = """
import ctypes, mmap, threading
from dxt_replay.replay.engine.limits import require_threads
from dxt_replay.traces.errors import ReplayError
pages = int(open("/proc/sys/vm/max_map_count").read()) - len(open("/proc/self/maps").readlines()) - 500
block = mmap.mmap(-1, 4096 * pages)
first, libc = ctypes.addressof(ctypes.c_char.from_buffer(block)), ctypes.CDLL(None)
for page in range(0, pages, 2):  # neighbours with one protection would be one mapping
    libc.mprotect(ctypes.c_void_p(first + 4096 * page), ctypes.c_size_t(4096), mmap.PROT_READ)
try:
    require_threads(500)
except ReplayError as error:
    print(error)
end, made = threading.Event(), 0
try:
    while made < 500:
        threading.Thread(target=end.wait, daemon=True).start()
        made += 1
except RuntimeError:
    print(made)
end.set()
"""


def test_a_thread_takes_two_mappings_of_those_that_the_kernel_allows_a_process():
    refusal, possible = program(sys.executable, "-c", MAPPINGS).stdout.splitlines()
    room = int(refusal.split("leaves room for ")[1].split(":")[0])
    assert "the kernel (vm.max_map_count)" in refusal
    assert 0.8 * room <= int(possible) <= room
    require_threads(4)


def test_too_few_descriptors_for_the_lanes_are_told_before_the_run():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    require_descriptors(1)
    if soft == resource.RLIM_INFINITY:
        pytest.skip("the number of open files is not limited here")
    with pytest.raises(ReplayError, match="ulimit -n"):
        require_descriptors(soft)


def test_a_file_system_without_direct_io_is_told_before_the_run(tmp_path):
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no /proc, which has no direct I/O")
    with pytest.raises(TargetError, match=r"/proc/self/status has no direct I/O"):
        check_direct(tmp_path, [os.fsencode(tmp_path / "made by the run"), b"/proc/self/status"])
