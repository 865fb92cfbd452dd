"""The anchors of a profile, and the ranks that they name. An application sets them with `profiler_merge.anchor`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.anchor import ANNOTATION
from dxt_replay.profiler_merge.profiles.event_table import Profile


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


def anchor_rank(profile: Profile) -> tuple[int, int] | None:
    """(rank, pid) that the profile's anchors name; either is -1 if not given. None without anchors.

    Also None when the anchors contradict each other (two processes in one profile).
    """
    marks = profile_anchors(profile)
    pairs = set(zip(marks.rank.tolist(), marks.pid.tolist(), strict=True))
    return pairs.pop() if len(pairs) == 1 else None
