"""Runs commands with faults below them: in forks of this program, which has the library of `injected.c` before libc.

A fork of a program that has imported everything costs a tenth of a new one. A line of JSON on its standard input is a
command, a line of output its end.
"""

import ctypes
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from dxt_replay.replay.commands.main import HOMES
from dxt_replay.replay.commands.main import main as run_command_line
from tests.places import ROOT

SOURCE = Path(__file__).with_name("injected.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
FOR_EVER_MS = 600_000
MOST_S, LATE = 60, 124
"""How long a command may take, and the status of one that was ended because it took longer, as of timeout(1)."""


class Rule(NamedTuple):
    """One rule of `injected.c`, which describes the fields."""

    call: str
    action: str
    number: int = 0
    path: str = ""
    skip: int = 0
    count: int = 0

    def __str__(self):
        return "|".join(map(str, self))


class Ended(NamedTuple):
    """How a command ended; `status` is that of a shell (128 and more: by a signal)."""

    status: int
    out: str
    err: str

    def json(self):
        return json.loads(self.out)


def compiled(folder):
    """The library, compiled into `folder`; skips the test where it does not compile."""
    library = folder / "injected.so"
    if COMPILER is None:
        pytest.skip("no C compiler")
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-w", str(SOURCE), "-o", str(library), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the library for faults does not compile here: {done.stderr[:200]}")
    return library


class Commands:
    """The program; a context."""

    def __init__(self, library, scratch):
        self.library, self._scratch = library, scratch
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.replay.faults.injection"],
            cwd=ROOT,
            env={**os.environ, "LD_PRELOAD": str(library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._program.communicate(timeout=60)

    def run(self, arguments, *rules, **how):
        """Run `dxt-replay ARGUMENTS`. `how`: `limits`, RLIMIT -> value, soft and hard; `killed_at`, seconds and signal;
        `user`, id of a user to become, who reads what this process has loaded; for root."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        out, err = self._scratch / "out", self._scratch / "err"
        case = {"arguments": [str(word) for word in arguments], "rules": "\n".join(map(str, rules)), **how}
        print(json.dumps({**case, "out": str(out), "err": str(err)}), file=self._program.stdin, flush=True)
        status = json.loads(self._program.stdout.readline())
        return Ended(status, out.read_text(errors="replace"), err.read_text(errors="replace"))


# ------------------------------------------------------------------------------------------------------ the program


def be(case):
    """Be the command: never returns."""
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(case[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in case.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (value, value))  # the hard limit too: a replay raises the soft one
    if user := case.get("user"):
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    ctypes.CDLL(None).inject_faults(case["rules"].encode())
    status = 70
    try:
        status = run_command_line(case["arguments"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait_for(child, case):
    """Its status as a shell's."""
    began = time.monotonic()
    at, name = case.get("killed_at", (None, None))
    while True:
        pid, found = os.waitpid(child, os.WNOHANG)
        passed = time.monotonic() - began
        if pid:
            code = os.waitstatus_to_exitcode(found)
            return code if code >= 0 else 128 - code
        if at is not None and passed >= at:
            os.kill(child, getattr(signal, str(name)))
            at = None
        if passed > MOST_S:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return LATE
        time.sleep(0.002)


WARM = (
    "pandas",  # which pyarrow imports at its first array
    "dxt_replay.profiler_merge.given_files",  # which another user cannot read where Python belongs to root
    "dxt_replay.replay.commands.session",
    "dxt_replay.replay.engine.issue",
    "dxt_replay.replay.run.story",
    "dxt_replay.replay.show.terminal",
    "dxt_replay.replay.target.stage",
    *HOMES.values(),
)
"""Imported before the forks."""


if __name__ == "__main__":
    for module in WARM:
        with suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin:
        asked = json.loads(line)
        forked = os.fork()
        if forked == 0:
            be(asked)
        print(wait_for(forked, asked), flush=True)
