"""Small profiles as PyTorch's profiler writes them, in each generation of its clock."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_NS = 1_795_309_096_060_434_123
BASE_NS = START_NS // 10**9 // 7_889_238 * 7_889_238 * 10**9
PID = 4711


def event(
    name: str,
    start_ns: int,
    end_ns: int,
    *,
    cat: str = "cpu_op",
    pid: int | str = PID,
    tid: int | str = PID,
    correlation: int | None = None,
) -> dict[str, Any]:
    """An event with a duration; its times in ns, from the start of the profile."""
    args = {} if correlation is None else {"correlation": correlation}
    return {
        "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "start": start_ns, "end": end_ns,
        "args": {"External id": 7, **args},
    }  # fmt: skip


def mark(number: int, start_ns: int, end_ns: int, **members: Any) -> dict[str, Any]:
    """The mark of a step."""
    return event(f"ProfilerStep#{number}", start_ns, end_ns, **{"cat": "user_annotation", **members})


def kernel(name: str, start_ns: int, end_ns: int, correlation: int, cat: str = "kernel") -> dict[str, Any]:
    """Work on stream 7 of GPU 0."""
    return event(name, start_ns, end_ns, cat=cat, pid=0, tid=7, correlation=correlation)


def launch(start_ns: int, end_ns: int, correlation: int) -> dict[str, Any]:
    """The call that put a kernel on the stream."""
    return event("cudaLaunchKernel", start_ns, end_ns, cat="cuda_runtime", correlation=correlation)


def anchor(i: int, start_ns: int, *, rank: int = 0, pid: int = PID) -> dict[str, Any]:
    """An annotation as `profiler_merge.recording` sets it."""
    name = f"dxt_anchor#i={i},rank={rank},pid={pid}#"
    return event(name, start_ns, start_ns + 20_000, cat="user_annotation", pid=pid, tid=pid)


def trace(
    events: Sequence[dict[str, Any]],
    *,
    generation: int = 4,
    base_last: bool = False,
    indent: int | None = 2,
    start_ns: int = START_NS,
    around: dict[str, Any] | None = None,
) -> bytes:
    """The file. `generation`: 1 whole us since the epoch, 2 the same with decimals, 3 us without a date, 4 with a base.

    `base_last`: the base stands after the events, as it did in 2024. `around`: more members of the file.
    """
    zero_ns = {1: 0, 2: 0, 3: start_ns - 10**12, 4: BASE_NS}[generation]
    digits = 0 if generation == 1 else 3
    made = []
    for each in events:
        shown = {key: value for key, value in each.items() if key not in ("start", "end")}
        if "start" in each:
            shown["ts"] = _Us(each["start"] + start_ns - zero_ns, digits)
            shown["dur"] = _Us(each["end"] - each["start"], digits)
        made.append(shown)
    base = {"baseTimeNanoseconds": BASE_NS} if generation == 4 else {}
    head = {"schemaVersion": 1, **(around or {}), **({} if base_last else base)}
    tail = {"traceName": "/tmp/tmpabc.json", **(base if base_last else {})}
    text = json.dumps({**head, "traceEvents": made, **tail}, indent=indent, default=str)
    return _unquoted(text).encode()


class _Us:
    """Microseconds with decimals, printed without rounding."""

    def __init__(self, ns: int, digits: int) -> None:
        self.text = str(ns // 1000) if digits == 0 else f"{ns // 1000}.{ns % 1000:03}"

    def __str__(self) -> str:
        return f"\x01{self.text}\x02"


def _unquoted(text: str) -> str:
    return text.replace('"\\u0001', "").replace('\\u0002"', "")


def write(path: Path, *arguments: Any, **options: Any) -> Path:
    """`trace` as a file, compressed where its name ends in .gz."""
    data = trace(*arguments, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 1, mtime=0) if path.suffix == ".gz" else data)
    return path
