"""Which files the recording itself wrote (anchors, profiles, Darshan's logs), and not the application."""

from __future__ import annotations

import re

_WRITTEN_BY_RECORDERS = re.compile(
    r"(?:.*/)?dxt-anchor\..+\.bin|.*/plugins/profile/.*|.*\.profile-empty"
    r"|.+\.xplane\.pb|.+\.input_pipeline\.pb|.+\.trace\.json(?:\.gz)?|.+\.darshan(?:_partial)?",
    re.DOTALL,
)


def is_recorder_file(path: str) -> bool:
    """Whether a recorded path is of the anchors of dxt-replay, of a profiler's output or of a Darshan log."""
    return _WRITTEN_BY_RECORDERS.fullmatch(path) is not None
