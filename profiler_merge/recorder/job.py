"""One job, run under a tracer: its logs in a folder of its own, and how it ended."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.profiler_merge.recorder import darshan, tracers
from dxt_replay.profiler_merge.recorder.darshan import Library
from dxt_replay.profiler_merge.recorder.launch_line import is_launched, with_prefix
from dxt_replay.profiler_merge.recorder.page_faults import collected_faults
from dxt_replay.profiler_merge.recorder.processes import Ended, adopted, run_in_foreground
from dxt_replay.profiler_merge.recorder.python_start import write_python_start
from dxt_replay.profiler_merge.recorder.tracers import DARSHAN, DFTRACER, MARKS, REQUESTS, STRACE, Tracer
from dxt_replay.profiler_merge.recorder.watch import Watch
from dxt_replay.profiler_merge.recording import RANK_VARIABLES
from dxt_replay.profiler_merge.request_hooks.log import SUFFIX
from dxt_replay.traces.errors import RecordingError, TargetError, UsageError
from dxt_replay.traces.output import (
    PAGE_FAULTS,
    RECORDING_MARK,
    UNSEEN,
    DirectoryKind,
    check_output,
    new_directory,
    refusal,
)
from dxt_replay.traces.text import listed, without_secrets
from dxt_replay.traces.workers import available_bytes

_LOGS, _PROFILES, _KILLED, _SCRIPT, _PYTHON = "logs", "profile", "killed", "job.sh", "python"
_NAMES = {
    *(RECORDING_MARK, _LOGS, _PROFILES, _KILLED, _SCRIPT, _PYTHON, UNSEEN, PAGE_FAULTS),
    *(darshan.CHECK, darshan.CONFIG, darshan.SMALL_CONFIG),
}
"""What may lie in the folder of a recording."""

_LEAST_STEP_NS = 1_000_000
"""Difference between two clocks that two successive readings never reach."""

_NO_IO = "steps and waits of the training are recorded, and no operation on files: nothing can be replayed from that"
_ONLY_REQUESTS = "only requests to object stores are recorded: no operation on files"
_FOR_MORE = (
    "Darshan's runtime was not found: `conda install -c conda-forge darshan-runtime` or `module load darshan-runtime` "
    "brings it, --library names it, and --with strace records the reads without it; `dxt-replay doctor` says what is "
    "here"
)
_HOW_TO_GET = """\
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
    if options.tracer == STRACE:
        return tracers.find_strace(environment)
    if options.tracer == DFTRACER:
        return tracers.find_dftracer(environment, command)
    if options.tracer in (REQUESTS, MARKS):
        note = _NO_IO if options.tracer == MARKS else _ONLY_REQUESTS
        return tracers.without_tracer(options.tracer, environment, command, note)
    if options.library is not None:
        if not options.library.is_file():
            raise RecordingError(f"{options.library} does not exist: --library names Darshan's libdarshan.so")
        return Library(path=options.library.absolute(), origin="--library")
    library = darshan.find_library(environment)
    if library is None and options.tracer == DARSHAN:
        raise RecordingError(f"Darshan's runtime library (libdarshan.so) was not found on this machine.\n{_HOW_TO_GET}")
    return library or tracers.without_tracer(MARKS, environment, command, f"{_NO_IO}. {_FOR_MORE}")


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
    logs, profiles = folder / _LOGS, folder / _PROFILES
    with _new_folder(folder, command, force=options.force):
        tracer = found
        if isinstance(tracer, Library):
            memory = options.dxt_mib or darshan.dxt_memory_mib(available_bytes())
            include = [str(Path(path).absolute()) for path in options.include]
            tracer = darshan.set_up(tracer, folder, command, dxt_mib=memory, include=include)
        write_python_start(folder / _PYTHON, tracer.data)
        script = tracers.write_script(
            folder / _SCRIPT,
            tracer,
            logs=logs,
            profiles=profiles,
            by_rank=is_launched(command),
            python=folder / _PYTHON,
        )
    words = with_prefix(command, [str(script)], lambda word: _is_program(word, environment))
    ahead_ns = _ahead_ns()
    watch = Watch()
    with collected_faults(folder / PAGE_FAULTS) as began, adopted() as family:
        clean = darshan.without_darshan(environment)
        ended = run_in_foreground(words, clean, mask, output=options.output, look=lambda: watch.look(family.members()))
        alive = family.wait(watch.look)
        moved = family.moved()
    warnings = [*_killed(folder, tracer.job), *_clock_was_set(_ahead_ns() - ahead_ns)]
    if alive:
        names = listed([f"{pid} ({program})" for pid, program in alive.items()])
        warnings.append(f"these processes of the job still run, and what they do is not in the capture: {names}")
    more: dict[str, object] = {}
    if tracer.name in (DARSHAN, DFTRACER):
        more = {"moved": moved, "began": darshan.to_account_for(began or watch.programs.items())}
    ends = [f"the job ended with status {ended.status}"] if ended.status else []
    with suppress(OSError):
        watch.write(folder / UNSEEN, {**more, "notes": [*ends, *warnings]})
    if tracer.name == STRACE:
        tracers.await_flush(tracers.find_below(logs, tracer.patterns))
    # A log without content is of a process that was killed: `began` accounts for it.
    written = [path for path in tracers.find_below(logs, tracer.patterns) if path.stat().st_size]
    if tracer.name != REQUESTS:  # each process with a client has a log: only those with a request or a connection
        written += [
            log for log in tracers.find_below(logs, (f"*{SUFFIX}",)) if re.search(rb"\n[RS]\t", log.read_bytes())
        ]
    return RecordedJob(ended=ended, tracer=tracer, logs=tuple(written), profiles=profiles, warnings=tuple(warnings))


def _is_program(word: str, environment: Mapping[str, str]) -> bool:
    return shutil.which(word, path=environment.get("PATH")) is not None


def _objection(path: Path) -> str | None:
    names = set(os.listdir(path))
    if RECORDING_MARK not in names or not names <= _NAMES:
        return "is not a recording that `dxt-replay record` wrote"
    return None


@contextmanager
def _new_folder(folder: Path, command: Sequence[str], *, force: bool) -> Iterator[None]:
    """Make the folder of a recording, with empty folders for logs and profiles, and prepare the job in the context.

    An earlier recording lies beside it meanwhile. If that fails, the folder is removed and the earlier one is restored.
    Raises: TargetError when something else is there, or a recording without `force`, or when the disk refuses.
    """
    kind = DirectoryKind(name="a recording", objection=_objection)
    check_output(folder, force=force, kind=kind)
    earlier = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.replaced")
    moved = made = False
    try:
        with suppress(FileNotFoundError):
            os.rename(folder, earlier)
            moved = True
            if (objection := _objection(earlier)) is not None:  # it appeared after the check
                raise TargetError(f"{folder} exists and {objection}: choose another name")
        with new_directory(folder, kind) as working:
            words = without_secrets("\n".join(command).replace(" ", "\0")).replace("\0", " ")  # each word whole
            (working / RECORDING_MARK).write_text(words + "\n", encoding="utf-8", errors="surrogateescape")
            for name in (_LOGS, _PROFILES):
                (working / name).mkdir()
        made = True
        yield
    except BaseException as error:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        if moved:
            with suppress(OSError):  # something else has the name now, so the earlier recording stays beside it
                os.rename(earlier, folder)
        if isinstance(error, OSError):
            raise refusal(error, folder) from error
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def _killed(folder: Path, job: int) -> list[str]:
    """Move the counters that killed processes of Darshan's job left in the temporary folder to the logs, and remove the
    empty folders there; returns what is missing."""
    if not job:
        return []
    programs = Counter[str]()
    for path in sorted(Path(tempfile.gettempdir()).glob(f"*_id{job}_mmap-log-*.darshan")):
        programs[path.name.rpartition(f"_id{job}_")[0].partition("_")[2]] += 1
        if not path.stat().st_size:  # ended before Darshan noted anything: it has no log, as `began` then shows
            path.unlink()
            continue
        (folder / _LOGS / _KILLED).mkdir(exist_ok=True)
        shutil.move(path, folder / _LOGS / _KILLED / path.name)
    for parent, _, _ in os.walk(folder / _LOGS, topdown=False):
        if parent != str(folder / _LOGS) and not os.listdir(parent):
            os.rmdir(parent)
    warnings = []
    if programs:
        names = listed([name + f" ({count} processes)" * (count > 1) for name, count in programs.items()])
        warnings.append(
            f"{names} ended by a signal before Darshan wrote a trace: that I/O is rebuilt from counters. Stop the job "
            "by Ctrl-C or `kill -INT`, or record --with strace"
        )
    if tracers.find_below(folder / _LOGS, ("*.darshan_partial",)):
        warnings.append("a process ended while Darshan wrote its log: its I/O is not in the capture")
    return warnings


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
