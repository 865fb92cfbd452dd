"""Every process of a recorded job counts: each way in which a job may read, with the real Darshan and strace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder.darshan import find_library
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import open_capture

KIB = 1 << 10
FILES, SIZE = 20, 256 * KIB
LIBRARY = os.environ.get("DXT_TEST_DARSHAN")

JOB = """
import ctypes, multiprocessing as mp, os, signal, subprocess, sys
from concurrent.futures import ProcessPoolExecutor

kind, folder = sys.argv[1:]
names = [os.path.join(folder, "f%d" % number) for number in range(20)]
libc = ctypes.CDLL(None)
libc.syscall.restype = ctypes.c_long


def read(name):
    with open(name, "rb", buffering=0) as file:
        return len(file.read())


def raw(name):
    file, buffer = os.open(name, os.O_RDONLY), ctypes.create_string_buffer(1 << 18)
    os.read(file, 512)
    got = libc.syscall(0 if os.uname().machine == "x86_64" else 63, file, buffer, 1 << 18)
    os.close(file)
    return got


def killed(name):
    pid = os.fork()
    if not pid:
        read(name)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def run(*words, **more):
    return lambda name: subprocess.run([each.format(name) for each in words], stdout=subprocess.PIPE, **more)


ways = {
    "read": read, "raw": raw, "killed": killed, "cat": run("cat", "{}"), "shell": run("sh", "-c", "cat {}"),
    "gzip": run("gzip", "-c", "{}"), "empty": run("/bin/cat", "{}", env={}),
    "static": run(os.path.join(folder, "static"), "{}"),
    "user": run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", "{}"),
}
if __name__ == "__main__":
    read(names[0])
    start, _, how = kind.partition("-")
    if how == "pool":
        with mp.get_context(start).Pool(2) as pool:
            pool.map(read, names)
            pool.close()
            pool.join()
    elif how == "executor":
        with ProcessPoolExecutor(2, mp_context=mp.get_context(start)) as pool:
            list(pool.map(read, names))
    elif how == "outlives":
        if not os.fork():
            import time
            time.sleep(1)
            for name in names:
                read(name)
        os._exit(0)
    else:
        for name in names:
            ways[kind](name)
"""

SEEN = ["read", "cat", "shell", "gzip", "fork-outlives"]
SEEN += [f"{start}-{how}" for how in ("pool", "executor") for start in ("fork", "spawn", "forkserver")]
NOT_SEEN = ["raw", "empty", "static", "user"]


@pytest.fixture
def library() -> str:
    found = LIBRARY or (found.path if (found := find_library(os.environ)) else None)
    if found is None:
        pytest.skip("needs Darshan's runtime library, or its path in DXT_TEST_DARSHAN")
    return str(found)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The job without its kind. It reads one of 20 files of 256 KiB, then all. Any user may read them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for number in range(FILES):
            Path(folder, f"f{number}").write_bytes(os.urandom(SIZE))
        yield [sys.executable, "job.py", "{}", folder]


def recorded(job: list[str], kind: str, *options: str) -> tuple[int, float | None, str, list[str]]:
    """Bytes read in the capture, its coverage, what `summary` says, and the programs that are not accounted for."""
    main(["record", *options, "--", *(kind if word == "{}" else word for word in job)])
    capture = open_capture(Path("run.capture"))
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    said = subprocess.run(
        [sys.executable, "-m", "dxt_replay", "summary", "run.capture"], capture_output=True, text=True, check=True
    ).stdout
    coverage = capture.info.coverage
    names = [each.name for each in coverage.unseen if each.kind == "process"]
    return sum(row["length"] for row in rows if row["op"] == "read"), coverage.bytes, " ".join(said.split()), names


def static_program(folder: Path) -> None:
    compiler = shutil.which("cc")
    source = folder / "static.c"
    source.write_text(
        "#include <fcntl.h>\n#include <unistd.h>\nstatic char buffer[65536];\n"
        "int main(int c, char **v) { int f = open(v[1], O_RDONLY); while (read(f, buffer, sizeof buffer) > 0);\n"
        "return 0; }",
        encoding="utf-8",
    )
    command = [str(compiler), "-static", "-o", str(folder / "static"), str(source)]
    if compiler is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs a C compiler with a static C library")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEEN)
def test_what_darshan_shows_keeps_its_number(library, job, kind) -> None:
    read, coverage, said, names = recorded(job, kind, "--library", library)
    assert names == []
    assert (FILES + 1) * SIZE <= read < (FILES + 2) * SIZE
    assert coverage == pytest.approx(1.0, abs=0.01)
    assert "is not known:" not in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOT_SEEN)
def test_what_darshan_does_not_show_is_not_claimed(library, job, kind) -> None:
    if kind == "user" and (os.geteuid() or not shutil.which("setpriv")):
        pytest.skip("needs root, and setpriv")
    if kind == "static":
        static_program(Path(job[-1]))
    read, coverage, said, names = recorded(job, kind, "--library", library)
    expected = {"raw": "processes with a log", "static": "static (20 processes)"}.get(kind, "cat (20 processes)")
    assert names == [expected]
    assert read < 2 * SIZE
    assert coverage is None
    assert f"is not known: data were read that no log of the job's processes holds ({expected})" in said


@pytest.mark.slow
def test_counters_of_killed_children_are_in_the_capture(library, job) -> None:
    """Without mmap logs they are lost, and nothing is claimed."""
    read, coverage, said, names = recorded(job, "killed", "--library", library)
    assert names or read >= (FILES + 1) * SIZE
    assert coverage is None or coverage < 0.1
    assert "is not known" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["read", "cat", "forkserver-pool", "empty", "raw", "killed", "fork-outlives"])
def test_strace_shows_every_process(job, kind) -> None:
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    read, coverage, _, names = recorded(job, kind, "--with", "strace")
    assert names == []
    assert read >= (FILES + 1) * SIZE
    assert coverage == pytest.approx(1.0, abs=0.01)
