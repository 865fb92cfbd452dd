"""Finds the rank of each profile by process ids, which traces of system calls hold for all ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from dxt_replay.profiler_merge.clocks.anchors import anchor_rank
from dxt_replay.profiler_merge.clocks.other_runs import refuse_other_run, time_contradiction
from dxt_replay.profiler_merge.clocks.profile_ranks import ProfileRanks, ProfilesByRank, rank_in_path
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.reading import read_profile


def profiles_of_processes(
    profiles: Sequence[tuple[Path, ...]],
    pids: Sequence[Collection[int]],
    times_ns: tuple[int, int],
) -> ProfileRanks:
    """Give each profile its rank, by process id, torch.distributed's rank or path. `pids`: of each rank's processes.

    `times_ns`: CLOCK_REALTIME of the trace's first and last instant. A profile that no rule places is left out, with a
    warning.
    Raises: ProfileError when a profile cannot be read, is of another time, or several are of the same rank.
    """
    by_rank = ProfilesByRank()
    warnings = []
    exports: set[str] = set()
    for files in profiles:
        profile = read_profile(files)
        refuse_other_run(files[0], time_contradiction(profile, *times_ns))
        if profile.torch is not None:
            exports.update((*profile.torch.exports, *(path.name for path in files)))
        rank = 0 if len(pids) == len(profiles) == 1 else _rank_of(files[0], profile, pids)
        if rank is None:
            warnings.append(
                f"no rank was found for the profile {files[0]}: it is left out; name its folder rank0, rank1 ..."
            )
        else:
            by_rank.add(rank, files, profile)
    return ProfileRanks(by_rank=by_rank.files, warnings=tuple(warnings), exports=tuple(sorted(exports)))


def _rank_of(path: Path, profile: Profile, pids: Sequence[Collection[int]]) -> int | None:
    known = set() if profile.torch is None else set(profile.torch.pids)
    anchored = anchor_rank(profile)
    known |= {anchored[1]} if anchored else set()
    found = [rank for rank, own in enumerate(pids) if known & set(own)]
    if len(found) == 1:
        return found[0]
    rank = None if profile.torch is None else profile.torch.rank
    if rank is None:
        rank = rank_in_path(path, len(pids))
    return rank if rank is not None and rank < len(pids) else None
