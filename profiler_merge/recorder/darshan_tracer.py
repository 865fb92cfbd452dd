"""Darshan as the tracer of a job: finds and sets up its library, and tries it on a small process before the job."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dxt_replay.profiler_merge.recorder import darshan_settings as settings
from dxt_replay.profiler_merge.recorder.darshan_library import Library, is_darshan
from dxt_replay.profiler_merge.recorder.job_python import folder_of_package, job_python
from dxt_replay.profiler_merge.recorder.job_script import script_text
from dxt_replay.profiler_merge.recorder.recording_folder import (
    CHECK,
    CONFIG,
    SMALL_CONFIG,
    find_below,
    make_dated,
    write_script,
)
from dxt_replay.profiler_merge.recorder.tracer import DARSHAN, LOGS, Tracer
from dxt_replay.traces.errors import LogError, RecordingError

_CHECKED = "checked-file"
_CHECK = f"open('{_CHECKED}', 'rb').read()"
PATIENCE_S = 60
_HDF5_CALL = b"H5get_libversion"


@dataclass(frozen=True, slots=True, kw_only=True)
class DarshanTracer:
    """A working tracer, and the place of its logs.

    job: the job id that all logs carry. dated: the logs lie in folders year/month/day. data: folders and files that
    are traced although Darshan leaves them out by default.
    """

    tracer: Tracer
    job: int
    dated: bool
    data: tuple[str, ...]


def set_up(
    library: Library, folder: Path, command: Sequence[str], *, dxt_mib: int, include: Sequence[str]
) -> DarshanTracer:
    """Write Darshan's configuration into the recording's folder, and trace one small process with it.

    Raises: RecordingError when the library cannot be loaded, writes no log, or was built without DXT.
    """
    config = folder / CONFIG
    wanted = [*include, *_data_places(command), str(folder)]
    named = dict.fromkeys(path for path in wanted if settings.needs_include(path))
    small = folder / SMALL_CONFIG
    for path, mib in ((config, dxt_mib), (small, min(dxt_mib, settings.SMALL_DXT_MIB))):
        path.write_text(settings.config_text(mib, named), encoding="utf-8", errors="surrogateescape")
    job = secrets.randbelow(2**31 - 1) + 1  # Darshan keeps a signed 32-bit number
    known = settings.paths_by_site(library.path.read_bytes(), os.environ)
    by_site = {name: path for name, path in known.items() if os.path.isdir(path)}
    ours = {name: LOGS for name in by_site if "LOG" in name}
    tracer = Tracer(
        name=DARSHAN,
        program=library.path,
        origin=library.origin,
        variables=settings.variables(config=str(config), small=str(small), logs=LOGS, job=job, dxt_mib=dxt_mib) | ours,
        unset=settings.UNSET,
        preload=(library.path, *_hdf5_libraries(library.path, command, without_darshan(os.environ))),
        patterns=("*.darshan",),
    )
    printed, log = _try(tracer, folder)
    if log is None:
        elsewhere = ", ".join(f"{name} ({value})" for name, value in by_site.items() if name not in ours)
        look = (
            f". The log may lie in the folder of {elsewhere}: unset these variables, which the library follows"
            * bool(elsewhere)
        )
        raise RecordingError(
            f"{library.path} ({library.origin}) wrote no log for a small test program "
            f"({_last_line(printed)}){look}. Name another library with --library, or record with --with strace"
        )
    version, has_dxt, dated = _facts(log, folder / CHECK)
    shutil.rmtree(folder / CHECK)
    if not has_dxt:
        raise RecordingError(
            f"{library.path} ({library.origin}) traced nothing of a small test program: it was built without DXT, or "
            "is older than 3.1.3. Name "
            "another library with --library, or record with --with strace"
        )
    return DarshanTracer(tracer=replace(tracer, version=version), job=job, dated=dated, data=tuple(named))


def without_darshan(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with Darshan removed from LD_PRELOAD, since this process's children do not belong to the job."""
    words = [word for word in environment.get("LD_PRELOAD", "").replace(":", " ").split() if not is_darshan(word)]
    kept = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    return {**kept, "LD_PRELOAD": ":".join(words)} if words else kept


def _try(tracer: Tracer, folder: Path) -> tuple[str, Path | None]:
    """The output of a small process under the tracer, and its log."""
    place = folder / CHECK
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / _CHECKED).write_bytes(b"x" * 4096)
    make_dated(place)
    text = script_text(tracer, logs=place, profiles=place, by_rank=False, dated=False)
    script = write_script(place / "check.sh", text)
    try:
        done = subprocess.run(
            [str(script), sys.executable, "-I", "-S", "-c", _CHECK],
            cwd=place, env=without_darshan(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), None
    logs = find_below(place, tracer.patterns)
    return done.stderr + done.stdout, logs[0] if logs else None


def _facts(path: Path, place: Path) -> tuple[str, bool, bool]:
    """Version of the library, whether it traced the process, and whether its logs go into dated folders."""
    from dxt_replay.profiler_merge.darshan.log import (
        open_log,  # imported here because NumPy's threads would take the signals of the job
    )

    try:
        log = open_log(path)
    except LogError as error:
        raise RecordingError(f"the log of a small test program cannot be read: {error}") from error
    return log.job.metadata.get("lib_ver", ""), "DXT_POSIX" in log.modules, path.parent != place


def _data_places(command: Sequence[str]) -> list[str]:
    """Folders and files in the command, also behind `=`, and its working directory: data there are traced even if
    Darshan leaves them out by default.

    An output folder may not exist yet. Programs and scripts are no data."""
    words = [word.rpartition("=")[2] for word in command[1:]]
    named = [word for word in words if word.startswith("/") and len(Path(word).parts) > 2 and not _is_program(word)]
    return [*named, os.getcwd()]


def _is_program(path: str) -> bool:
    return path.endswith((".py", ".sh")) or (os.path.isfile(path) and os.access(path, os.X_OK))


def _hdf5_libraries(library: Path, command: Sequence[str], environment: Mapping[str, str]) -> list[Path]:
    """The HDF5 library of the job's h5py, and its dependencies: a Darshan with HDF5 modules needs them loaded."""
    if _HDF5_CALL not in library.read_bytes():
        return []
    folder = folder_of_package(job_python(command, environment), "h5py", environment)
    if folder is None:
        return []
    bundled = sorted(folder.parent.glob("h5py.libs/*.so*"), key=lambda path: (path.name.startswith("libhdf5"), path))
    return [path for path in bundled if "hdf5_" not in path.name] or [*folder.parents[2].glob("libhdf5.so")]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "which printed nothing"
