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
from dxt_replay.profiler_merge.profiles.span_parts import (
    CHECKPOINT,
    COMPUTE,
    INPUT_WAIT,
    OTHER,
    STEP,
    SpanColumns,
    covered,
)
from dxt_replay.traces.row_order import step_at
from dxt_replay.traces.schema import GPU_COMPUTE, GPU_STEP, NO_STEP, TPU_COMPUTE

NEARLY_ALL = 0.95
"""Share of the steps in a profile from which its work stands for the whole loop."""

_WORK = ("compute", GPU_COMPUTE, TPU_COMPUTE)


def main_line(profile: Profile) -> int:
    """Row of `profile.lines` of the training loop: the one with most step marks."""
    return (tensorflow_spans if profile.torch is None else torch_spans).main_line(profile)


def profile_spans(profile: Profile) -> SpanColumns:
    """All spans of one rank's profile. The framework's own module defines the kinds.

    Marks say what the loop did; a profile beside them adds what they do not see: collectives and work. Work is compute
    if the profile shows nearly all steps, else it is no share of the loop, and its spans are of the kind `other`.
    If step numbers begin again in a later phase, they are continued.
    """
    if profile.marks is None and profile.phases:
        return reduce(_continued, map(profile_spans, profile.phases))
    if profile.marks is None:
        return (tensorflow_spans if profile.torch is None else torch_spans).profile_spans(profile)
    marked = marked_spans(profile.marks)
    profiled = profile_spans(replace(profile, marks=None)) if len(profile) else marked[:0]
    if not len(profiled):
        return marked
    steps = marked[marked.kind == STEP]
    seen = (steps.start_ns >= profiled.start_ns.min()) & (steps.end_ns <= profiled.end_ns.max())
    profiled = profiled[~np.isin(profiled.kind, (STEP, INPUT_WAIT, CHECKPOINT))]
    profiled.step = step_at(profiled.start_ns, steps.start_ns, steps.end_ns, steps.step)
    if seen.mean() < NEARLY_ALL:
        profiled.kind[profiled.kind == COMPUTE] = OTHER
    if ((profiled.kind == COMPUTE) & np.isin(profiled.name, _WORK[1:])).any():
        marked = marked[marked.name != GPU_STEP]
    return _joined(marked, profiled)


def profiled_work(spans: SpanColumns) -> str | None:
    """A sentence on the work that a profile of some steps shows beside marks; None without one."""
    work = spans[(spans.kind == OTHER) & np.isin(spans.name, _WORK)]
    if not len(work):
        return None
    steps = spans[spans.kind == STEP]
    steps = steps[(steps.end_ns > work.start_ns.min()) & (steps.start_ns < work.end_ns.max())]
    if not len(steps):
        return None
    share = covered(work).covered_within(steps.start_ns, steps.end_ns).sum()
    share = 100 * share / (steps.end_ns - steps.start_ns).sum()
    return (
        f"the profile shows compute in {share:.1f} % of steps {steps.step.min()} to {steps.step.max()}; the marks of "
        "the other steps do not show it"
    )


def _continued(first: SpanColumns, later: SpanColumns) -> SpanColumns:
    """The spans of two phases, in the order of their start."""
    numbered = later.step != NO_STEP
    begins, reached = later.step[numbered].min(initial=np.iinfo(np.int32).max), first.step.max(initial=NO_STEP)
    later.step[numbered] += max(int(reached) + 1 - int(begins), 0)
    return _joined(first, later)


def _joined(first: SpanColumns, later: SpanColumns) -> SpanColumns:
    found = np.concatenate((first, later)).view(np.recarray)
    return found[np.argsort(found.start_ns, kind="stable")]
