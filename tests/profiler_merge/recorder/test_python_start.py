"""What a Python of the job counts, and how much of Darshan's memory it gives to what it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder.python_start import write_python_start


def run(folder: Path, program: str, *, data: str = "/opt/data") -> tuple[str, list[int]]:
    """The output of a program, and what it and its children counted, as if Darshan were loaded."""
    write_python_start(folder / "start", [data])
    (folder / "profile").mkdir()
    environment = {
        **os.environ, "PYTHONPATH": str(folder / "start"), "LD_PRELOAD": f"{folder}/libdarshan.so",
        "DXT_RECORDING_PROFILE": str(folder / "profile"), "DXT_RECORDING_SMALL": "/small", "DARSHAN_MODMEM": "99",
        "DARSHAN_CONFIG_PATH": "/full",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=folder
    )
    found = sorted((folder / "profile").glob("*.not_data"), key=lambda path: path.stat().st_mtime_ns)
    return done.stdout, [int.from_bytes(path.read_bytes(), "little") for path in found]


def test_modules_are_counted_and_data_are_not(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"#" * 3_000_000)
    (tmp_path / "data").write_bytes(bytes(7_000_000))
    _, (counted,) = run(tmp_path, "import mine; open('data', 'rb').read()")
    assert 3_000_000 <= counted < 6_000_000


def test_a_forked_child_counts_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"#" * 3_000_000)
    program = "import os\nif os.fork(): os.wait()\nelse:\n import mine\n os.kill(os.getpid(), 9)"
    _, (first, second) = run(tmp_path, program)
    assert first < 3_000_000 <= second < 4_000_000


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (["env"], "/small"),
        (["sh", "-c", "env"], "/small"),
        (["sh", "-c", "env; : train.py"], "/full"),
        (["./script"], "/full"),
        ([sys.executable, "-c", "import os; print(*map('='.join, os.environ.items()))"], "/full"),
    ],
)
def test_programs_that_are_no_python_get_little_memory(tmp_path: Path, words: list[str], config: str) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nenv\n", encoding="utf-8")
    script.chmod(0o755)
    start = f"import os, subprocess; subprocess.run({words!r}, check=True)"
    spawn = f"os.waitpid(os.posix_spawnp({words[0]!r}, {words!r}, os.environ), 0)"
    out, _ = run(tmp_path, f"{start}; {spawn}")
    assert [word for word in out.split() if word.startswith("DARSHAN_CONFIG")] == [f"DARSHAN_CONFIG_PATH={config}"] * 2
    assert ("DARSHAN_MODMEM=99" in out.split()) == (config == "/full")
