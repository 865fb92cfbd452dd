from __future__ import annotations

import os
import sys
from pathlib import Path

from dxt_replay.profiler_merge.recorder.tracers import folder_of_package, job_python


def program(folder: Path, name: str, first: str) -> Path:
    path = folder / name
    path.write_text(f"{first}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_python_that_the_command_names_is_the_jobs(tmp_path: Path) -> None:
    python = program(tmp_path, "python3", "#!/bin/sh")
    assert job_python(["mpiexec", "-n", "2", "python3", "t.py"], {"PATH": str(tmp_path)}) == str(python)


def test_a_script_of_python_says_which_python_runs_it(tmp_path: Path) -> None:
    script = program(tmp_path, "torchrun", f"#!{sys.executable}")
    assert job_python(["torchrun", "t.py"], {"PATH": str(tmp_path)}) == sys.executable
    script.write_bytes(b"\x7fELF\xff\xfe")
    assert job_python(["torchrun", "t.py"], {"PATH": str(tmp_path)}) == sys.executable  # for want of another


def test_a_package_is_found_where_that_python_has_it() -> None:
    found = folder_of_package(sys.executable, "numpy", os.environ)
    assert found is not None
    assert (found / "__init__.py").exists()
    assert folder_of_package(sys.executable, "no_such_package", os.environ) is None
    assert folder_of_package("/no/python", "numpy", os.environ) is None
