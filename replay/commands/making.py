"""Makes captures: `record` of a job, `merge` of recordings, `generate` from a description."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.captures import path_maps, several
from dxt_replay.replay.commands.face import Argument, Force, Option, PathLike, PathMaps, command, output, public
from dxt_replay.traces.errors import DxtReplayError, ProfileError, RecordingError, UsageError
from dxt_replay.traces.plain import Result

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.merge import MergeResult
    from dxt_replay.profiler_merge.recorded_job import MergeOptions
    from dxt_replay.profiler_merge.recorder.job import RecordedJob
    from dxt_replay.replay.jobs import MergedJobs
    from dxt_replay.traces.workers import Work
    from dxt_replay.workloads.description import Note, Workload
    from dxt_replay.workloads.generate.generation import Generated
    from dxt_replay.workloads.source import ListedWorkload

TRACERS = ("darshan", "strace", "dftracer", "requests", "marks")
"""Those of `profiler_merge.recorder.tracers`."""

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


@public
def record(
    command: Annotated[Sequence[str], Argument("-- COMMAND...", text=True)],
    output: Annotated[PathLike, output("OUT.capture", "The capture to write.")] = "run.capture",
    *,
    logs: Annotated[
        PathLike | None, Option("New folder for logs and profiles.  [default: OUT.recording]", "DIR")
    ] = None,
    tracer: Annotated[
        str | None,
        Option(
            "The tracer; marks see steps and no I/O.  [default: darshan, marks where it is missing]",
            flags="--with",
            choices=TRACERS,
        ),
    ] = None,
    library: Annotated[PathLike | None, Option("Darshan's libdarshan.so if it is not found.", "FILE")] = None,
    profiles: Annotated[
        PathLike | Sequence[PathLike], Option("Folder of the job's own profiles; repeatable.", "DIR", flags="--profile")
    ] = (),
    memory_mib: Annotated[
        int | None,
        Option(
            "Of Darshan's trace in each process: 64 MiB hold 1.6 million operations.  [default: 32 to 256]",
            "MIB",
            flags="--memory",
            name="memory",
            least=1,
            most=1900,
        ),
    ] = None,
    include: Annotated[
        Sequence[PathLike],
        Option("Trace files below DIR too, such as /opt, which Darshan leaves out; repeatable.", "DIR"),
    ] = (),
    force: Force = False,
    stdout: int | None = None,
) -> Recorded:
    """Record the I/O and the training steps of a job, and merge both into a capture.

    Put `dxt-replay record --` before your command, as in `dxt-replay record -- python train.py`. Behind mpiexec,
    mpirun, srun, aprun, jsrun or `flux run` only the ranks and their worker processes are traced. For another launcher
    write {} before the program of the ranks. The job keeps its input, output, signals and exit status. Results go to
    stderr. After Ctrl-C the recording up to then is merged.

    In Python:

        recorded = dxt_replay.record(["python", "train.py"], "run.capture")

    `stdout`: descriptor for the command's output. If the command fails, the result says so.
    Raises: RecordingError if no tracer works; UsageError for the command; TargetError for existing outputs.
    """
    from dxt_replay.profiler_merge.recorder.job import JobOptions, find_tracer, record_job
    from dxt_replay.profiler_merge.recorder.processes import signals_held

    capture = Path(output)
    folder = Path(logs) if logs is not None else capture.with_name(f"{capture.stem}.recording")
    options = JobOptions(
        folder=folder,
        tracer=tracer,
        library=None if library is None else Path(library),
        dxt_mib=memory_mib,
        include=tuple(map(str, include)),
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


@command(
    name="record", like=record, context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False}
)
def _record(**given: Any) -> int:
    try:
        recorded = record(stdout=2 if session.current().as_json else None, **given)
    except KeyboardInterrupt:  # outside the job: while its logs were merged, or before it started
        click.echo("dxt-replay: interrupted: what was recorded stays, and `dxt-replay merge` merges it", err=True)
        raise
    if session.current().as_json:
        session.print_json(recorded.as_json())
    _report(recorded)
    failed = DxtReplayError.exit_status if recorded.problem is not None else 0
    return recorded.job.ended.status or failed


def _report(recorded: Recorded) -> None:
    """Print the result and the next command on stderr: standard output is the job's."""
    from dxt_replay.replay.show.notebook import sections_of
    from dxt_replay.replay.show.section import prose
    from dxt_replay.replay.show.terminal import print_sections

    if signal.SIGINT in recorded.job.ended.signals and recorded.capture is not None:
        click.echo("dxt-replay: the job was interrupted: the capture holds what it did until it ended", err=True)
    if recorded.problem is not None:
        click.echo(f"dxt-replay: error: {recorded.problem}", err=True)
    if session.current().as_json:
        return
    for text in recorded.warnings:
        session.warn(text)
    if not session.current().quiet:
        with contextlib.redirect_stdout(sys.stderr):
            costs = [] if recorded.capture is None else [prose("What storage costs", _first_lines(recorded.capture))]
            print_sections([*sections_of(recorded), *costs])
            session.print_next(*recorded.next_words)


def _first_lines(capture: Path) -> list[str]:
    """The first lines of `summary`; what is wrong where there are none."""
    from dxt_replay.replay.commands.captures import open_capture
    from dxt_replay.replay.commands.looking import limit_of, summary
    from dxt_replay.replay.show.summary import headline

    try:
        opened = open_capture(capture)
        return headline(summary(opened), limit_of(opened, curve=False))
    except DxtReplayError as error:
        return [str(error)]


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
        merged = _merge_found(job.logs, profiles, capture, MergeOptions(include=kept, force=force))
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


# ---------------------------------------------------------------------------------------------- merge
Exclude = Annotated[Sequence[str], Option("Leave out these files; repeatable.", "GLOB")]
Reconstruct = Annotated[bool, Option("Rebuild no untraced operations from counters.", name="no_reconstruct")]


@public
def merge(
    logs: Annotated[PathLike | Sequence[PathLike], Argument("LOG...")],
    output: Annotated[PathLike, output("OUT.capture", "The capture to write.")],
    *,
    profiles: Annotated[
        PathLike | Sequence[PathLike],
        Option("Profiles of TensorFlow, JAX or PyTorch, or their folder; repeatable.", "DIR", flags="--profile"),
    ] = (),
    align: Annotated[
        str, Option("auto, anchors, nesting, wall, or seconds to add to the log's times.", "HOW")
    ] = "auto",
    exclude: Exclude = (),
    reconstruct: Reconstruct = True,
    inspect: Annotated[bool, Option("Store the chunks of the recorded HDF5 files.")] = False,
    maps: Annotated[
        PathMaps | None, Option("With --inspect: files below PREFIX are in DIR.", "PREFIX=DIR", flags="--map")
    ] = None,
    force: Force = False,
) -> MergeResult:
    """Merge Darshan logs with DXT, or other traces, and profiles, into a capture.

    LOG is the log of an MPI job. For a job without MPI, give the logs of all its processes or a folder with them, such
    as the run.recording of `record` with the profiles in it. Files of DFTracer or of `strace -f -ttt -T -y` can replace
    the logs. Profiles alone make a capture without I/O. The kind of each file is recognised by its content.

    In Python:

        merged = dxt_replay.merge("logs", "run.capture", profiles="profile")

    `profiles`: `.xplane.pb` of TensorFlow and JAX, `.pt.trace.json` of PyTorch, or folders with them.
    Raises: LogError, ProfileError, AlignmentError for sources that cannot be used; TargetError for `output`.
    """
    from dxt_replay.profiler_merge.recorded_job import MergeOptions

    if maps and not inspect:
        raise UsageError("--map (maps) says where --inspect (inspect) looks: give --inspect too, or leave --map out")
    options = MergeOptions(
        align=align,
        exclude=tuple(exclude),
        reconstruct=reconstruct,
        inspect=inspect,
        inspect_maps=tuple((b"/" + b"/".join(rule.prefix), rule.directory) for rule in path_maps(maps)),
        force=force,
    )
    with session.status("merging"):
        return _merge_found(several(logs), several(profiles), Path(output), options)


def _merge_found(logs: Sequence[Path], profiles: Sequence[Path], output: Path, options: MergeOptions) -> MergeResult:
    from dxt_replay.profiler_merge.given_files import find_profiles, find_recordings, foreign
    from dxt_replay.profiler_merge.merge import merge as merge_sources
    from dxt_replay.profiler_merge.recorder.job import RECORDING_MARK
    from dxt_replay.profiler_merge.sources import PROFILES as OF_PROFILERS
    from dxt_replay.profiler_merge.sources import SPANS

    found = []
    for place in profiles:
        found += (files := find_profiles(place))
        if not files:  # no capture silently lacks its profile
            missing = (
                f"{place} holds neither an .xplane.pb nor a .pt.trace.json profile: did the profiler run, and was it "
                "stopped?"
            )
            raise ProfileError(foreign(place, *OF_PROFILERS, *SPANS) or missing)
    recordings = []
    for path in logs:
        recordings += find_recordings(path)
        if not profiles and (path / RECORDING_MARK).exists():  # what `record` left: the profiles lie beside the logs
            found += find_profiles(path / "profile")
    return merge_sources(recordings, found, output, options)


@command(
    name="merge",
    like=merge,
    tidy=True,
    following=lambda result, given: ("summary", given["output"]),
    fails=lambda result, given: given["each"] and result.counts["failed"] > 0,
)
def _merge(
    *,
    each: Annotated[bool, Option("Merge each job of many logs, into folder OUT.")] = False,
    executor: Work = None,
    **given: Any,
) -> MergeResult | MergedJobs:
    if not each:
        if words := session.given_options(("workers", "dask")):
            session.warn(f"one process merges a job: {words[0]} shares the jobs of --each alone")
        return merge(**given)
    if words := session.given_options(("profiles", "align", "inspect", "maps")):
        raise UsageError(f"{words[0]} speaks of one job: leave --each out, or merge that job by itself")
    from dxt_replay.replay.jobs import merge_each

    of_many = {key: given[key] for key in ("logs", "output", "exclude", "reconstruct", "force")}
    with session.progress(session.of_things("merged", "jobs")) as on_job:
        return merge_each(**of_many, executor=executor, on_job=on_job)


# ------------------------------------------------------------------------------------------- generate
@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedCapture(Result):
    """Result of `generate`. notes: parts of the description that the capture does not follow, with the reason."""

    capture: Path
    workload: Workload
    notes: tuple[Note, ...]
    generated: Generated

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay generate --json` prints."""
        return {
            "capture": str(self.capture),
            "workload": self.workload.source.name,
            "reading": "main and v3.0",
            "overrides": list(self.workload.source.overrides),
            **self.generated.as_json(),
            "notes": [asdict(note) for note in self.notes],
        }


@public
def generate(
    workload: PathLike,
    ranks: int,
    output: PathLike,
    *,
    overrides: Annotated[Sequence[str] | Mapping[str, Any], Argument("[KEY=VALUE]...", text=True)] = (),
    device: Annotated[
        str | None,
        Option("Storage that the times assume, or null.  [default: latency=100us,bandwidth=1GB/s]", "DEVICE"),
    ] = None,
    seed: Annotated[int, Option("Seed of the random times that DLIO draws without a seed.", least=0)] = 0,
    workers: int | None = None,
    executor: Work = None,
    force: Force = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> GeneratedCapture:
    """Generate the I/O of a workload as a capture, from a description instead of a recording.

    WORKLOAD is a YAML file of DLIO, a folder with the .hydra/config.yaml of one of its runs, or a shipped workload.
    KEY=VALUE replaces a key of it, such as reader.batch_size=4 or 'train.computation_time={mean:0.5,stdev:0.1}'.

    In Python:

        dxt_replay.generate("unet3d_h100", 8, "unet3d.capture", overrides={"dataset.num_files_train": 64})

    `overrides`: keys that replace those of the file. `workers` processes or an `executor` share the work; the capture
    does not depend on them. `on_progress` gets ranks done, and all. `workloads` lists the shipped ones.
    Raises: UsageError for a description that is not one, or contradicts itself; TargetError for `output`.
    """
    from dxt_replay.traces.workers import Workers, workers_of
    from dxt_replay.workloads.generate.clock import DEFAULT_DEVICE
    from dxt_replay.workloads.generate.generation import generate as write_capture
    from dxt_replay.workloads.source import override_text, read_workload
    from dxt_replay.workloads.values import check_ranks

    if isinstance(overrides, Mapping):
        overrides = [override_text(key, value) for key, value in overrides.items()]
    found = read_workload(Path(workload), tuple(overrides))
    check_ranks(found.workload, ranks)
    with (
        Workers(workers or 1) if executor is None else nullcontext(workers_of(executor)) as shared,
        session.progress(session.of_things("generating", "ranks"), on_progress) as progress,
    ):
        generated = write_capture(
            found.workload,
            ranks,
            Path(output),
            seed=seed,
            device=device or DEFAULT_DEVICE,
            workers=shared,
            force=force,
            on_progress=progress,
            notes=[note.line for note in found.notes if note.kind != "not I/O"],
        )
    return GeneratedCapture(capture=Path(output), workload=found.workload, notes=found.notes, generated=generated)


@command(
    name="generate",
    like=generate,
    tidy=True,
    following=lambda result, given: ("stage", given["output"], "--target", "twin"),
)
def _generate(
    workload: Annotated[PathLike | None, Argument("WORKLOAD", text=True)] = None,
    *,
    listed: Annotated[bool, Option("Print the shipped workloads, and generate nothing.", flags="--list")] = False,
    ranks: Annotated[int | None, Option("Ranks of the job, one for each accelerator.", least=1)] = None,
    output: Annotated[PathLike | None, output("OUT.capture", "The capture to write.")] = None,
    executor: Work = None,
    **given: Any,
) -> GeneratedCapture | int:
    if listed:
        from dxt_replay.replay.show.make import listing_section

        if session.current().as_json:
            session.print_json({"workloads": [asdict(each) for each in workloads()]})
        else:
            session.print_answer([listing_section(workloads())])
        return 0
    if workload is None or ranks is None or output is None:
        missing = "WORKLOAD" if workload is None else "--ranks" if ranks is None else "-o OUT.capture"
        text = f"{missing} is missing; dxt-replay generate --list prints the shipped workloads"
        raise click.UsageError(text, click.get_current_context())
    return generate(workload, ranks, output, executor=executor, **given)


def workloads() -> tuple[ListedWorkload, ...]:
    """The shipped workloads of DLIO and MLPerf Storage, and the eight applications of the DLIO paper.

    Each has a name, a title, files, bytes, the compute time of a step, and the bytes per second that a rank needs.

        [listed.name for listed in dxt_replay.workloads() if listed.bytes < 10**9]
    """
    from dxt_replay.workloads.source import shipped_workloads

    return shipped_workloads()
