"""A call that does not return: the command ends all the same, and says where it hung."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.slowed_storage import CannotThrottleError, delayed
from tests.places import MPIEXEC, ROOT, needs_mpi
from tests.replay.faults.conftest import run, short_capture
from tests.replay.faults.injection import FOR_EVER_MS, Rule

A = "-twin/data/a.bin"
HUNG_READ = Rule("read", "stall", FOR_EVER_MS, A, 5, 1)
OVER = r"dxt-replay: error: the run is not over after {} s \(--timeout\): "
READ = r"rank [01], lane 0 has been in {} of \S+/data/a.bin \(offset \d+, 4,096 bytes\) for \d+\.\d s; "


def leftovers(folder):
    """What a run left beside the capture and its twin."""
    return sorted({path.name for path in folder.iterdir()} - {"source.capture", "twin"})


def stalled(call, path):
    return Rule(call, "stall", FOR_EVER_MS, path)


@pytest.mark.parametrize(
    ("rules", "more", "said"),
    [
        ([HUNG_READ], ["--timeout", "1s"], OVER.format(1) + READ.format("its read")),
        # The lane that opens, not those that wait for it.
        (
            [Rule("open", "stall", FOR_EVER_MS, A, 2, 1)],
            ["--timeout", "1s"],
            OVER.format(1) + READ.format("the open before its read"),
        ),
        # What is only slow does not hang.
        (
            [],
            ["--timeout", "0.5", "--speed", "0.01"],
            OVER.format("0.5") + r"\d+ of 100 operations were done, and none hangs; ",
        ),
        # Whatever hangs is named.
        *(
            pytest.param([stalled(call, path)], ["--timeout", "1", *more], f".*({where}).*", marks=pytest.mark.slow)
            for call, path, more, where in (
                ("sync", "data/", ["--cold"], "dropping the twin"),
                ("open", "out/1.bin", [], "its write of .*/out/1.bin"),
                ("close", "out/0.bin", [], "its write of|closing files"),
                ("write", "capture", [], "preparing the run|writing the"),
            )
        ),
    ],
)
def test_a_run_that_hangs_ends_and_says_where(commands, folder, rules, more, said):
    ended = commands.run(run(folder, *more), *rules)
    assert ended.status == 2
    assert re.fullmatch(f"{said}(its output was discarded)?\n", ended.err), ended.err
    assert "replay.capture" not in leftovers(folder)
    assert said.startswith(".") or leftovers(folder) == []


def test_a_staging_that_hangs_names_its_file_and_goes_on_the_next_time(commands, folder):
    (folder / "new").mkdir(exist_ok=True)
    stage = ["stage", folder / "source.capture", "--target", folder / "new"]
    hanging = Rule("write", "stall", FOR_EVER_MS, "new/dxt-replay-twin/data/", 1)
    ended = commands.run([*stage, "--timeout", "1"], hanging)
    assert ended.status == 2
    assert re.fullmatch(
        r"dxt-replay: error: staging is not over after 1 s \(--timeout\): \S+/new/dxt-replay-twin/data/[ab].bin "
        r"has been written for \d+\.\d s\n",
        ended.err,
    )
    again = commands.run([*stage, "--json"])
    assert again.status == 0
    assert again.json()["bytes_to_write"] < 2 * 40 * 4096, "a file that was whole is not written again"
    assert commands.run(["run", *stage[1:], "-o", folder / "replay.capture"]).status == 0


@pytest.mark.slow
def test_an_interrupt_ends_a_run_that_hangs(commands, folder):
    ended = commands.run(run(folder), HUNG_READ, killed_at=(3.0, "SIGINT"))
    assert (ended.status, leftovers(folder)) == (2, [])
    assert "the replay was stopped, but a call does not return: rank" in ended.err
    assert "lane 0 has been in its read of" in ended.err


@needs_mpi
@pytest.mark.parametrize(
    ("program", "where"),
    [
        ("", r"rank [01], lane 0 has been in its read of \S+/data/a.bin"),
        ("os.environ['PMI_RANK'] == '1' and os.kill(os.getpid(), signal.SIGSTOP)", r"process 1 of 2 .* is stopped"),
    ],
)
def test_a_process_that_hangs_or_never_comes_ends_all(commands, folder, program, where):
    source = f"""
import os, signal, sys
from dxt_replay.__main__ import main
from tests.auditing import before
def stop(path):
    {program or "pass"}
with before("import", "dxt_replay.replay.run.story", stop):
    sys.exit(main())
"""
    faults = "" if program else str(Rule("read", "stall", FOR_EVER_MS, "data/a.bin", 3, 1))
    environment = {**os.environ, "LD_PRELOAD": str(commands.library), "INJECTED_FAULTS": faults}
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-c", source, *map(str, run(folder, "--timeout", "1.5"))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2, done.stderr
    assert re.search(where, done.stderr), done.stderr
    assert done.stderr.count("dxt-replay: error") == 1
    assert leftovers(folder) == []


def test_a_limit_of_no_time_is_refused(commands, folder):
    for text in ("0", "-1", "soon", "1e30h"):
        ended = commands.run(run(folder, "--timeout", text))
        assert (ended.status, "--timeout" in ended.err) == (2, True)


def server_of(mount):
    """The process that serves a mount."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"delayed_files") and os.fsencode(mount) in words:
            return int(folder.name)
    raise AssertionError("nothing serves the mount")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
@pytest.mark.parametrize("stopped_by", ["limit", "Ctrl-C"])
def test_a_file_system_whose_server_stops(commands, tmp_path, stopped_by):
    capture, below, over = short_capture(tmp_path).path, tmp_path / "below", threading.Event()
    below.mkdir()

    def stop(server):
        """Once the run writes: the files that it makes are there."""
        until = time.monotonic() + 60
        while not over.wait(0.01) and time.monotonic() < until:
            if list(below.rglob("out/0.bin")) and list(tmp_path.glob(".r.capture.*")):
                os.kill(server, signal.SIGSTOP)
                return

    try:
        with delayed(below, 0) as mount:
            assert commands.run(["stage", capture, "--target", mount]).status == 0
            server = server_of(mount)
            watching = threading.Thread(target=stop, args=(server,))
            watching.start()
            words = ["run", capture, "--target", mount, "-o", tmp_path / "r.capture", "--speed", "0.02"]
            try:
                if stopped_by == "limit":
                    ended = commands.run([*words, "--timeout", "5"])
                else:
                    ended = commands.run(words, killed_at=(5.0, "SIGINT"))
            finally:
                over.set()
                watching.join()
                os.kill(server, signal.SIGCONT)
    except CannotThrottleError as error:
        pytest.skip(str(error))
    assert ended.status == 2, ended.err
    assert re.search(r"rank [01], lane [01] has been in its (write|read|open) of \S+/(out|data)/", ended.err), ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "r.capture").exists()
