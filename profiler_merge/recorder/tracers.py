"""The tracers of a job: what each adds to its processes, and strace, which every distribution has, and DFTracer."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from dxt_replay.profiler_merge.recording import FOLDER_VARIABLE, RANK_VARIABLES
from dxt_replay.profiler_merge.request_hooks.log import FOLDER_VARIABLE as FOLDER_OF_REQUESTS
from dxt_replay.profiler_merge.request_hooks.log import ROOT_VARIABLE, SUFFIX
from dxt_replay.traces.errors import RecordingError

DARSHAN, STRACE, DFTRACER, REQUESTS, MARKS = "darshan", "strace", "dftracer", "requests", "marks"
TRACERS = (DARSHAN, STRACE, DFTRACER, REQUESTS, MARKS)

LOGS = "$logs"
"""Placeholder in `variables` and `prefix` for the folder into which a process writes its logs."""
OF_RANK = "${rank:+rank$rank-}"
"""Placeholder there for a file name's begin that names the rank; empty without ranks."""
_DAYS_AHEAD = 8
"""Number of days for which Darshan's dated folders are made: a process that starts later may leave no log."""

_CALLS = (
    "read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2,open,openat,openat2,creat,close,lseek,dup,"
    "dup2,dup3,fcntl,fadvise64,mmap,msync,sendfile,copy_file_range,splice,fsync,fdatasync,sync_file_range,ftruncate,fallocate,"
    "rename,renameat,renameat2,unlink,unlinkat,stat,lstat,fstat,newfstatat,statx,mkdir,mkdirat,clone,clone3,fork,vfork,"
    "execve,exit_group,chdir,fchdir,io_submit,io_uring_enter,recvfrom,recvmsg"
)
"""System calls from which the operations of a job are rebuilt. A machine may lack some, so each is requested
with `?`."""
_STRACE_NOTE = (
    "each traced call takes 0.05 to 0.13 ms longer, which small reads show in their times; io_uring is not traced"
)
_DFTRACER_NOTE = (
    "each traced call takes about 0.02 ms longer; times are whole microseconds; offsets of a file that a process has "
    "open twice are not exact; memory-mapped reads and MPI-IO are not traced"
)
_FLUSH_S = 10.0
_PATIENCE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracer:
    """A tracer that was found on this machine.

    name: one of TRACERS. program: the library or the program. origin: where it was found, for people.
    version: the one that it states, "" if it states none.
    variables: environment of every process of the job; LOGS and OF_RANK as above.
    unset: variables that would spoil the recording.
    preload: libraries to load into every process.
    prefix: words of the shell before the job's program; LOGS and OF_RANK as above.
    patterns: globs of the logs below the folder.
    note: the tracer's costs and losses, for people; "" if there are none.
    job: the job id that all of Darshan's logs carry. data: folders and files that it traces although it leaves them
    out by default.
    """

    name: str
    program: Path
    origin: str
    version: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    preload: tuple[Path, ...] = ()
    prefix: str = ""
    patterns: tuple[str, ...] = ()
    note: str = ""
    job: int = 0
    data: tuple[str, ...] = ()


def write_script(
    path: Path, tracer: Tracer, *, logs: Path, profiles: Path, by_rank: bool, python: Path | None = None
) -> Path:
    """Write the shell script that starts a process of the job, which its arguments name, under its tracer.

    A launcher starts it in each rank, on any node. It sets everything itself, because launchers may not pass the
    environment on. by_rank: each rank makes its own folder `rank<r>` in `logs`, for itself and its workers.
    profiles: folder that `recording` writes into. python: the one in which every Python of the job looks for modules
    first. Raises: OSError.
    """
    lines = [
        "#!/bin/sh",
        "# Written by dxt-replay record: starts one process of the job under its tracer.",
        f"logs={shlex.quote(str(logs))}",
    ]
    rank = ""
    if by_rank:
        for variable in reversed(("FLUX_TASK_RANK", "ALPS_APP_PE", *RANK_VARIABLES)):
            rank = f"${{{variable}:-{rank}}}"
    lines += [f'rank="{rank}"', 'if [ -n "$rank" ]; then logs="$logs/rank$rank"; fi']
    folders = ['"$logs"']
    if tracer.name == DARSHAN:  # a library may put its logs into folders year/month/day, which it does not make
        days = (date.today() + timedelta(days=ahead) for ahead in range(_DAYS_AHEAD))
        folders += [f'"$logs"/{day.year}/{day.month}/{day.day}' for day in days]
    lines.append(f"command -p mkdir -p {' '.join(folders)}")
    if tracer.unset:
        lines.append(f"unset {' '.join(tracer.unset)}")
    for name, value in tracer.variables.items():
        parts = re.split(f"({re.escape(LOGS)}|{re.escape(OF_RANK)})", value)
        words = (f'"{part}"' if part in (LOGS, OF_RANK) else shlex.quote(part) for part in parts if part)
        lines.append(f"export {name}={''.join(words)}")
    lines.append(f"export {FOLDER_VARIABLE}={shlex.quote(str(profiles))}")
    if python is not None:
        lines.append(f'export {FOLDER_OF_REQUESTS}="$logs" {ROOT_VARIABLE}=$$')
        lines.append(f'export PYTHONPATH={shlex.quote(str(python))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    if tracer.preload:
        libraries = shlex.quote(":".join(map(str, tracer.preload)))
        lines.append(f'export LD_PRELOAD={libraries}"${{LD_PRELOAD:+:$LD_PRELOAD}}"')
    lines.append(f'exec {tracer.prefix} "$@"')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    path.chmod(0o755)
    return path


def find_below(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Files below a folder whose names match one of the globs, sorted."""
    return sorted({path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()})


def find_strace(environment: Mapping[str, str]) -> Tracer:
    """strace, tried on one small process. Raises: RecordingError when it is absent, or may not trace here."""
    program = shutil.which("strace", path=environment.get("PATH"))
    if program is None:
        raise RecordingError("strace is not installed: apt install strace, dnf install strace, or conda install strace")
    done = subprocess.run([program, "-V"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+\.\d+)", done.stdout)
    # Without the filter (strace 5.3) all other system calls would take as much longer, too.
    # Signals are shown, since -e signal=none hides that one ended a process, for which `await_flush` waits.
    options = ["-f", "-ttt", "-T", "-yy", "-s", "0", "-q", "-D", "--seccomp-bpf"]
    options += ["-e", "trace=" + ",".join(f"?{name}" for name in _CALLS.split(","))]
    tried = subprocess.run(
        [program, *options, "-o", "/dev/null", "--", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise RecordingError(
            f"strace cannot trace here ({(tried.stderr.strip() or 'no message').splitlines()[-1]}): allow ptrace (in a "
            "container --cap-add=SYS_PTRACE), use strace 5.3 or newer, or record with Darshan or --with dftracer"
        )
    return Tracer(
        name=STRACE,
        program=Path(program),
        origin="PATH",
        version=found[1] if found else "",
        prefix=f'{shlex.join([program, *options])} -o "{LOGS}/{OF_RANK}$(hostname).$$.strace" --',
        patterns=("*.strace",),
        note=_STRACE_NOTE,
    )


def await_flush(logs: Sequence[Path]) -> None:
    """Wait until strace has written the end of each log; it outlives the traced process by a moment."""
    until = time.monotonic() + _FLUSH_S
    for log in logs:
        pid = log.name.removesuffix(".strace").rpartition(".")[2]
        end = re.compile(rf"^{pid} .*\+\+\+ (exited|killed)".encode(), re.MULTILINE)
        while not end.search(log.read_bytes()[-4096:]) and time.monotonic() < until:
            time.sleep(0.02)


def find_dftracer(environment: Mapping[str, str], command: Sequence[str]) -> Tracer:
    """DFTracer in the Python of the command, ready for use. Raises: RecordingError if it has none."""
    python = job_python(command, environment)
    folder = folder_of_package(python, "dftracer", environment)
    libraries = [] if folder is None else sorted(folder.glob("lib*/libdftracer_preload.so"))
    if not libraries:
        raise RecordingError(f"DFTracer is not installed beside the job's Python: {python} -m pip install dftracer")
    versions = sorted(libraries[0].parents[2].glob("dftracer-*.dist-info"))
    return Tracer(
        name=DFTRACER,
        program=libraries[0],
        origin=python,
        version=versions[0].name.removesuffix(".dist-info").removeprefix("dftracer-") if versions else "",
        variables={
            "DFTRACER_ENABLE": "1",
            "DFTRACER_INIT": "PRELOAD",
            "DFTRACER_INC_METADATA": "1",
            "DFTRACER_DATA_DIR": "all",
            "DFTRACER_LOG_FILE": f"{LOGS}/{OF_RANK}trace",
        },
        preload=(libraries[0],),
        patterns=("*.pfw", "*.pfw.gz"),
        note=_DFTRACER_NOTE,
    )


def without_tracer(name: str, environment: Mapping[str, str], command: Sequence[str], note: str) -> Tracer:
    """REQUESTS or MARKS: only what every recording has, the requests to object stores and the marks of the training."""
    patterns = (f"*{SUFFIX}",) if name == REQUESTS else ()
    python = Path(job_python(command, environment))
    return Tracer(name=name, program=python, origin="the job's Python", patterns=patterns, note=note)


def job_python(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The first Python in a command, else that of the script that it starts (torchrun), else this one."""
    for word in command:
        if Path(word).name.startswith("python") and (found := shutil.which(word, path=environment.get("PATH"))):
            return found
    script = shutil.which(command[0], path=environment.get("PATH")) if command else None
    if script is not None:
        with open(script, "rb") as file:
            first = file.readline(500).decode("utf-8", "replace").strip()
        words = first.removeprefix("#!").split()
        if first.startswith("#!") and words and Path(words[0]).name.startswith("python") and Path(words[0]).exists():
            return words[0]
    return sys.executable


def folder_of_package(python: str, package: str, environment: Mapping[str, str]) -> Path | None:
    """The folder of a package of that Python, None if it has none. Does not import the package."""
    find = "import importlib.util as u, sys; s = u.find_spec(sys.argv[1]); print(s.submodule_search_locations[0])"
    try:
        done = subprocess.run(
            [python, "-c", find, package], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = done.stdout.strip()
    return Path(found) if done.returncode == 0 and found else None
