"""Time and memory of a `dxt-replay` command with all its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a command.

    wall_s: seconds until it has ended.
    cpu_s: seconds of CPU of all its processes.
    first_s: seconds of CPU of its first process, which is not among the workers.
    busiest_s: seconds of CPU of its busiest other process, 0 where there is none.
    peak_bytes: of the resident memory of all its processes; pages that they share count for each.
    printed: its standard output.
    """

    wall_s: float
    cpu_s: float
    first_s: float
    busiest_s: float
    peak_bytes: int
    printed: bytes


@dataclass(slots=True, kw_only=True)
class _Watched:
    """Totals from the samples of a process and its children: peak memory, and CPU seconds by process."""

    peak_bytes: int = 0
    cpu_s: dict[int, float] = field(default_factory=dict)


def measured_command(arguments: Sequence[str]) -> Measured:
    """Run `dxt-replay` with these arguments. Memory and the CPU time of each process are sampled every SAMPLE_S.

    Raises: RuntimeError for an exit status other than 0 and 1.
    """
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "dxt_replay.replay.commands.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        found = _Watched()
        watching = threading.Thread(target=_watch, args=(child.pid, found))
        watching.start()
        assert child.stdout is not None
        assert child.stderr is not None
        printed, complaint = child.stdout.read(), child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - began
        watching.join()
    if child.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(arguments)}: {complaint.decode(errors='replace')[-500:]}")
    others = [seconds for pid, seconds in found.cpu_s.items() if pid != child.pid]
    cpu_s = used.ru_utime + used.ru_stime
    return Measured(
        wall_s=wall_s,
        cpu_s=cpu_s,
        first_s=cpu_s if not others else found.cpu_s[child.pid],
        busiest_s=max(others, default=0.0),
        peak_bytes=found.peak_bytes,
        printed=printed,
    )


def _watch(pid: int, found: _Watched) -> None:
    """Note samples of a process and its children in `found`, until it ends."""
    while processes := list(_processes(pid)):
        resident = 0
        for each, cpu_s, resident_bytes in processes:
            found.cpu_s[each] = max(cpu_s, found.cpu_s.get(each, 0.0))
            resident += resident_bytes
        found.peak_bytes = max(found.peak_bytes, resident)
        time.sleep(SAMPLE_S)


def _processes(pid: int) -> Iterator[tuple[int, float, int]]:
    """Number, CPU seconds and resident bytes of a process and its descendants; fields of proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    if fields[0] in "ZX":
        return
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    yield pid, cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    for child in children:
        yield from _processes(int(child))
