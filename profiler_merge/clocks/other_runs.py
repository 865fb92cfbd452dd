"""Evidence that a profile and a log belong to different runs: the process of its anchors, the time, the host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from dxt_replay.profiler_merge.clocks.anchors import anchor_pid, profile_anchors
from dxt_replay.profiler_merge.darshan.job_logs import JobLogs
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import NS_PER_S

_SLACK_NS = 60 * NS_PER_S
"""Tolerance: the clocks of hosts may differ, and old logs have whole seconds."""

_MOST_SHOWN = 4
_ADDRESS = re.compile(r"localhost|[\d.:]+|.*:\d+")
"""Host names in a profile that do not identify the host: a request from another host may have named it so."""


def refuse_other_run(path: Path, contradictions: Iterable[str]) -> None:
    """Raises: ProfileError if evidence shows that the profile `path` belongs to another run."""
    found = list(contradictions)
    if found:
        raise ProfileError(
            f"{path} is the profile of another run: {'; '.join(found)}. Give the profile of this run, or leave "
            "--profile out"
        )


def contradictions(profile: Profile, job: JobLogs, hosts: frozenset[str], offset_ns: int) -> list[str]:
    """Facts of a profile that contradict this job; empty if its anchors are in the job's logs.

    `hosts`: all hosts of the job as Darshan recorded them, empty where they are not known. `offset_ns`: the offset that
    the user adds to the log's times.
    """
    pids = {pid for pid in profile_anchors(profile).pid.tolist() if pid > 0}
    logged = _anchor_processes(job)
    if pids & logged:
        return []
    times = (job.start_ns + offset_ns, job.end_ns + offset_ns) if job.start_ns > 0 else (0, 0)
    return [*_process(profile, job, pids, logged), *time_contradiction(profile, *times), *_host(profile, hosts)]


def _anchor_processes(job: JobLogs) -> set[int]:
    """Process ids in the names of the anchor files that the logs know."""
    paths = (path for process in job.processes for path in process.log.names.values())
    return {pid for pid in map(anchor_pid, paths) if pid is not None}


def _process(profile: Profile, job: JobLogs, pids: set[int], logged: set[int]) -> Iterator[str]:
    if pids and logged:
        yield f"its anchors are of process {_shown(pids)}, those in the log of {_shown(logged)}"
    ranks = set(profile_anchors(profile).rank.tolist())
    if ranks and min(ranks) >= job.nprocs > 0:
        yield f"its anchors are of rank {_shown(ranks)}, and the job has {job.nprocs} ranks"


def time_contradiction(profile: Profile, job_start: int, ended: int) -> Iterator[str]:
    """The sentence for a profile whose time does not match a job between these times; 0 for an unknown start."""
    if profile.epoch_start_ns is None or job_start <= 0 or not len(profile):
        return
    start, end = int(profile.start_ns.min()), int(profile.end_ns.max())
    # A killed process has no end time.
    job_end = ended if ended >= job_start else None
    if end < job_start - _SLACK_NS or (job_end is not None and start > job_end + _SLACK_NS):
        until = "" if job_end is None else f" to {_clock(job_end)}"
        yield f"it was recorded from {_clock(start)} to {_clock(end)}, and the job ran from {_clock(job_start)}{until}"


def _host(profile: Profile, hosts: frozenset[str]) -> Iterator[str]:
    mine = [host for host in profile.hostnames if host and not _ADDRESS.fullmatch(host)]
    if mine and hosts and not {_short(host) for host in mine} & {_short(host) for host in hosts}:
        yield f"it is of host {mine[0]}, and the job ran on {_shown(hosts)}"


def _short(host: str) -> str:
    return host.lower().partition(".")[0]


def _shown(values: Iterable[int | str]) -> str:
    return listed(sorted(map(str, values)), _MOST_SHOWN)


def _clock(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns / NS_PER_S, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
