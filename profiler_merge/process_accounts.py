"""Whether the processes of a recording left logs that explain what all of them read.

`dxt-replay record` knows each process that began, and the bytes that all of them read, from the kernel. Taken off are
what the logs count, what each Python read to start and to import (`recorder.python_start` counts it), and an allowance.
What then remains was read by processes without a log, or past the log: raw system calls, a descriptor from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import read_counters
from dxt_replay.profiler_merge.darshan.jobs import ProcessFacts
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.output import UNSEEN
from dxt_replay.traces.schema import Unseen
from dxt_replay.traces.unseen import LEAST_COVERAGE, recording_of

LEAST_BYTES = 1 << 20
"""What processes without a log may have read together: programs such as `ldconfig` start with some tens of KB."""

START_BYTES, PYTHON_BYTES = 16 << 10, 128 << 10
"""What a process with a log, and a Python whose modules are counted, read beside: heads of shared libraries, /proc,
locales. `gzip` reads 11 KB so, a Python with PyTorch 0.1 MB."""

IMPORT_BYTES = 64 << 20
"""What a Python that does not run `sitecustomize` (`python -I`) may read of modules: torch 25 MB, with tools 60 MB."""

_LONGEST_NAME = 15
"""Bytes of a program's name that the kernel keeps."""

STREAM_BYTES = 4096
"""What a read of the C library's streams fetches at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the log of a process explains. pid: None in a log without it, as of a killed one; program: its name then.
    ranks: processes in the log.

    read, written: bytes, those of streams as the kernel may have counted them. counted: whether what it imported is
    counted elsewhere. imports: whether that is not known. start_ns, end_ns: 0 where they are not known."""

    pid: int | None
    program: str = ""
    ranks: int
    read: int
    written: int
    counted: bool = False
    imports: bool = False
    start_ns: int = 0
    end_ns: int = 0


def unaccounted(logs: Iterable[Path], accounts: Sequence[Account] | None = None) -> tuple[Unseen, ...]:
    """The processes for which the logs of a recording do not account. Raises: LogError for damage.

    accounts: those of a tracer whose logs say less; None for Darshan's.
    """
    logs = list(logs)
    found: list[Unseen] = []
    for folder in dict.fromkeys(filter(None, map(recording_of, logs))):
        path = folder / UNSEEN
        try:
            content = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
            moved, began = content.get("moved"), content.get("began")
            if not moved or began is None:
                continue
            counts = folder.glob("profile/*.not_data")
            counted = {place.name: int.from_bytes(place.read_bytes()[:8], "little") for place in counts}
            if accounts is None:
                mine = [_account(each, counted) for each in logs if recording_of(each) == folder]
            else:
                hooked = {int(name.split(".")[0]) for name in counted}
                mine = [replace(each, counted=each.pid in hooked) for each in accounts]
            names = not_accounted(
                mine,
                began={program: list(map(int, pids)) for program, pids in began.items()},
                read=int(moved["rchar"]) - sum(counted.values()),
                written=int(moved["wchar"]),
                received=sum(content["received"].values()),
                fed={name: int(size) for name, size in content.get("fed", {}).items()},
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogError(f"{path} is damaged ({error!r}): remove it, or record again") from error
        found += [Unseen(kind="process", name=name, bytes=None) for name in names]
    return tuple(found)


def not_accounted(
    accounts: Sequence[Account],
    *,
    began: dict[str, list[int]],
    read: int,
    written: int,
    received: int,
    fed: Mapping[str, int],
) -> list[str]:
    """Names of the processes that read more than is known.

    began: the processes that should have left logs, by program. read, written: bytes of all, without what Pythons read
    to start and import. received: bytes from sockets. fed: sizes of the files that were seen to be a process's input:
    no log shows what it read of them.
    """
    known = {each.pid for each in accounts}
    missing = {program: [pid for pid in pids if pid not in known] for program, pids in began.items()}
    for each in (each for each in accounts if each.pid is None):
        del missing.get(each.program, [])[: each.ranks]
    missing = {program: pids for program, pids in missing.items() if pids}
    explained = sum(each.read for each in accounts)
    left = read - explained - sum(START_BYTES * each.ranks + PYTHON_BYTES * each.counted for each in accounts)
    if missing:
        if left < LEAST_BYTES:
            return []
        return [f"{program} ({len(pids)} processes)" if pids[1:] else program for program, pids in missing.items()]
    if min(left, sum(fed.values())) >= LEAST_BYTES:
        return sorted(fed)
    # Bytes on pipes were written by others that ran at the time, which logs do not count either.
    in_order = sorted(accounts, key=lambda each: each.start_ns)
    side_by_side = any(each.ranks > 1 or not each.end_ns for each in accounts)
    side_by_side |= any(after.start_ns < before.end_ns for before, after in pairwise(in_order))
    pipes = max(written - sum(each.written for each in accounts), 0) if side_by_side else 0
    left -= pipes + received + IMPORT_BYTES * sum(each.imports for each in accounts)
    return ["processes with a log"] if left > LEAST_BYTES + (1 - LEAST_COVERAGE) * explained else []


def _account(path: Path, counted: Iterable[str]) -> Account:
    log = open_log(path)
    facts = ProcessFacts(log)
    program = log.job.exe.split(" ")[0]
    is_python = Path(facts.program).suffix == ".py" or "python" in program.rpartition("/")[2]
    hooked = any(name.startswith(f"{facts.named_pid}.") for name in counted)
    return Account(
        pid=facts.named_pid,
        program=Path(program).name[:_LONGEST_NAME],
        ranks=max(log.job.nprocs, 1),
        read=_sum(log, "POSIX_BYTES_READ", "STDIO_BYTES_READ") + STREAM_BYTES * _sum(log, "STDIO_READS"),
        written=_sum(log, "POSIX_BYTES_WRITTEN", "STDIO_BYTES_WRITTEN"),
        counted=hooked,
        start_ns=facts.start_ns,
        end_ns=facts.end_ns or 0,
        imports=is_python and facts.parent_pid is None and not hooked,
    )


def _sum(log: DarshanLog, *names: str) -> int:
    total = 0
    for name in names:
        table = read_counters(log, name.split("_")[0])
        if table is not None and name in table.counters:
            total += int(np.maximum(table.counters[name], 0).sum())
    return total
