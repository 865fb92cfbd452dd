"""Runs Python code that may crash or hang in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE_S = 60.0

_LAUNCHERS = ("PMI", "PMIX", "OMPI_", "PRTE_", "MPI_LOCAL", "PALS_", "HYDRA_", "MPIR_")
"""Beginnings of variables by which a process knows that an MPI launcher started it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended. `output`: its standard output. `trouble`: why it failed; empty where it did not."""

    output: str
    trouble: str


def run_child(words: Sequence[str], patience_s: float = PATIENCE_S) -> Ended:
    """Run a command, without the variables of an MPI launcher: it is no process of the job that this one may be of.

    After `patience_s` seconds the command and the processes that it started are killed. Never raises.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    try:
        child = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Ended(output="", trouble=f"{words[0]} cannot be started: {error.strerror}")
    try:
        output, complaints = child.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        return Ended(output=output, trouble=f"did not end within {patience_s:g} s")
    return Ended(output=output, trouble=_trouble(child.returncode, complaints))


def run_python(code: str, *arguments: str, patience_s: float = PATIENCE_S) -> Ended:
    """Run code in a new interpreter, as `run_child`."""
    return run_child([sys.executable, "-c", code, *arguments], patience_s)


def _trouble(status: int, complaints: str) -> str:
    if status == 0:
        return ""
    if status < 0:
        return f"died by {_signal_name(-status)}"
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    return lines[-1] if lines else f"ended with status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
