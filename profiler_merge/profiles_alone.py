"""Profiles without a log or trace: the training with its steps and waits, but no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.clocks.alignment import AUTO
from dxt_replay.profiler_merge.clocks.profile_ranks import (
    ProfileRanks,
    ProfilesByRank,
    own_number,
    profile_pids,
    rank_in_path,
)
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.recorded_job import MAX_RANKS, Finished, MergeOptions, ProcessIds, RankRows
from dxt_replay.traces.errors import AlignmentError, ProfileError, UsageError
from dxt_replay.traces.schema import Job
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import format_counted
from dxt_replay.traces.unseen import NOTHING_RECORDED


class ProfilesAlone:
    """As `recorded_job.Recording`, for a job whose I/O was not recorded.

    beside: files with more spans, on the clock of the profiles.
    The capture begins with the first event: a profile does not hold the job's begin, duration and number of ranks.
    Raises: UsageError for an alignment, which needs a log.
    """

    def __init__(self, beside: Sequence[Path], options: MergeOptions) -> None:
        if options.align != AUTO:
            raise UsageError(f"--align {options.align} places the clock of a log, and there is none: leave it out")
        self._beside = beside
        self._by_rank: dict[int, tuple[Path, ...]] = {}
        self._dated = True
        self._ranks = 0
        self.files: Sequence[tuple[Path, str]] = ()
        self.ranks: Sequence[int] = ()
        self.start_ns = 0
        self.loops: Mapping[int, SpanColumns] = {}

    @property
    def job(self) -> Job:
        nprocs = max(len(self.process_ids()), self._ranks)
        return Job(nprocs=nprocs, run_time_s=0.0, zero_ns=self.start_ns if self._dated else 0)

    @property
    def warnings(self) -> list[str]:
        ranks = sorted(self._by_rank)
        of, rest = "", "Whether the job had more ranks, when it began and how long it ran is not known."
        if self._ranks:
            of, rest = f" of {self._ranks}", "When the job began and how long it ran is not known."
        if self._ranks > len(ranks):
            rest = f"The profiles of {format_counted(self._ranks - len(ranks), 'rank')} are missing. {rest}"
        if len(ranks) > 1:
            rest += " The clocks of the ranks are those of their profiles, and how far they differ is not known."
        names = f"rank{'s' * (len(ranks) > 1)} {listed([str(rank) for rank in ranks])}{of}"
        return [f"made of marks or profiles alone, of {names}: no I/O was recorded. {rest}"]

    def place(self, profiles: Sequence[tuple[Path, ...]]) -> ProfileRanks:
        """As of `Recording`. Raises: AlignmentError if one of several has no date; ProfileError if none is a rank's."""
        found = ProfilesByRank()
        unnumbered: list[frozenset[int]] = []
        begins = []
        for files in profiles:
            profile = read_profile(files)
            self._dated = profile.epoch_start_ns is not None
            if not self._dated and len(profiles) + len(self._beside) > 1:
                raise AlignmentError(
                    f"{files[0]} has no date, so its events cannot be put on one clock with those of the other "
                    "profiles: merge it alone, or each with the Darshan logs"
                )
            number = own_number(profile)
            number = rank_in_path(files[0], MAX_RANKS) if number is None else number
            pids = profile_pids(profile)
            # Profiles that say no rank are of one process, where they say that, or of nobody knows which; marks of
            # programs that trained one after the other are told apart by their times.
            if number is None and profile.marks is None and not any(pids & other for other in unnumbered):
                unnumbered.append(pids)
            several = len(unnumbered) > 1 or frozenset() in unnumbered or (unnumbered and number is not None)
            if len(profiles) > 1 and several:
                raise ProfileError(f"no rank was found for the profile {files[0]}: name its folder rank0, rank1 ...")
            found.add(number or 0, files, profile)
            if profile.torch is not None and (profile.torch.ranks or 0) <= MAX_RANKS:
                self._ranks = max(self._ranks, profile.torch.ranks or 0)
            if profile.marks is not None:
                begins.append(int(profile.marks.own.rows["t"].min(initial=np.iinfo(np.int64).max)))
            begins += [int(profile.start_ns.min())] if len(profile) else []
        if not found.files:
            raise ProfileError("the marks show no training loop: give those of all processes of the job, and its logs")
        self._by_rank, self.start_ns = found.files, min(begins, default=0)
        return ProfileRanks(by_rank=found.files, warnings=tuple(found.warnings))

    def process_ids(self) -> ProcessIds:
        return [()] * (max(self._by_rank) + 1)

    def rows(self, folder: Path, spans: JobSpans) -> Iterator[RankRows]:
        return iter(())

    def path(self, file_id: int) -> str:
        return ""

    def finish(self, stored: int, spans: pa.Table) -> Finished:
        if not spans.num_rows:
            raise ProfileError(
                f"{next(iter(self._by_rank.values()))[0]} shows no steps, compute or waits: there is nothing to merge"
            )
        return Finished(coverage=NOTHING_RECORDED)
