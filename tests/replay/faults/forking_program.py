"""The program of `injection.Commands`: a line of JSON on standard input is a command, a line of output its end."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from dxt_replay.replay.commands.main import HOMES
from dxt_replay.replay.commands.main import main as run_command_line

LATE = 124
"""Status of a command that was ended because it took too long, as of timeout(1)."""


def run(case: dict[str, Any]) -> None:
    """Be the command: never returns."""
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(case[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in case["limits"].items():
        number = getattr(resource, name)
        resource.setrlimit(number, (value, value))  # the hard limit too: a replay raises the soft one
    if case["user"]:
        os.setgroups([])
        os.setgid(case["user"])
        os.setuid(case["user"])
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


def wait_for(child: int, case: dict[str, Any]) -> tuple[int, float]:
    """Its status as a shell's, and how long it took in s."""
    began = time.monotonic()
    at, name = case["killed_at"] or (None, None)
    while True:
        pid, found = os.waitpid(child, os.WNOHANG)
        passed = time.monotonic() - began
        if pid:
            code = os.waitstatus_to_exitcode(found)
            return (code if code >= 0 else 128 - code), passed
        if at is not None and passed >= at:
            os.kill(child, getattr(signal, str(name)))
            at = None
        if passed > case["most_s"]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return LATE, passed
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


def main() -> None:
    """Run commands until the input ends."""
    for module in WARM:
        with suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin:
        case = json.loads(line)
        child = os.fork()
        if child == 0:
            run(case)
        status, seconds = wait_for(child, case)
        print(json.dumps({"status": status, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
