"""Which processes read more than their logs explain, on made-up accounts."""

from __future__ import annotations

import pytest

from dxt_replay.profiler_merge.process_accounts import Account, not_accounted

MIB = 1 << 20


def of(*pids: int | None, read: int = MIB, **more: bool) -> list[Account]:
    return [Account(pid=pid, program="python", ranks=1, read=read, written=0, **more) for pid in pids]


def pipe(start_ns: int) -> list[Account]:
    """Two processes, of which the first ends at 5 ns."""
    times = ((1, 1, 5), (2, start_ns, 9))
    return [Account(pid=pid, ranks=1, read=MIB, written=0, start_ns=begin, end_ns=end) for pid, begin, end in times]


PYTHON = {"python": [1, 2]}
PROGRAMS = {"python": [1], "cat": [2, 3], "static": [4]}


@pytest.mark.parametrize(
    ("accounts", "began", "read", "more", "found"),
    [
        (of(1, 2, read=100 * MIB), PYTHON, 200, {}, []),
        # Processes without a log may have read little.
        (of(1, read=100 * MIB), PROGRAMS, 100.5, {}, []),
        (of(1, read=100 * MIB), PROGRAMS, 102, {}, ["cat (2 processes)", "static"]),
        # What was read past a log.
        (of(1), {"python": [1]}, 5, {}, ["processes with a log"]),
        # Bytes on pipes and sockets are taken off where all processes have logs.
        (of(1, 2), PYTHON, 12, {"written": 6 * MIB, "received": 4 * MIB}, []),
        (of(1), PYTHON, 12, {"written": 6 * MIB, "received": 5 * MIB}, ["python"]),
        # A pipe has two ends.
        (pipe(4), {"dd": [1, 2]}, 12, {"written": 12 * MIB}, []),
        (pipe(6), {"dd": [1, 2]}, 12, {"written": 12 * MIB}, ["processes with a log"]),
        # Input from a file is seen although as much was written.
        (of(1, 2), {"sh": [1], "dd": [2]}, 12, {"written": 12 * MIB, "fed": {"dd": 10 * MIB}}, ["dd"]),
        (of(1, 2), {"sh": [1], "dd": [2]}, 12, {"written": 12 * MIB, "fed": {"dd": 100}}, []),
        # What a Python imports may be unknown.
        (of(1, read=0, imports=True), {"python": [1]}, 30, {}, []),
        (of(1, read=0), {"python": [1]}, 30, {}, ["processes with a log"]),
        # A log that does not name its process is that of any of its program.
        (of(1, None, read=2 * MIB), PYTHON, 4, {}, []),
        (of(1, None, read=2 * MIB), {"python": [1, 2, 3]}, 8, {}, ["python"]),
        (of(1, None, read=2 * MIB), {"python": [1], "cat": [2]}, 8, {}, ["cat"]),
        # Logs of other machines explain more than was read here.
        (of(1, 2, read=100 * MIB), {"python": [1]}, 100, {}, []),
    ],
)
def test_processes_that_read_more_than_is_known(accounts, began, read, more, found) -> None:
    facts = {"written": 0, "received": 0, "fed": {}} | more
    assert not_accounted(accounts, began=began, read=int(read * MIB), **facts) == found
