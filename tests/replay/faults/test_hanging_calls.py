"""A call that does not return: the command ends all the same, and says where it hung."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import MPIEXEC, ROOT, needs_mpi
from tests.replay.faults.injection import Commands, Rule

FOR_EVER_MS = 600_000


def run(folder: Path, *more: object) -> list[object]:
    return ["run", folder / "source.capture", "--target", folder / "twin", "-o", folder / "replay.capture", *more]


def leftovers(folder: Path) -> list[str]:
    """What a run left beside the capture and its twin."""
    return sorted({path.name for path in folder.iterdir()} - {"source.capture", "twin"})


HUNG_READ = Rule(call="read", action="stall", number=FOR_EVER_MS, path="-twin/data/a.bin", skip=5, count=1)


@pytest.mark.parametrize("api", ["posix", "stdio"])
def test_a_run_whose_read_hangs_ends_and_names_it(commands: Commands, folder: Path, api: str) -> None:
    ended = commands.run(run(folder, "--timeout", "1s", "--api", api), HUNG_READ)
    assert ended.status == 2
    assert re.fullmatch(
        r"dxt-replay: error: the run is not over after 1 s \(--timeout\): rank [01], lane 0 has been in its read of "
        r"\S+/data/a.bin \(offset \d+, 4,096 bytes\) for \d+\.\d s; its output was discarded\n",
        ended.err,
    )
    assert leftovers(folder) == []


def test_an_open_that_hangs_is_named_and_not_the_lanes_that_wait_for_it(commands: Commands, folder: Path) -> None:
    hanging = Rule(call="open", action="stall", number=FOR_EVER_MS, path="-twin/data/a.bin", skip=2, count=1)
    ended = commands.run(run(folder, "--timeout", "1s"), hanging)
    assert ended.status == 2
    assert re.fullmatch(
        r"dxt-replay: error: the run is not over after 1 s \(--timeout\): rank [01], lane 0 has been in the open "
        r"before its read of \S+/data/a.bin \(offset 0, 4,096 bytes\) for \d+\.\d s; its output was discarded\n",
        ended.err,
    )
    assert leftovers(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "more", "where"),
    [
        (Rule(call="sync", action="stall", number=FOR_EVER_MS, path="data/"), ["--cold"], "dropping the twin"),
        (Rule(call="open", action="stall", number=FOR_EVER_MS, path="out/1.bin"), [], "its write of .*/out/1.bin"),
        (Rule(call="close", action="stall", number=FOR_EVER_MS, path="out/0.bin"), [], "its write of|closing files"),
        (Rule(call="write", action="stall", number=FOR_EVER_MS, path="capture"), [], "preparing the run|writing the"),
    ],
)
def test_whatever_hangs_is_named(commands: Commands, folder: Path, rule: Rule, more: list[str], where: str) -> None:
    ended = commands.run(run(folder, "--timeout", "1", *more), rule)
    assert ended.status == 2
    assert re.search(where, ended.err), ended.err
    assert ended.err.count("\n") == 1
    assert not (folder / "replay.capture").exists()


def test_a_run_that_is_only_slow_is_not_said_to_hang(commands: Commands, folder: Path) -> None:
    ended = commands.run(run(folder, "--timeout", "0.5", "--speed", "0.01"))
    assert ended.status == 2
    assert re.search(r"not over after 0.5 s \(--timeout\): \d+ of 100 operations were done, and none hangs", ended.err)
    assert leftovers(folder) == []


def test_a_staging_that_hangs_names_its_file_and_goes_on_the_next_time(commands: Commands, folder: Path) -> None:
    (folder / "new").mkdir(exist_ok=True)
    stage = ["stage", folder / "source.capture", "--target", folder / "new"]
    hanging = Rule(call="write", action="stall", number=FOR_EVER_MS, path="new/dxt-replay-twin/data/", skip=1)
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
    assert commands.run(["run", *stage[1:-1], folder / "new", "-o", folder / "replay.capture"]).status == 0


@pytest.mark.slow
def test_an_interrupt_ends_a_run_that_hangs(commands: Commands, folder: Path) -> None:
    ended = commands.run(run(folder), HUNG_READ, killed_at=(3.0, "SIGINT"))
    assert ended.status == 2
    assert "the replay was stopped, but a call does not return: rank" in ended.err
    assert "lane 0 has been in its read of" in ended.err
    assert leftovers(folder) == []


@needs_mpi
@pytest.mark.parametrize(
    ("program", "where"),
    [
        ("", r"rank [01], lane 0 has been in its read of \S+/data/a.bin"),
        ("os.environ['PMI_RANK'] == '1' and os.kill(os.getpid(), signal.SIGSTOP)", r"process 1 of 2 .* is stopped"),
    ],
)
def test_a_process_that_hangs_or_never_comes_ends_all(
    commands: Commands, folder: Path, program: str, where: str
) -> None:
    rule = str(Rule(call="read", action="stall", number=FOR_EVER_MS, path="data/a.bin", skip=3, count=1))
    source = f"""
import os, signal, sys
from dxt_replay.__main__ import main
from tests.auditing import before
def stop(path):
    {program or "pass"}
with before("import", "dxt_replay.replay.run.story", stop):
    sys.exit(main())
"""
    environment = {**os.environ, "LD_PRELOAD": str(commands.library), "INJECTED_FAULTS": "" if program else rule}
    done = subprocess.run(
        [str(MPIEXEC), "-n", "2", sys.executable, "-c", source, *map(str, run(folder, "--timeout", "2"))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert re.search(where, done.stderr), done.stderr
    assert done.stderr.count("dxt-replay: error") == 1
    assert leftovers(folder) == []


def test_a_limit_of_no_time_is_refused(commands: Commands, folder: Path) -> None:
    for text in ("0", "-1", "soon", "1e30h"):
        ended = commands.run(run(folder, "--timeout", text))
        assert (ended.status, "--timeout" in ended.err) == (2, True)
