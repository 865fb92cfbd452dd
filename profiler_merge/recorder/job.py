"""One job, run under a tracer: its logs in a folder of its own, and how it ended."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dxt_replay.profiler_merge.recorder import recording_folder as places
from dxt_replay.profiler_merge.recorder.darshan_library import Library, find_library
from dxt_replay.profiler_merge.recorder.darshan_settings import dxt_memory_mib, to_account_for
from dxt_replay.profiler_merge.recorder.darshan_tracer import set_up, without_darshan
from dxt_replay.profiler_merge.recorder.foreground import Ended, run_in_foreground
from dxt_replay.profiler_merge.recorder.job_script import script_text
from dxt_replay.profiler_merge.recorder.launch_line import is_launched, with_prefix
from dxt_replay.profiler_merge.recorder.other_tracers import (
    await_flush,
    find_dftracer,
    find_strace,
    marks_alone,
    requests_alone,
)
from dxt_replay.profiler_merge.recorder.page_faults import collected_faults
from dxt_replay.profiler_merge.recorder.processes import adopted
from dxt_replay.profiler_merge.recorder.python_start import write_python_start
from dxt_replay.profiler_merge.recorder.tracer import DARSHAN, DFTRACER, MARKS, REQUESTS, STRACE, Tracer
from dxt_replay.profiler_merge.recorder.watch import Watch
from dxt_replay.profiler_merge.recording import RANK_VARIABLES
from dxt_replay.profiler_merge.request_hooks.log import SUFFIX
from dxt_replay.traces.errors import RecordingError, UsageError
from dxt_replay.traces.memory import available_bytes
from dxt_replay.traces.recorder_files import PAGE_FAULTS, UNSEEN
from dxt_replay.traces.text import listed

_LEAST_STEP_NS = 1_000_000
"""Difference between two clocks that two successive readings never reach."""

NO_IO = "steps and waits of the training are recorded, and no operation on files: nothing can be replayed from that"

FOR_MORE = (
    "Darshan's runtime was not found: `conda install -c conda-forge darshan-runtime` or `module load darshan-runtime` "
    "brings it, and --with strace records the reads without it; `dxt-replay doctor` says what is here"
)

HOW_TO_GET = """\
Install Darshan's runtime, without root:   conda install -c conda-forge darshan-runtime
  or:                                      spack install darshan-runtime
  or, on many clusters:                    module load darshan-runtime (then this command again)
  or name the library:                     --library /path/to/libdarshan.so
Record with strace (slower calls):         apt install strace, then --with strace
Record with DFTracer (coarser times):      pip install dftracer, then --with dftracer
Record requests to object stores alone:    --with requests, which needs nothing
See what there is here:                    dxt-replay doctor"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of recording a job.

    folder: new folder for logs and profiles.
    tracer: one of TRACERS; None for Darshan, or marks where it is missing.
    library: Darshan's runtime library; None to look for it.
    dxt_mib: memory of a process for its trace, in MiB; None for a share of the free memory.
    include: folders to trace although Darshan leaves them out by default, such as /opt/data.
    force: replace an earlier recording.
    output: descriptor for the job's standard output; None for this process's own.
    """

    folder: Path
    tracer: str | None = None
    library: Path | None = None
    dxt_mib: int | None = None
    include: tuple[str, ...] = ()
    force: bool = False
    output: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """The result of a job's run.

    ended: its exit status and the signals that came. tracer: the recorder.
    logs: the tracer's files, sorted.
    profiles: the folder for profiles. warnings: missing data, one sentence each.
    """

    ended: Ended
    tracer: Tracer
    logs: tuple[Path, ...]
    profiles: Path
    warnings: tuple[str, ...]


def find_tracer(
    command: Sequence[str], options: JobOptions, environment: Mapping[str, str] = os.environ
) -> Library | Tracer:
    """The tracer for a command: Darshan's library, or one of the others, ready for use; marks where Darshan is missing.

    Raises: RecordingError when there is none; UsageError for a command that cannot be recorded.
    """
    check_command(command, environment)
    if options.tracer == STRACE:
        return find_strace(environment)
    if options.tracer == DFTRACER:
        return find_dftracer(environment, command)
    if options.tracer == REQUESTS:
        return requests_alone(environment, command)
    if options.tracer == MARKS:
        return marks_alone(environment, command, NO_IO)
    library = _library(options, environment)
    if library is None and options.tracer == DARSHAN:
        raise RecordingError(f"Darshan's runtime library (libdarshan.so) was not found on this machine.\n{HOW_TO_GET}")
    return library or marks_alone(environment, command, f"{NO_IO}. {FOR_MORE}")


def record_job(
    command: Sequence[str],
    found: Library | Tracer,
    options: JobOptions,
    mask: set[int],
    environment: Mapping[str, str] = os.environ,
) -> RecordedJob:
    """Run a command under a tracer, with this process's input, output and signals, until it ends.

    `mask`: as for `run_in_foreground`. Raises: RecordingError when Darshan does not work here; UsageError for a
    command that cannot be started; TargetError for the folder.
    """
    folder = options.folder.absolute()
    with places.new_folder(folder, command, force=options.force):
        tracer, script, job = _prepared(found, folder, command, options)
    words = with_prefix(command, [str(script)], lambda word: _is_program(word, environment))
    ahead_ns = _ahead_ns()
    watch = Watch()
    with collected_faults(folder / PAGE_FAULTS) as began, adopted() as family:
        ended = run_in_foreground(
            words, without_darshan(environment), mask, output=options.output, look=lambda: watch.look(family.members())
        )
        alive = family.wait(watch.look)
        moved = family.moved()
    processes = {"moved": moved, "began": to_account_for(began or watch.programs.items())}
    recorded = _collect(folder, tracer, ended, job)
    warnings = [*recorded.warnings, *_clock_was_set(_ahead_ns() - ahead_ns), *_outlived(alive)]
    ends = [f"the job ended with status {ended.status}"] if ended.status else []
    with suppress(OSError):
        watch.write(
            folder / UNSEEN,
            {**(processes if tracer.name in (DARSHAN, DFTRACER) else {}), "notes": [*ends, *warnings]},
        )
    return replace(recorded, warnings=tuple(warnings))


def _outlived(alive: Mapping[int, str]) -> list[str]:
    """A warning about processes that `record` did not wait for any longer."""
    if not alive:
        return []
    names = listed([f"{pid} ({program})" for pid, program in alive.items()])
    return [f"these processes of the job still run, and what they do is not in the capture: {names}"]


def _prepared(
    found: Library | Tracer, folder: Path, command: Sequence[str], options: JobOptions
) -> tuple[Tracer, Path, int]:
    """The tracer, the script that starts a program under it, and Darshan's job id, 0 for another tracer."""
    job, dated = 0, False
    data: tuple[str, ...] = ()
    by_rank = is_launched(command)
    logs, profiles = folder / places.LOGS, folder / places.PROFILES
    if isinstance(found, Library):
        memory = options.dxt_mib or dxt_memory_mib(available_bytes())
        include = [str(Path(path).absolute()) for path in options.include]
        darshan = set_up(found, folder, command, dxt_mib=memory, include=include)
        tracer, job, dated, data = darshan.tracer, darshan.job, darshan.dated, darshan.data
        if dated and not by_rank:
            places.make_dated(logs)
    else:
        tracer = found
    write_python_start(folder / places.PYTHON, data)
    text = script_text(
        tracer,
        logs=logs,
        profiles=profiles,
        by_rank=by_rank,
        dated=dated,
        python=folder / places.PYTHON,
    )
    return tracer, places.write_script(folder / places.SCRIPT, text), job


def _ahead_ns() -> int:
    """Difference of the clock that tracers read and the one that nobody can set, ns; both are slewed equally."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _clock_was_set(by_ns: int) -> list[str]:
    """A warning if a clock was set during a job."""
    if abs(by_ns) < _LEAST_STEP_NS:
        return []
    from dxt_replay.traces.units import format_duration  # imported here because it starts threads

    how = f"{'forward' if by_ns > 0 else 'back'} by {format_duration(abs(by_ns))}"
    return [
        f"the clock of this machine was set {how} while the job ran: times after that moment are wrong by as much. "
        "Record again"
    ]


def check_command(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises: UsageError for an empty command, or in a process that a launcher started as one of several ranks."""
    if not command:
        raise UsageError("no command to record: give it after --, as in `dxt-replay record -- python train.py`")
    if not _is_program(command[0], environment):
        raise UsageError(f"{command[0]} was not found: give the command as you would type it, after --")
    size = next((environment[name] for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if environment.get(name)), "1")
    if size != "1" and any(environment.get(name) for name in RANK_VARIABLES):
        raise UsageError(
            f"this is one of {size} processes of an MPI launcher, and each would record: put record in front, as in "
            f"`dxt-replay record -- mpiexec -n {size} {' '.join(command)}`"
        )


def _library(options: JobOptions, environment: Mapping[str, str]) -> Library | None:
    if options.library is not None:
        if not options.library.is_file():
            raise RecordingError(f"{options.library} does not exist: --library names Darshan's libdarshan.so")
        return Library(path=options.library.absolute(), origin="--library")
    return find_library(environment)


def _collect(folder: Path, tracer: Tracer, ended: Ended, job: int) -> RecordedJob:
    place = folder / places.LOGS
    warnings = []
    if tracer.name == STRACE:
        await_flush(places.find_below(place, tracer.patterns))
    if tracer.name == DARSHAN:
        places.remove_empty(place)
        killed = places.collect_killed(folder, job, Path(tempfile.gettempdir()))
        if killed:
            warnings.append(
                f"{_counted(killed)} ended by a signal before Darshan wrote a trace: that I/O is rebuilt from "
                "counters. Stop the job by Ctrl-C or `kill -INT`, or record --with strace"
            )
        if places.find_below(place, ("*.darshan_partial",)):
            warnings.append("a process ended while Darshan wrote its log: its I/O is not in the capture")
    # One without content is of a process that was killed: `began` accounts for it.
    logs = [path for path in places.find_below(place, tracer.patterns) if path.stat().st_size]
    requests = [] if tracer.name == REQUESTS else places.find_below(place, (f"*{SUFFIX}",))
    return RecordedJob(
        ended=ended,
        tracer=tracer,
        logs=(*logs, *(path for path in requests if _says_something(path))),
        profiles=folder / places.PROFILES,
        warnings=tuple(warnings),
    )


def _counted(programs: Sequence[str]) -> str:
    """The processes by their programs: "python (2), dd"."""
    found = Counter(programs)
    return listed([f"{program} ({count} processes)" if count > 1 else program for program, count in found.items()])


def _says_something(log: Path) -> bool:
    """Whether a log of requests has a request or a connection: each process with a client has a log."""
    content = log.read_bytes()
    return b"\nR\t" in content or b"\nS\t" in content


def _is_program(word: str, environment: Mapping[str, str]) -> bool:
    return shutil.which(word, path=environment.get("PATH")) is not None
