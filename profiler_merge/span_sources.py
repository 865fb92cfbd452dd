"""Spans from files that are not profiles: Horovod's timeline, and DFTracer's traces beside another recording."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.recognise import DFTRACER, HOROVOD, kind_of
from dxt_replay.traces.errors import ProfileError

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.tracers.traced_job import TracedJob


@dataclass(slots=True, kw_only=True)
class MoreSpans:
    """Spans of ranks in CLOCK_REALTIME.

    files: that they are from. loops: of a training loop, where a rank has no profile.
    meetings: collectives, beside what a profile has.
    """

    files: tuple[Path, ...] = ()
    loops: dict[int, SpanColumns] = field(default_factory=dict)
    meetings: dict[int, SpanColumns] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def more_spans(files: Sequence[Path], pids: Sequence[Collection[int]]) -> MoreSpans:
    """What these files hold. `pids`: process ids of each rank of the job, empty where they are not known.

    Raises: ProfileError for a file that cannot be used, or that is of more ranks than the job has.
    """
    found = MoreSpans(files=tuple(files))
    for path in (path for path in files if kind_of(path) == HOROVOD):
        from dxt_replay.profiler_merge.tracers.horovod_timeline import read_horovod

        meetings, warnings = read_horovod(path)
        if max(meetings) >= len(pids):
            raise ProfileError(
                f"{path} is a Horovod timeline of {max(meetings) + 1} ranks, and the job has {len(pids)}: give the "
                "timeline of this run, or leave it out"
            )
        if found.meetings:
            raise ProfileError(f"{path} is a second Horovod timeline: a run has one, which its rank 0 writes")
        found.meetings = meetings
        found.warnings += warnings
    traces = [path for path in files if kind_of(path) == DFTRACER]
    if traces:
        from dxt_replay.profiler_merge.tracers.dftracer.dftracer_job import read_dftracer

        _add_loops(found, read_dftracer(traces), pids)
    return found


def _add_loops(found: MoreSpans, job: TracedJob, pids: Sequence[Collection[int]]) -> None:
    if not job.spans:
        raise ProfileError(
            f"{job.files[0]} is a DFTracer trace without annotations of a training loop: give it as LOG for its "
            "operations, or annotate the program (pydftracer's `ai`)"
        )
    for rank, spans in job.spans.items():
        own = job.ranks[rank].own
        places = [place for place, known in enumerate(pids) if own.pid in known]
        if len(places) == 1:
            found.loops[places[0]] = spans
        elif len(pids) == job.nprocs and not any(pids):
            found.loops[rank] = spans
        else:
            found.warnings.append(f"no rank was found for the annotations of process {own.pid} in DFTracer's trace")
