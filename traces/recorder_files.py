"""Which files the recording itself wrote (anchors, profiles, Darshan's logs), and not the application."""

from __future__ import annotations

import re

RECORDING_MARK = "recording.txt"
"""Stands in the folder of what `dxt-replay record` recorded, and names the command: its logs are of one job. A folder
without it is not a recording, and is never replaced."""

UNSEEN = "unseen.json"
"""Beside it: what the job read through mapped files and sockets, which no trace holds."""

_WRITTEN_BY_RECORDERS = re.compile(
    r"(?:.*/)?dxt-anchor\..+\.bin|.*/plugins/profile/.*|.*\.profile-empty"
    r"|.+\.xplane\.pb|.+\.input_pipeline\.pb|.+\.trace\.json(?:\.gz)?|.+\.darshan(?:_partial)?",
    re.DOTALL,
)


def is_recorder_file(path: str) -> bool:
    """Whether a recorded path is of the anchors of dxt-replay, of a profiler's output or of a Darshan log."""
    return _WRITTEN_BY_RECORDERS.fullmatch(path) is not None
