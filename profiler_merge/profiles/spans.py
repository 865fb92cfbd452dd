"""Makes spans from profile events: steps, input wait, compute, collectives, checkpoints, pipeline work. Pure.

One module per framework knows its names; both are used through this one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from dxt_replay.profiler_merge.profiles import tensorflow_spans, torch_spans
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.marks import marked_spans
from dxt_replay.profiler_merge.profiles.span_parts import CHECKPOINT, COMPUTE, INPUT_WAIT, OTHER, STEP, SpanColumns
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import GPU_COMPUTE, GPU_STEP, NO_STEP, TPU_COMPUTE
from dxt_replay.traces.steps import step_at

NEARLY_ALL = 0.95
"""Share of the steps in a profile from which its work stands for the whole loop."""

_WORK = ("compute", GPU_COMPUTE, TPU_COMPUTE)

__all__ = ["SpanColumns", "main_line", "profile_spans", "profiled_work"]


def main_line(profile: Profile) -> int:
    """Row of `profile.lines` of the training loop: the one with most step marks."""
    return (tensorflow_spans if profile.torch is None else torch_spans).main_line(profile)


def profile_spans(profile: Profile) -> SpanColumns:
    """All spans of one rank's profile. The framework's own module defines the kinds.

    Marks say what the loop did; a profile beside them adds what they do not see.
    If step numbers begin again in a later phase, they are continued.
    """
    if profile.marks is not None:
        marked = marked_spans(profile.marks)
        profiled = profile_spans(replace(profile, marks=None)) if len(profile) else None
        return _with_profile(marked, profiled) if profiled is not None and len(profiled) else marked
    if profile.phases:
        return reduce(_continued, map(profile_spans, profile.phases))
    return (tensorflow_spans if profile.torch is None else torch_spans).profile_spans(profile)


def _with_profile(marked: SpanColumns, profiled: SpanColumns) -> SpanColumns:
    """The spans of marks with a profile's collectives and work beside them.

    Work is compute if the profile shows nearly all steps. Else it is no share of the loop, and its spans are of the
    kind `other`."""
    begin, end = profiled.start_ns.min(), profiled.end_ns.max()
    step = np.flatnonzero(marked.kind == STEP)
    number = step_at(profiled.start_ns, marked.start_ns[step], marked.end_ns[step], marked.step[step])
    known = ~np.isin(profiled.kind, (STEP, INPUT_WAIT, CHECKPOINT))
    seen = (marked.start_ns[step] >= begin) & (marked.end_ns[step] <= end)
    if seen.mean() < NEARLY_ALL:
        profiled = replace(profiled, kind=np.where(profiled.kind == COMPUTE, np.int8(OTHER), profiled.kind))
    if ((profiled.kind == COMPUTE) & np.isin(profiled.names, _WORK[1:])).any():
        marked = _select(marked, marked.names != GPU_STEP)
    return _joined(marked, _select(replace(profiled, step=number), known))


def profiled_work(spans: SpanColumns) -> str | None:
    """A sentence on the work that a profile of some steps shows (`_with_profile`); None without one."""
    work = (spans.kind == OTHER) & np.isin(spans.names, _WORK)
    if not work.any():
        return None
    step = np.flatnonzero(spans.kind == STEP)
    begin, end = spans.start_ns[work].min(), spans.end_ns[work].max()
    whole = step[(spans.end_ns[step] > begin) & (spans.start_ns[step] < end)]
    if not len(whole):
        return None
    busy = Intervals.union_of(spans.start_ns[work], spans.end_ns[work])
    share = busy.covered_within(spans.start_ns[whole], spans.end_ns[whole]).sum()
    share = 100 * share / (spans.end_ns[whole] - spans.start_ns[whole]).sum()
    first, last = spans.step[whole].min(), spans.step[whole].max()
    return (
        f"the profile shows compute in {share:.1f} % of steps {first} to {last}; the marks of the other steps do not "
        "show it"
    )


def _select(spans: SpanColumns, chosen: np.ndarray) -> SpanColumns:
    columns = ("thread", "kind", "name", "step", "start_ns", "end_ns", "fetched_ns")
    return replace(spans, **{name: getattr(spans, name)[chosen] for name in columns})


def _continued(first: SpanColumns, later: SpanColumns) -> SpanColumns:
    """The spans of two phases, in the order of their start."""
    numbered = later.step != NO_STEP
    begins, reached = later.step[numbered].min(initial=np.iinfo(np.int32).max), first.step.max(initial=NO_STEP)
    shift = max(int(reached) + 1 - int(begins), 0)
    return _joined(first, replace(later, step=later.step + shift * numbered))


def _joined(first: SpanColumns, later: SpanColumns) -> SpanColumns:
    """The spans of both, in the order of their start."""
    moved = replace(later, name=later.name + len(first.vocabulary))
    columns = {
        name: np.concatenate((getattr(first, name), getattr(moved, name))).astype(getattr(first, name).dtype)
        for name in ("thread", "kind", "name", "step", "start_ns", "end_ns", "fetched_ns")
    }
    order = np.argsort(columns["start_ns"], kind="stable")
    return SpanColumns(
        vocabulary=(*first.vocabulary, *later.vocabulary), **{name: column[order] for name, column in columns.items()}
    )
