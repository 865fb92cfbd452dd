"""Which files the recording itself wrote, not the application: anchors, profiles, Darshan's logs."""

from __future__ import annotations

import re

RECORDING_MARK = "recording.txt"
"""Marks a folder as written by `dxt-replay record`, and holds its command: the logs there belong to one job. Nothing
replaces a folder without it."""

UNSEEN = "unseen.json"
"""File beside it: what the job read through mapped files and sockets, which no trace holds."""

_WRITTEN_BY_RECORDERS = re.compile(
    r"(?:.*/)?dxt-anchor\..+\.bin|.*/plugins/profile/.*|.*\.profile-empty"
    r"|.+\.xplane\.pb|.+\.input_pipeline\.pb|.+\.trace\.json(?:\.gz)?|.+\.darshan(?:_partial)?",
    re.DOTALL,
)


def is_recorder_file(path: str) -> bool:
    """Whether a recorded path is one of dxt-replay's anchors, a profiler's output or a Darshan log."""
    return _WRITTEN_BY_RECORDERS.fullmatch(path) is not None
