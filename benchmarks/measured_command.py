"""Time and memory of a program with all its processes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

SAMPLE_S = 0.05
THREADS = 64
"""Threads of a process that are asked for children: a replay has thousands, which start none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a program.

    wall_s: seconds until it has ended.
    cpu_s: seconds of CPU of all its processes.
    first_s: seconds of CPU of its first process.
    before_s: those of them before it had another process; all of them if it never had one.
    busiest_s: seconds of CPU of its busiest other process, 0 where there is none.
    peak_bytes: of the resident memory of all its processes; pages that they share count for each.
    printed, said: its standard output, and what it wrote to standard error.
    """

    wall_s: float
    cpu_s: float
    first_s: float
    before_s: float
    busiest_s: float
    peak_bytes: int
    printed: bytes
    said: str

    @property
    def alone_s(self) -> float:
        """Seconds that it would take at least if each process had a processor of its own: the first process works
        beside the others, which begin after `before_s`."""
        return max(self.first_s, self.before_s + self.busiest_s)


@dataclass(slots=True, kw_only=True)
class _Watched:
    """Totals from the samples of a process and its children: peak memory, CPU seconds by process, and those of the
    first one when another was seen first."""

    peak_bytes: int = 0
    before_s: float | None = None
    cpu_s: dict[int, float] = field(default_factory=dict)


def measured_command(words: Sequence[str]) -> Measured:
    """Run a program. Memory and the CPU time of each of its processes are sampled every SAMPLE_S.

    Raises: RuntimeError for an exit status other than 0 and 1.
    """
    began = time.perf_counter()
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        found = _Watched()
        watching = threading.Thread(target=_watch, args=(child.pid, found))
        watching.start()
        assert child.stdout is not None
        assert child.stderr is not None
        with ThreadPoolExecutor(1) as reading:
            complaint = reading.submit(child.stderr.read)
            printed, said = child.stdout.read(), complaint.result().decode(errors="replace")
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - began
        watching.join()
    if child.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(words)}: {said[-500:]}")
    others = [seconds for pid, seconds in found.cpu_s.items() if pid != child.pid]
    cpu_s = used.ru_utime + used.ru_stime
    return Measured(
        wall_s=wall_s,
        cpu_s=cpu_s,
        first_s=cpu_s if not others else found.cpu_s[child.pid],
        before_s=cpu_s if found.before_s is None else found.before_s,
        busiest_s=max(others, default=0.0),
        peak_bytes=found.peak_bytes,
        printed=printed,
        said=said,
    )


def _watch(pid: int, found: _Watched) -> None:
    """Note samples of a process and its children in `found`, until it ends."""
    while processes := list(_processes(pid)):
        resident = 0
        for each, cpu_s, resident_bytes in processes:
            found.cpu_s[each] = max(cpu_s, found.cpu_s.get(each, 0.0))
            resident += resident_bytes
        if len(found.cpu_s) > 1 and found.before_s is None:
            found.before_s = found.cpu_s[pid]
        found.peak_bytes = max(found.peak_bytes, resident)
        time.sleep(SAMPLE_S)


def _processes(pid: int) -> Iterator[tuple[int, float, int]]:
    """Number, CPU seconds and resident bytes of a process and its descendants; fields of proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # By the thread that started them: Dask starts its workers on another one than the first.
        threads = islice(Path(f"/proc/{pid}/task").iterdir(), THREADS)
        children = [child for thread in threads for child in _read(thread / "children").split()]
    except OSError:
        return
    if fields[0] in "ZX":
        return
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    yield pid, cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    for child in children:
        yield from _processes(int(child))


def _read(path: Path) -> str:
    """A file of /proc; empty where the thread has ended meanwhile."""
    try:
        return path.read_text()
    except OSError:
        return ""
