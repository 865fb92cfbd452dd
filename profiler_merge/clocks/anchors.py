"""Anchors: instants that a tracer shows as writes, and a profile or marks as events; and the ranks that they name.

`recording` writes them into its files of marks. Releases up to 0.2 wrote them into files of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.marks import MARKS_FILE, ProcessMarks
from dxt_replay.profiler_merge.recording import ANNOTATION, HEADER_BYTES, RECORD

_OLD_FILE = re.compile(r"(?:.*/)?dxt-anchor\.(?P<host>.+)\.(?P<pid>\d+)\.bin", re.DOTALL)
_OLD_RECORD_BYTES = 64


def anchor_pid(path: bytes) -> int | None:
    """The process whose anchors are in a file of this recorded path; None for another file."""
    text = path.decode("utf-8", "replace")
    found = _OLD_FILE.fullmatch(text) or MARKS_FILE.fullmatch(text)
    return None if found is None else int(found["pid"])


def anchor_numbers(path: bytes, offset: np.ndarray, length: np.ndarray) -> np.ndarray:
    """int64: the number of the anchor that each write to such a file is, -1 for another write."""
    begin, size = (0, _OLD_RECORD_BYTES) if path.endswith(b".bin") else (HEADER_BYTES, RECORD.size)
    number, rest = np.divmod(offset - begin, size)
    found: np.ndarray = np.where((length == size) & (rest == 0) & (number >= 0), number, -1)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnchorMarks:
    """The anchor annotations of a profile in order of time (int64 columns); rank and pid are -1 if not given."""

    i: np.ndarray
    rank: np.ndarray
    pid: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray


def profile_anchors(profile: Profile) -> AnchorMarks:
    """The anchor annotations of a profile, from all of its threads."""
    if profile.marks is not None:
        return anchors_of(profile.marks.own)
    rows, numbers = profile.stat("i")
    is_anchor = profile.names_matching(ANNOTATION)[profile.name[rows]]
    rows, numbers = rows[is_anchor], numbers[is_anchor]
    order = np.argsort(profile.start_ns[rows], kind="stable")
    rows, numbers = rows[order], numbers[order]
    return AnchorMarks(
        i=numbers,
        rank=profile.stat_column("rank", missing=-1)[rows],
        pid=profile.stat_column("pid", missing=-1)[rows],
        start_ns=profile.start_ns[rows],
        end_ns=profile.end_ns[rows],
    )


def anchors_of(process: ProcessMarks) -> AnchorMarks:
    """The anchors in the marks of a process."""
    i, start_ns, end_ns, _ = process.anchors.T
    same = np.ones(len(i), dtype=np.int64)
    return AnchorMarks(i=i, rank=same * process.rank, pid=same * process.pid, start_ns=start_ns, end_ns=end_ns)


def anchor_rank(profile: Profile) -> tuple[int, int] | None:
    """(rank, pid) that the profile's anchors name; either is -1 if not given. None without anchors.

    Also None when the anchors contradict each other (two processes in one profile).
    """
    marks = profile_anchors(profile)
    pairs = set(zip(marks.rank.tolist(), marks.pid.tolist(), strict=True))
    return pairs.pop() if len(pairs) == 1 else None
