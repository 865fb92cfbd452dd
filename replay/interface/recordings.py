"""Records and merges a job in one call."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.interface.merging import merge_found, several
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.making import RecordChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import DxtReplayError, ProfileError, RecordingError
from dxt_replay.traces.plain import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.profiler_merge.merge import MergeResult
    from dxt_replay.profiler_merge.recorder.job import RecordedJob

_CLOCK_STEP_S = 2.0
"""Coarsest time of a file, of FAT; times of Lustre and NFS are of a server's clock."""

_ENOUGH = 0.99995
"""Least trace coverage that is called complete."""

_COSTLY = 0.02
"""Share of a run that processes may spend in writing their logs, before it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(Result):
    """Result of `record`.

    capture: the capture; None if the merge failed, and `problem` says why.
    output: the path given for the capture.
    folder: the recording: the tracer's logs, the profiles, and the script that started each process.
    profiles: the folders and files that the profiles were merged from.
    old_profiles: given folders in which this job wrote no profile.
    merged: the result of the merge.
    """

    capture: Path | None
    output: Path
    folder: Path
    job: RecordedJob
    profiles: tuple[Path, ...]
    old_profiles: tuple[Path, ...]
    merged: MergeResult | None
    problem: str | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Missing parts of the recording, each with its remedy."""
        return (*self.job.warnings, *_coverage_warnings(self), *_cost_warnings(self))

    @property
    def next_words(self) -> list[str]:
        """The next command after `dxt-replay`: a look at the capture, or the merge that failed."""
        if self.capture is not None:
            return ["summary", str(self.capture)]
        given = [word for profile in self.profiles for word in ("--profile", str(profile))]
        return ["merge", *_as_typed(self), *given, "-o", str(self.output)]

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay record --json` prints."""
        tracer = self.job.tracer
        return {
            "capture": None if self.capture is None else str(self.capture),
            "exit_status": self.job.ended.status,
            "signals": list(self.job.ended.signals),
            "tracer": {
                "name": tracer.name,
                "program": str(tracer.program),
                "found_in": tracer.origin,
                "version": tracer.version,
                "note": tracer.note,
            },
            "folder": str(self.folder),
            "logs": len(self.job.logs),
            "profiles": [str(profile) for profile in self.profiles],
            "merge": None if self.merged is None else self.merged.as_json(),
            "problem": self.problem,
            "warnings": list(self.warnings),
            "next": shlex.join(["dxt-replay", *self.next_words]),
        }


@takes(RecordChoices)
def record(
    command: Sequence[str],
    output: PathLike = "run.capture",
    *,
    force: bool = False,
    stdout: int | None = None,
    **choices: Unpack[RecordChoices],
) -> Recorded:
    """Run a command under Darshan, and merge its logs, and the profiles that it wrote, into the capture `output`.

        recorded = dxt_replay.record(["python", "train.py"], "run.capture")

    `logs` is by default beside the output (`run.recording`). `profiles`: folders into which the job writes profiles
    without `recording()`. `stdout`: descriptor for the command's output. If the command fails, the result says so.
    Raises: RecordingError if no tracer works; UsageError for the command; TargetError for existing outputs.
    """
    from dxt_replay.profiler_merge.recorder.job import JobOptions, find_tracer, record_job
    from dxt_replay.profiler_merge.recorder.processes import signals_held

    chosen = filled(RecordChoices, choices)
    logs, library, profiles = chosen["logs"], chosen["library"], chosen["profiles"]
    capture = Path(output)
    folder = Path(logs) if logs is not None else capture.with_name(f"{capture.stem}.recording")
    options = JobOptions(
        folder=folder,
        tracer=chosen["tracer"],
        library=None if library is None else Path(library),
        dxt_mib=chosen["memory_mib"],
        include=tuple(map(str, chosen["include"])),
        force=force,
        output=stdout,
    )
    found = find_tracer(list(command), options)
    began_s = time.time()
    with signals_held() as mask:
        from dxt_replay.traces.store.writer import check_capture_output  # here: it starts threads

        check_capture_output(capture, force=force)
        job = record_job(list(command), found, options, mask)
    return _merged(capture, folder, job, several(profiles), began_s, include=options.include, force=force)


def _merged(
    capture: Path,
    folder: Path,
    job: RecordedJob,
    given: Sequence[Path],
    began_s: float,
    *,
    include: Sequence[str],
    force: bool,
) -> Recorded:
    """Merge the recording of a job that has run. A failure becomes the `problem` of the result."""
    from dxt_replay.profiler_merge.given_files import find_profiles
    from dxt_replay.profiler_merge.recorded_job import MergeOptions

    new = {place: _written_since(place, began_s) for place in given}
    profiles = [file for files in new.values() for file in files]
    profiles += [job.profiles] if find_profiles(job.profiles) else []
    merged, problem = None, None
    try:
        if not job.logs and not (job.tracer.name == "marks" and profiles):
            raise RecordingError(_no_log(job))
        kept = tuple(f"{folder.rstrip('/')}/*" for folder in include)
        merged = merge_found(job.logs, profiles, capture, MergeOptions(include=kept, force=force))
    except DxtReplayError as error:
        problem = str(error)
    return Recorded(
        capture=None if merged is None else capture,
        output=capture,
        folder=folder,
        job=job,
        profiles=tuple(profiles),
        old_profiles=tuple(place for place, files in new.items() if not files),
        merged=merged,
        problem=problem,
    )


def _written_since(place: Path, began_s: float) -> list[Path]:
    """The profiles below a folder that were written after a time; earlier ones belong to other runs."""
    from dxt_replay.profiler_merge.given_files import find_profiles

    try:
        return [file for file in find_profiles(place) if file.stat().st_mtime >= began_s - _CLOCK_STEP_S]
    except ProfileError:
        return []


def _as_typed(recorded: Recorded) -> list[str]:
    """The logs of a job as words of a command: their folder if it holds no others."""
    folder = recorded.folder / "logs"
    logs = recorded.job.logs
    return [str(folder)] if not logs or logs[0].is_relative_to(folder.absolute()) else [str(log) for log in logs]


def _no_log(job: RecordedJob) -> str:
    """Possible reasons why a job left no log."""
    from dxt_replay.profiler_merge.recorder.tracers import MARKS, REQUESTS

    if job.ended.status > 128:
        return (
            f"the job was ended by signal {job.ended.status - 128} and left no log: Darshan writes it when a process "
            "ends by itself or a Python program by Ctrl-C. Stop the job with `kill -INT`"
        )
    if job.tracer.name == MARKS:
        return (
            "the job left no marks: `record` sees the loaders and optimizers of PyTorch, Keras, tf.data and grain. Put "
            "`with dxt_replay.recording() as r:` around the training loop and `with r.step():` around each step"
        )
    if job.tracer.name == REQUESTS:
        return (
            "no request of the job was seen: `record` sees those of boto3, aiobotocore and s3fs. Let the job use one "
            "of these, or files, and record those without `--with requests`"
        )
    return (
        "the job left no log: a program that is linked statically, or that clears its environment, cannot be traced by "
        "a preloaded library. Record with --with strace"
    )


def _coverage_warnings(recorded: Recorded) -> list[str]:
    """Remedies for an incomplete trace and for a recording without steps."""
    merged = recorded.merged
    if merged is None:
        return []
    warnings = []
    known = [share for share in merged.info.coverage.traceable if share is not None]
    if known and min(known) < _ENOUGH and not recorded.job.warnings and not merged.info.coverage.unseen:
        warnings.append(
            f"only {min(known):.1%} of the job's I/O is in the trace: record again with more memory for it, such as "
            "--memory 1024 (MiB for each process)"
        )
    warnings += [f"{place} holds no profile that this job wrote" for place in recorded.old_profiles]
    status = recorded.job.ended.status
    if not recorded.profiles and status:
        warnings.append(
            f"no loop was seen, so the capture has neither steps nor compute: the job ended with status {status}"
        )
    elif not recorded.profiles:
        warnings.append(
            "no loop was seen, so the capture has neither steps nor compute: `record` sees those over loaders of "
            "PyTorch, Keras, tf.data and grain. Put `with dxt_replay.recording() as r:` around another loop and "
            "`with r.step():` around each step, or give --profile"
        )
    return warnings


def _cost_warnings(recorded: Recorded) -> list[str]:
    """Time in which processes that ended before the job wrote their logs, if it is a notable share of the run."""
    import numpy as np

    from dxt_replay.traces.measures.intervals import Intervals
    from dxt_replay.traces.units import format_duration, ns_to_seconds

    if recorded.merged is None:
        return []
    info = recorded.merged.info
    written = np.array(info.made_by.get("log_writing", []), dtype=np.int64).reshape(-1, 3)
    spent_ns = Intervals.union_of(written[:, 1], written[:, 2]).length_ns
    if ns_to_seconds(spent_ns) <= _COSTLY * info.job.run_time_s:
        return []
    return [
        f"Darshan took {format_duration(spent_ns)} to write the logs of {len(written)} processes that ended before the "
        "job. If training waited for that, `run --pace steps` and `simulate` leave the wait out. `record --memory 32` "
        "shortens it, and holds up to 800,000 operations of each process"
    ]
