"""Reads a counter module with pydarshan in a child process, so that a crash of its C library is an error message here.

For module versions newer than this release knows; the child is
`python -m dxt_replay.profiler_merge.darshan.counters_child LOG MODULE`.
"""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from dxt_replay.traces.errors import LogError, MissingDependencyError

_TIMEOUT_S = 600
_NOT_INSTALLED = 3
_NO_RECORDS = 4
_NOT_OPENED = 5
_INSTALL = "pip install 'dxt-replay[darshan]'"


def read_in_child(path: Path, module: str, version: int) -> dict[str, np.ndarray]:
    """Read one module with pydarshan. Returns: `ranks` int64[n], `record_ids` uint64[n], `counters` int64[k, n] and
    `fcounters` float64[m, n] with their names `counter_names` and `fcounter_names`, and `file_ids` for H5D.

    Raises: LogError when pydarshan does not know the version either, crashes, or takes longer than ten minutes;
    MissingDependencyError when it is not installed.
    """
    place = f"{module} version {version} of {path}"
    root = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", __name__, str(path), module]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=_TIMEOUT_S, env={**os.environ, "PYTHONPATH": search}
        )
    except subprocess.TimeoutExpired as error:
        raise LogError(f"pydarshan did not finish reading {place} within {_TIMEOUT_S} s") from error
    if done.returncode == _NOT_INSTALLED:
        raise MissingDependencyError("pydarshan", f"reading {place}, which is newer than this release,", _INSTALL)
    said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if done.returncode == _NO_RECORDS:
        raise LogError(f"neither this release nor the installed pydarshan reads {place} ({said}): update both")
    if done.returncode != 0:
        fate = f"died of signal {-done.returncode}" if done.returncode < 0 else f"failed ({said})"
        raise LogError(f"pydarshan {fate} on {place}: the log is damaged, or needs a newer pydarshan")
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as arrays:
        return dict(arrays)


def main(path: str, module: str) -> int:
    """The child: writes the arrays to standard output as an .npz; its exit status tells why it failed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Keep the C library's messages out of standard output, which carries the result.
    result = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        from darshan.backend import cffi_backend as backend
    except ImportError as error:
        print(error, file=sys.stderr)
        return _NOT_INSTALLED
    log = backend.log_open(path)
    if not log["handle"]:
        return _NOT_OPENED  # The library has printed the reason, and would continue with a null pointer.
    records = []
    while (record := backend.log_get_record(log, module, dtype="numpy")) is not None:
        records.append(record)
    if not records:
        return _NO_RECORDS
    arrays = {
        "ranks": np.array([record["rank"] for record in records], dtype=np.int64),
        "record_ids": np.array([record["id"] for record in records], dtype=np.uint64),
        "counters": np.stack([record["counters"] for record in records], axis=1),
        "fcounters": np.stack([record["fcounters"] for record in records], axis=1),
        "counter_names": np.array(backend.counter_names(module)),
        "fcounter_names": np.array(backend.fcounter_names(module)),
    }
    if "file_rec_id" in records[0]:
        arrays["file_ids"] = np.array([record["file_rec_id"] for record in records], dtype=np.uint64)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    with result:
        result.write(buffer.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
