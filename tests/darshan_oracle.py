"""What pydarshan reads of a log, for comparison: always in a child process, for its C library may crash.

Run as a script it is that child: `python darshan_oracle.py OUT LOG...` writes OUT/<n>.npz for the n-th log.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.places import PYTHON_PATH, SHARED

COUNTER_MODULES = ("POSIX", "MPI-IO", "STDIO", "H5F", "H5D", "PNETCDF_FILE", "PNETCDF_VAR", "DFS", "DAOS")


def shared_logs() -> list[Path]:
    """Every sound Darshan log beside the checkout: the public ones, the captures, and the Theta log."""
    logs = SHARED.rglob("*.darshan") if SHARED.is_dir() else ()
    return sorted(log for log in logs if "trials" not in log.parts)


def log_id(path: Path) -> str:
    """A short name for a test over `shared_logs`."""
    return f"{path.parent.name}-{path.stem[:40]}{path.stem[-12:] if len(path.stem) > 52 else ''}"


@cache
def shared_answers() -> Mapping[Path, Mapping[str, np.ndarray] | str]:
    """`read_all` of all shared logs, once per session (some 10 s)."""
    return read_all(shared_logs())


def answer(path: Path) -> Mapping[str, np.ndarray]:
    """What pydarshan reads of one shared log."""
    found = shared_answers()[path]
    assert not isinstance(found, str), f"pydarshan cannot read {path}: {found}"
    return found


def read_all(logs: Sequence[Path]) -> dict[Path, Mapping[str, np.ndarray] | str]:
    """pydarshan's arrays of each log, or why it could not read it. A crash costs one log, not the rest."""
    answers: dict[Path, Mapping[str, np.ndarray] | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        todo = list(logs)
        while todo:
            command = [sys.executable, __file__, folder, *map(str, todo)]
            environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
            for number in range(len(todo)):
                result = Path(folder, f"{number}.npz")
                if not result.exists():
                    answers[todo[number]] = f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"
                    todo = todo[number + 1 :]
                    break
                with np.load(result, allow_pickle=False) as arrays:
                    answers[todo[number]] = str(arrays["error"]) if "error" in arrays else dict(arrays)
                result.unlink()
            else:
                todo = []
    return answers


def _read(backend: Any, path: str) -> dict[str, Any]:
    log = backend.log_open(path)
    if not log["handle"]:
        return {"error": "pydarshan cannot open it"}
    job = backend.log_get_job(log)
    mounts = backend.log_get_mounts(log)
    names = backend.log_get_name_records(log)
    found: dict[str, Any] = {
        "job": np.array([job[key] for key in _JOB_FIELDS], dtype=np.int64),
        "run_time": job["run_time"],
        "metadata": np.array([f"{key}={value}" for key, value in job["metadata"].items()], dtype=str),
        "exe": backend.log_get_exe(log),
        "mounts": np.array(sorted(f"{fs_type}\t{path}" for path, fs_type in mounts), dtype=str),
        "name_ids": np.array(list(names), dtype=np.uint64),
        "names": np.array(list(names.values()), dtype=str),
    }
    modules = backend.log_get_modules(log)
    found["modules"] = np.array(sorted(f"{m} {d['ver']} {d['partial_flag']}" for m, d in modules.items()), dtype=str)
    # The library only moves forward through a log.
    for module in sorted(modules, key=lambda name: modules[name]["idx"]):
        if module in COUNTER_MODULES:
            found |= _counters(backend, log, module)
        elif module.startswith("DXT_"):
            found |= _dxt(backend, log, module)
        elif module == "LUSTRE":
            found |= _lustre(backend, log)
    backend.log_close(log)
    return found


_JOB_FIELDS = ("uid", "start_time_sec", "start_time_nsec", "end_time_sec", "end_time_nsec", "nprocs", "jobid")


def _records(backend: Any, log: Any, module: str, **options: Any) -> list[dict[str, Any]]:
    records = []
    while (record := backend.log_get_record(log, module, **options)) is not None:
        records.append(record)
    return records


def _counters(backend: Any, log: Any, module: str) -> dict[str, Any]:
    records = _records(backend, log, module, dtype="numpy")
    found = {
        f"{module} names": np.array(backend.counter_names(module)),
        f"{module} fnames": np.array(backend.fcounter_names(module)),
        f"{module} ids": np.array([r["id"] for r in records], dtype=np.uint64),
        f"{module} ranks": np.array([r["rank"] for r in records], dtype=np.int64),
    }
    if records:
        found[f"{module} counters"] = np.stack([r["counters"] for r in records], axis=1)
        found[f"{module} fcounters"] = np.stack([r["fcounters"] for r in records], axis=1)
    if records and "file_rec_id" in records[0]:
        found[f"{module} file_ids"] = np.array([r["file_rec_id"] for r in records], dtype=np.uint64)
    return found


def _dxt(backend: Any, log: Any, module: str) -> dict[str, Any]:
    records = _records(backend, log, module, dtype="dict")
    segments = [s for r in records for part in ("write_segments", "read_segments") for s in r[part]]
    return {
        f"{module} ids": np.array([r["id"] for r in records], dtype=np.uint64),
        f"{module} ranks": np.array([r["rank"] for r in records], dtype=np.int64),
        f"{module} hosts": np.array([r["hostname"] for r in records], dtype=str),
        f"{module} writes": np.array([r["write_count"] for r in records], dtype=np.int64),
        f"{module} reads": np.array([r["read_count"] for r in records], dtype=np.int64),
        f"{module} whole": np.array([(s["offset"], s["length"]) for s in segments], dtype=np.int64).reshape(-1, 2),
        f"{module} times": np.array([(s["start_time"], s["end_time"]) for s in segments]).reshape(-1, 2),
    }


def _lustre(backend: Any, log: Any) -> dict[str, Any]:
    rows = [(r, c) for r in _records(backend, log, "LUSTRE", dtype="numpy") for c in r["components"]]
    return {
        "LUSTRE ids": np.array([r["id"] for r, _ in rows], dtype=np.uint64),
        "LUSTRE ranks": np.array([r["rank"] for r, _ in rows], dtype=np.int64),
        "LUSTRE counters": np.array([c["counters"] for _, c in rows], dtype=np.int64).reshape(-1, 7),
    }


def main(folder: str, *logs: str) -> None:
    """The child."""
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    from darshan.backend import cffi_backend as backend

    for number, path in enumerate(logs):
        try:
            found = _read(backend, path)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        np.savez(Path(folder, f"{number}.npz"), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
