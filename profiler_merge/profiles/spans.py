"""Profile events to spans: steps, input wait, compute, collectives, checkpoints, pipeline work. Pure.

One module per framework knows its names; both are used through this one.
"""

from __future__ import annotations

from profiler_merge.profiles import tensorflow_spans, torch_spans
from profiler_merge.profiles.event_table import Profile
from profiler_merge.profiles.span_parts import SpanColumns

__all__ = ["SpanColumns", "main_line", "profile_spans"]


def main_line(profile: Profile) -> int:
    """Row of `profile.lines` that runs the training loop: the one with most marks of steps."""
    return (tensorflow_spans if profile.torch is None else torch_spans).main_line(profile)


def profile_spans(profile: Profile) -> SpanColumns:
    """All spans of one rank's profile. What the kinds hold: see the framework's own module."""
    return (tensorflow_spans if profile.torch is None else torch_spans).profile_spans(profile)
