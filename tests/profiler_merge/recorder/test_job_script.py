"""The script of a process, run by the shell; and the Python that a command names."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder.tracers import (
    DARSHAN,
    LOGS,
    OF_RANK,
    Tracer,
    folder_of_package,
    job_python,
    write_script,
)
from dxt_replay.profiler_merge.recording import RANK_VARIABLES

SHOW = 'echo "$A"; echo "$B"; echo "$GONE"; echo "$DXT_RECORDING_PROFILE"; echo "$PYTHONPATH"; echo "$@"'


def run(folder: Path, *, by_rank: bool = False, name: str = "t", **environment: str) -> list[str]:
    tracer = Tracer(
        name=name,
        program=Path("t"),
        origin="here",
        variables={"A": f"it's {LOGS}/{OF_RANK}x y", "B": "$HOME"},
        unset=("GONE",),
        patterns=(),
    )
    script = write_script(
        folder / "job.sh",
        tracer,
        logs=folder / "my logs",
        profiles=folder / "p",
        by_rank=by_rank,
        python=folder / "py",
    )
    clean = {name: value for name, value in os.environ.items() if name not in (*RANK_VARIABLES, "PYTHONPATH")}
    return subprocess.run(
        [script, "/bin/sh", "-c", SHOW, "sh", "a b", "c"],
        env={**clean, "GONE": "x", **environment}, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip


def test_values_and_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    expected = [f"it's {tmp_path}/my logs/x y", "$HOME", "", str(tmp_path / "p"), str(tmp_path / "py"), "a b c"]
    assert run(tmp_path) == expected


def test_modules_of_the_environment_come_after(tmp_path: Path) -> None:
    assert run(tmp_path, PYTHONPATH="/mine")[4] == f"{tmp_path}/py:/mine"


@pytest.mark.parametrize("variable", ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "FLUX_TASK_RANK"])
def test_a_rank_has_a_folder_of_its_own(tmp_path: Path, variable: str) -> None:
    assert (
        run(tmp_path, by_rank=True, **{variable: "3", "PATH": "/none"})[0] == f"it's {tmp_path}/my logs/rank3/rank3-x y"
    )
    assert (tmp_path / "my logs" / "rank3").is_dir()


def test_a_rank_left_over_from_the_batch_script_counts_only_behind_a_launcher(tmp_path: Path) -> None:
    assert run(tmp_path, SLURM_PROCID="0")[0] == f"it's {tmp_path}/my logs/x y"


def test_dated_folders_of_a_rank_are_there_before_it_starts(tmp_path: Path) -> None:
    run(tmp_path, by_rank=True, name=DARSHAN, PMI_RANK="1")
    for day in (date.today(), date.today() + timedelta(days=6)):
        assert (tmp_path / "my logs" / "rank1" / str(day.year) / str(day.month) / str(day.day)).is_dir()


def test_the_python_of_a_command_and_its_packages(tmp_path: Path) -> None:
    """The first one that it names, else that of its script, else this one."""
    for name, first in (
        ("python3", b"#!/bin/sh\n"),
        ("torchrun", f"#!{sys.executable}\n".encode()),
        ("elf", b"\x7fELF\xff"),
    ):
        (tmp_path / name).write_bytes(first)
        (tmp_path / name).chmod(0o755)
    for words, python in (
        (["mpiexec", "-n", "2", "python3", "t.py"], str(tmp_path / "python3")),
        (["torchrun", "t.py"], sys.executable),
        (["elf", "t.py"], sys.executable),
    ):
        assert job_python(words, {"PATH": str(tmp_path)}) == python
    found = folder_of_package(sys.executable, "numpy", os.environ)
    assert found is not None
    assert (found / "__init__.py").exists()
    assert folder_of_package(sys.executable, "no_such_package", os.environ) is None
    assert folder_of_package("/no/python", "numpy", os.environ) is None
