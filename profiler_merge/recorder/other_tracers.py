"""Tracers for a machine without Darshan: strace, which every distribution has, and DFTracer, which pip installs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dxt_replay.profiler_merge.recorder.job_python import folder_of_package, job_python
from dxt_replay.profiler_merge.recorder.tracer import DFTRACER, LOGS, MARKS, OF_RANK, REQUESTS, STRACE, Tracer
from dxt_replay.profiler_merge.request_hooks.log import SUFFIX
from dxt_replay.traces.errors import RecordingError

CALLS = (
    "read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2,open,openat,openat2,creat,close,lseek,dup,"
    "dup2,dup3,fcntl,fadvise64,mmap,msync,sendfile,copy_file_range,splice,fsync,fdatasync,sync_file_range,ftruncate,fallocate,"
    "rename,renameat,renameat2,unlink,unlinkat,stat,lstat,fstat,newfstatat,statx,mkdir,mkdirat,clone,clone3,fork,vfork,"
    "execve,exit_group,chdir,fchdir,io_submit,io_uring_enter,recvfrom,recvmsg"
)
"""System calls from which the operations of a job are rebuilt. A machine may lack some, so each is requested
with `?`."""

STRACE_NOTE = (
    "each traced call takes 0.05 to 0.13 ms longer, which small reads show in their times; io_uring is not traced"
)
DFTRACER_NOTE = (
    "each traced call takes about 0.02 ms longer; times are whole microseconds; offsets of a file that a process has "
    "open twice are not exact; memory-mapped reads and MPI-IO are not traced"
)
FLUSH_S = 10.0
_FIRST_WITH_SECCOMP = (5, 3)


def find_strace(environment: Mapping[str, str]) -> Tracer:
    """strace, tried on one small process. Raises: RecordingError when it is absent, or may not trace here."""
    program = shutil.which("strace", path=environment.get("PATH"))
    if program is None:
        raise RecordingError("strace is not installed: apt install strace, dnf install strace, or conda install strace")
    done = subprocess.run([program, "-V"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)\.(\d+)", done.stdout)
    version = (int(found.group(1)), int(found.group(2))) if found else (0, 0)
    options = ["-f", "-ttt", "-T", "-yy", "-s", "0", "-q", "-D", "-e", "signal=none"]
    options += ["--seccomp-bpf"] if version >= _FIRST_WITH_SECCOMP else []
    options += ["-e", "trace=" + ",".join(f"?{name}" for name in CALLS.split(","))]
    tried = subprocess.run(
        [program, *options, "-o", "/dev/null", "--", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise RecordingError(
            f"strace cannot trace here ({(tried.stderr.strip() or 'no message').splitlines()[-1]}): allow ptrace (in a "
            "container --cap-add=SYS_PTRACE), or record with Darshan or --with dftracer"
        )
    slow = (
        ""
        if version >= _FIRST_WITH_SECCOMP
        else "; all other system calls take as much longer, too: use strace 5.3 or newer"
    )
    return Tracer(
        name=STRACE,
        program=Path(program),
        origin="PATH",
        version=".".join(map(str, version)),
        prefix=f'{shlex.join([program, *options])} -o "{LOGS}/{OF_RANK}$(hostname).$$.strace" --',
        patterns=("*.strace",),
        note=STRACE_NOTE + slow,
    )


def find_dftracer(environment: Mapping[str, str], command: Sequence[str]) -> Tracer:
    """DFTracer in the Python of the command, ready for use. Raises: RecordingError if it has none."""
    python = job_python(command, environment)
    folder = folder_of_package(python, "dftracer", environment)
    for library in [] if folder is None else sorted(folder.glob("lib*/libdftracer_preload.so")):
        return _dftracer(library, python)
    raise RecordingError(f"DFTracer is not installed beside the job's Python: {python} -m pip install dftracer")


def _dftracer(library: Path, python: str) -> Tracer:
    versions = sorted(library.parents[2].glob("dftracer-*.dist-info"))
    return Tracer(
        name=DFTRACER,
        program=library,
        origin=python,
        version=versions[0].name.removesuffix(".dist-info").removeprefix("dftracer-") if versions else "",
        variables={
            "DFTRACER_ENABLE": "1",
            "DFTRACER_INIT": "PRELOAD",
            "DFTRACER_INC_METADATA": "1",
            "DFTRACER_DATA_DIR": "all",
            "DFTRACER_LOG_FILE": f"{LOGS}/{OF_RANK}trace",
        },
        preload=(library,),
        patterns=("*.pfw", "*.pfw.gz"),
        note=DFTRACER_NOTE,
    )


def requests_alone(environment: Mapping[str, str], command: Sequence[str]) -> Tracer:
    """No tracer: only the requests to object stores are recorded, which every recording has."""
    return Tracer(
        name=REQUESTS,
        program=Path(job_python(command, environment)),
        origin="the job's Python",
        patterns=(f"*{SUFFIX}",),
        note="only requests to object stores are recorded: no operation on files",
    )


def marks_alone(environment: Mapping[str, str], command: Sequence[str], why: str) -> Tracer:
    """No tracer: only the marks of the training, which every recording has."""
    return Tracer(
        name=MARKS, program=Path(job_python(command, environment)), origin="the job's Python", patterns=(), note=why
    )


def await_flush(logs: Sequence[Path], *, patience_s: float = FLUSH_S) -> None:
    """Wait until strace has written the end of each log; it outlives the traced process by a moment."""
    until = time.monotonic() + patience_s
    for log in logs:
        pid = log.name.removesuffix(".strace").rpartition(".")[2]
        end = re.compile(rf"^{pid} .*\+\+\+ (exited|killed)".encode(), re.MULTILINE)
        while not end.search(_tail(log)) and time.monotonic() < until:
            time.sleep(0.02)


def _tail(path: Path, size: int = 4096) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read()
