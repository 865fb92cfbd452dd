"""Runs commands with faults below them: in forks of one program that has the library of `injected.c` before libc.

A fork of a program that has imported everything costs a tenth of a new one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT

SOURCE = Path(__file__).with_name("injected.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of `injected.c`, which describes the fields."""

    call: str
    action: str
    number: int = 0
    path: str = ""
    skip: int = 0
    count: int = 0

    def __str__(self) -> str:
        return f"{self.call}|{self.action}|{self.number}|{self.path}|{self.skip}|{self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended; `status` is that of a shell (128 and more: by a signal)."""

    status: int
    out: str
    err: str
    seconds: float

    def json(self) -> Any:
        """The object that the command printed."""
        return json.loads(self.out)


def compiled(folder: Path) -> Path:
    """The library, compiled into `folder`; skips the test where there is no compiler."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    library = folder / "injected.so"
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-w", str(SOURCE), "-o", str(library), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the library for faults does not compile here: {done.stderr[:200]}")
    return library


class Commands:
    """A program that runs commands in forks; a context."""

    def __init__(self, library: Path, scratch: Path) -> None:
        self.library = library
        self._scratch = scratch
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.replay.faults.forking_program"],
            cwd=ROOT,
            env={**os.environ, "LD_PRELOAD": str(library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.close()
        self._program.stdout.close()
        self._program.wait(60)

    def run(
        self,
        arguments: Sequence[object],
        *rules: Rule,
        limits: Mapping[str, int] | None = None,
        killed_at: Sequence[float | str] | None = None,
        most_s: float = 60,
        user: int = 0,
    ) -> Ended:
        """Run `dxt-replay ARGUMENTS`. `limits`: RLIMIT -> value, soft and hard. `killed_at`: seconds, signal.
        `user`: id of a user to become, who reads what this process has loaded; for root."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        out, err = self._scratch / "out", self._scratch / "err"
        case = {
            "arguments": [str(word) for word in arguments],
            "rules": "\n".join(map(str, rules)),
            "limits": dict(limits or {}),
            "out": str(out),
            "err": str(err),
            "killed_at": killed_at,
            "most_s": most_s,
            "user": user,
        }
        print(json.dumps(case), file=self._program.stdin, flush=True)
        answer = json.loads(self._program.stdout.readline())
        return Ended(
            status=answer["status"],
            out=out.read_text(errors="replace"),
            err=err.read_text(errors="replace"),
            seconds=answer["seconds"],
        )
