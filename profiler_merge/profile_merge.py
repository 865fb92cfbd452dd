"""Profiles without a log or trace, to a capture: the training with its steps and waits, and no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from dxt_replay.profiler_merge.capture_info import MAX_RANKS, source_of
from dxt_replay.profiler_merge.clocks.alignment import AUTO
from dxt_replay.profiler_merge.clocks.anchors import anchor_rank
from dxt_replay.profiler_merge.clocks.profile_ranks import ProfilesByRank, own_number, rank_in_path
from dxt_replay.profiler_merge.given_files import GivenFiles
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.merge_options import MergeOptions
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.reading import profile_files, profile_kind, read_profile
from dxt_replay.profiler_merge.recognise import kind_of
from dxt_replay.profiler_merge.span_sources import MoreSpans, more_spans
from dxt_replay.profiler_merge.untraced.rebuilt import Rebuilt
from dxt_replay.traces.errors import AlignmentError, ProfileError, UsageError
from dxt_replay.traces.schema import FILES_SCHEMA, HDF5_SCHEMA, CaptureInfo, Job
from dxt_replay.traces.store.writer import write_capture_info, write_files, write_hdf5, write_spans
from dxt_replay.traces.text import listed
from dxt_replay.traces.unseen import NOTHING_RECORDED
from dxt_replay.traces.version import VERSION


def merge_profiles(given: GivenFiles, options: MergeOptions, output: Path) -> tuple[CaptureInfo, pa.Table, int]:
    """Write the capture's parts. Returns the contents of capture.json, the files table and the number of spans.

    The capture begins with the first event: when the job began, and how long it ran, is not in a profile.
    Raises: ProfileError for a profile that cannot be read, shows nothing, or is of no known rank; AlignmentError where
    one of several has no date; UsageError for an alignment, which needs a log.
    """
    if options.align != AUTO:
        raise UsageError(f"--align {options.align} places the clock of a log, and there is none: leave it out")
    by_rank, first_ns, dated = _ranks(given, options)
    nprocs = max(by_rank) + 1
    more = more_spans(given.spans, [()] * nprocs)
    spans = JobSpans(
        profiles=by_rank, start_ns=first_ns, ranks=nprocs, skip_damaged=options.skip_damaged, extend=False, more=more
    )
    warnings = list(more.warnings)
    for rank, files in sorted(by_rank.items()):
        warnings += spans.add(rank, read_profile(files, skip_damaged=options.skip_damaged))
    table, files_table = spans.table(), FILES_SCHEMA.empty_table()
    if not table.num_rows:
        raise ProfileError(f"{given.profiles[0]} shows no steps, compute or waits: there is nothing to merge")
    info = _info(by_rank, more, nprocs, first_ns if dated else 0, [_what_is_known(list(by_rank)), *warnings], options)
    write_files(output, files_table)
    write_spans(output, table)
    write_hdf5(output, HDF5_SCHEMA.empty_table())
    write_capture_info(output, info)
    return info, files_table, table.num_rows


def _ranks(given: GivenFiles, options: MergeOptions) -> tuple[dict[int, tuple[Path, ...]], int, bool]:
    """The files of the profile of each rank, the time of the first event of all, and whether that has a date."""
    groups = profile_files(given.profiles)
    found = ProfilesByRank()
    unnumbered: set[frozenset[int]] = set()
    begins, dated = [], True
    for files in groups:
        profile = read_profile(files, skip_damaged=options.skip_damaged)
        dated = profile.epoch_start_ns is not None
        if not dated and len(groups) + len(given.spans) > 1:
            raise AlignmentError(
                f"{files[0]} has no date, so its events cannot be put on one clock with those of the other profiles: "
                "merge it alone, or each with the Darshan logs"
            )
        number = own_number(profile)
        number = rank_in_path(files[0], MAX_RANKS) if number is None else number
        if number is None:
            unnumbered.add(_pids(profile))
        # Profiles that say no rank are of one process, where they say that, or of nobody knows which.
        several = len(unnumbered) > 1 or frozenset() in unnumbered or (unnumbered and number is not None)
        if len(groups) > 1 and several:
            raise ProfileError(f"no rank was found for the profile {files[0]}: name its folder rank0, rank1 ...")
        found.add(number or 0, files, profile)
        begins += [int(profile.start_ns.min())] if len(profile) else []
    return found.files, min(begins, default=0), dated


def _pids(profile: Profile) -> frozenset[int]:
    """The processes that a profile is of, as far as it says."""
    if profile.torch is not None:
        return profile.torch.pids
    named = anchor_rank(profile)
    return frozenset() if named is None or named[1] < 0 else frozenset((named[1],))


def _what_is_known(ranks: list[int]) -> str:
    clocks = " The clocks of the ranks are those of their profiles, and how far they differ is not known." * (
        len(ranks) > 1
    )
    return (
        f"made of profiles alone, of rank{'s' * (len(ranks) > 1)} {listed([str(rank) for rank in sorted(ranks)])}: no "
        "I/O was recorded. Whether the job had more ranks, when it began and how long it ran is not known." + clocks
    )


def _info(
    by_rank: Mapping[int, tuple[Path, ...]],
    more: MoreSpans,
    nprocs: int,
    zero_ns: int,
    warnings: list[str],
    options: MergeOptions,
) -> CaptureInfo:
    return CaptureInfo(
        job=Job(nprocs=nprocs, run_time_s=0.0, zero_ns=zero_ns),
        ranks=tuple(sorted(by_rank.keys() | more.meetings.keys())),
        sources=(
            *(source_of(path, profile_kind(path)) for _, files in sorted(by_rank.items()) for path in files),
            *(source_of(path, str(kind_of(path))) for path in more.files),
        ),
        coverage=NOTHING_RECORDED,
        warnings=tuple(warnings),
        made_by={
            "program": "dxt-replay",
            "version": VERSION,
            "command": "merge",
            "operations_stored": 0,
            "operations_reconstructed": 0,
            "rebuilt": Rebuilt().as_json(),
            **options.repeated(),
        },
    )
