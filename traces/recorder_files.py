"""Which files the recording itself wrote, not the application: anchors, profiles, Darshan's logs."""

from __future__ import annotations

import re

RECORDING_MARK = "recording.txt"
"""Marks a folder as written by `dxt-replay record`, and holds its command: the logs there belong to one job. Nothing
replaces a folder without it."""

PAGE_FAULTS = "page_faults.bin"
"""File beside it: the page faults of the job on mapped files, if the kernel allowed to collect them."""

UNSEEN = "unseen.json"
"""File beside it: what the job read through mapped files and sockets, which no trace holds."""

_WRITTEN_BY_RECORDERS = re.compile(
    r"(?:.*/)?dxt-anchor\..+\.bin|.*/plugins/profile/.*|.*\.profile-empty"
    r"|.+\.xplane\.pb|.+\.input_pipeline\.pb|.+\.trace\.json(?:\.gz)?|.+\.darshan(?:_partial)?|.+[./]\d+\.\d+\.(?:requests|marks|not_data)",
    re.DOTALL,
)


_REQUEST_LOG = re.compile(r".*\.\d+\.\d+\.requests", re.DOTALL)


def is_request_log(path: str) -> bool:
    """Whether it is a log in which `record` has a process of the job note its requests to object stores."""
    return _REQUEST_LOG.fullmatch(path) is not None


def is_recorder_file(path: str) -> bool:
    """Whether a recorded path is one of dxt-replay's anchors, a profiler's output or a Darshan log."""
    return _WRITTEN_BY_RECORDERS.fullmatch(path) is not None
