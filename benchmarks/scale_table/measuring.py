"""Measures rows: each at three sizes, and shared work in each way.

MPI and Dask are measured at the largest size only. The way "pickled" (see `executors`) is no way to work: it counts
what the first process does, and what pieces return.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measured_child import measured_child
from benchmarks.measured_command import Measured, measured_command
from benchmarks.scale_table.inputs import Input
from benchmarks.scale_table.rows import ROWS, Row
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.units import MIB, format_bytes

WORKERS = 2
TMPFS = Path("/dev/shm")
LEAST_FREE_BYTES_A_SIZE = 400
"""Bytes of disk space for a unit of an input, with all that its rows write."""

PROGRAM = (sys.executable, "-m", "dxt_replay")
OTHER_WORKERS = (sys.executable, "-m", "benchmarks.scale_table.executors")


def measured(inputs: Mapping[str, Input], factor: float, folder: Path | None) -> Iterator[dict[str, Any]]:
    """The runs of all rows of these inputs, in their order; sizes are multiplied by `factor`.

    folder: where the temporary folders are made; None for that of the system, or TMPFS for an input in memory.
    Raises: RuntimeError for a program that fails; TargetError where the disk has too little room.
    """
    for name, source in inputs.items():
        sizes = sorted({max(round(size * factor), source.least) for size in source.sizes})
        for size in sizes:
            home = TMPFS if folder is None and source.in_memory and TMPFS.is_dir() else folder
            with tempfile.TemporaryDirectory(prefix="dxt-replay-scale-", dir=home) as place:
                _check_room(Path(place), size * LEAST_FREE_BYTES_A_SIZE)
                units = source.make(Path(place), size)
                for row in ROWS:
                    if row.input == name:
                        for run in _runs(row, Path(place), size, is_largest=size == sizes[-1]):
                            yield {"unit": source.unit, "units": units} | run | _sizes(Path(place))


def available(way: str) -> bool:
    """Whether this machine has what a way needs."""
    if way == "MPI":
        return mpiexec() is not None
    if way == "Dask":
        try:
            import distributed  # noqa: F401
        except ImportError:
            return False
    return True


def mpiexec() -> str | None:
    """The launcher of this environment, else that on the path."""
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def _runs(row: Row, folder: Path, size: int, *, is_largest: bool) -> Iterator[dict[str, Any]]:
    head = {"row": row.name, "size": size, "load": os.getloadavg()[0]}
    if row.code:
        texts = (text.replace("{folder}", str(folder)).replace("{size}", str(size)) for text in (row.code, row.prepare))
        found = measured_child(next(texts), folder, next(texts))
        times = {name: found[name] for name in ("cpu_s", "wall_s", "peak_bytes")}
        grown = {"MiB above the start": (found["peak_bytes"] - found["start_bytes"]) / MIB}
        yield head | {"way": "one", "workers": 1, "units": int(found["rows"]), "figure": grown, **times}
        return
    ways = [way for way in row.ways if available(way) and (is_largest or way in ("one", "processes"))]
    for way in [*ways, *(("pickled",) if len(ways) > 1 else ())]:
        words = _words(row, folder, size, way)
        output = Path(_filled(row.output, folder, size)) if row.output else None
        if output is not None:
            shutil.rmtree(output, ignore_errors=True)
            if not output.suffix:
                output.mkdir()
        if words is None:
            return
        done = measured_command(words)
        yield head | {
            "way": way,
            "workers": 1 if way == "one" else WORKERS,
            "command": " ".join([*_shown(row), *(() if len(ways) == 1 else _sharing(way))]),
            **{
                name: getattr(done, name)
                for name in ("cpu_s", "wall_s", "first_s", "busiest_s", "alone_s", "peak_bytes")
            },
            **(json.loads(done.said.splitlines()[-1]) if way == "pickled" else {}),
            "sha256": digest(output, done.printed) if len(ways) > 1 else None,
            "figure": _figure(row, done),
        }


def _words(row: Row, folder: Path, size: int, way: str) -> list[str] | None:
    """The words that run a row; None without the program that it needs."""
    words = [_filled(word, folder, size) for word in row.command or row.program]
    if row.program:
        if "{mpiexec}" not in words:
            return words
        launcher = mpiexec()
        replaced = {"{mpiexec}": [launcher], "{dxt-replay}": PROGRAM}
        return None if launcher is None else [part for word in words for part in replaced.get(word, [word])]  # type: ignore[misc]
    if way in ("Dask", "pickled"):
        return [*OTHER_WORKERS, way.lower(), str(WORKERS), *words]
    if way == "MPI":
        return [str(mpiexec()), "-n", str(WORKERS + 1), *PROGRAM, *words]
    return [*PROGRAM, *words, *(_sharing(way) if len(row.ways) > 1 else ())]


def _sharing(way: str) -> tuple[str, ...]:
    return {"one": ("--workers", "1"), "processes": ("--workers", str(WORKERS))}.get(way, ())


def _shown(row: Row) -> list[str]:
    """The words of a row for a person."""
    words = row.program or ("dxt-replay", *row.command)
    return [word.replace("{folder}/", "").replace("{size}", "N").strip("{}") for word in words]


def _filled(text: str, folder: Path, size: int) -> str:
    return text.replace("{folder}", str(folder)).replace("{size}", str(size))


def _figure(row: Row, done: Measured) -> dict[str, float] | None:
    if not row.figure:
        return None
    value = json.loads(done.printed)
    for key in row.figure:
        value = value[key]
    return {" ".join(row.figure): float(value)}


def digest(output: Path | None, printed: bytes) -> str:
    """SHA-256 of all files of a folder by name, or of what was printed."""
    if output is None:
        return hashlib.sha256(printed).hexdigest()
    found = hashlib.sha256()
    for path in sorted(path for path in output.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(output)} {path.stat().st_size}\n".encode())
        with open(path, "rb") as file:
            while content := file.read(1 << 20):
                found.update(content)
    return found.hexdigest()


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of the log and of the capture in a folder, where they are."""
    log, capture = folder / "job.darshan", folder / "job.capture"
    found = {"log_bytes": log.stat().st_size} if log.exists() else {}
    if capture.exists():
        found["capture_bytes"] = sum(file.stat().st_size for file in capture.rglob("*"))
    return found


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TargetError(f"{folder} has {format_bytes(free)} free, not {format_bytes(needed)}: give another --folder")
