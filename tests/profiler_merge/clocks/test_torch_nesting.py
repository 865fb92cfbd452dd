"""Clocks of PyTorch jobs without anchors: reads of the training thread lie where it asks for batches."""

import gzip
import json

import numpy as np
import pytest

from dxt_replay.profiler_merge.clocks.alignment import align_rank
from dxt_replay.profiler_merge.clocks.nesting import align_nesting, nesting_events
from dxt_replay.profiler_merge.darshan.jobs import open_job
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.log_rows import read_log_rows
from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.traces.errors import AlignmentError
from tests import kineto_writer as kineto
from tests.kineto_writer import START_NS
from tests.places import recorded

MS = 1_000_000
NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def job(tmp_path, *, loader, seed=3, steps=60, offset_ns=-7_000_000):
    """A profile of steps of about 20 ms, and the reads in them on a clock that is `offset_ns` away."""
    random = np.random.default_rng(seed)
    events, starts, ends, now = [], [], [], 0
    for step in range(steps):
        begin = now
        now += 50_000
        for _ in range(5):
            starts.append(now)
            now += int(random.uniform(0.1, 0.5) * MS)
            ends.append(now)
            now += 20_000
        now += 30_000
        if loader:
            events.append(kineto.event(NEXT, begin, now, cat="user_annotation"))
        for _ in range(10):
            end = now + int(random.uniform(1.0, 2.0) * MS)
            events.append(kineto.event("aten::mm", now, end))
            now = end + 5_000
        events.append(kineto.mark(step, begin, now))
    path = kineto.write(tmp_path / "a.pt.trace.json", events)
    return read_profile([path]), np.array(starts) + START_NS - offset_ns, np.array(ends) + START_NS - offset_ns


@pytest.mark.parametrize("loader", [True, False])
def test_reads_of_the_training_thread_place_the_clock(tmp_path, loader):
    profile, start, end = job(tmp_path, loader=loader)
    (events,) = nesting_events(profile)
    assert (events.event_class, events.exclusive) == ("loader" if loader else "between operators", True)
    found = align_nesting(start, end, events.start_ns, events.end_ns, least=events.least)
    assert found.interval_ns[0] <= -7_000_000 <= found.interval_ns[1]
    assert found.residual_ns < 300_000
    assert found.evidence["share"] == 1.0


def test_reads_of_which_some_lie_elsewhere_do_not(tmp_path):
    profile, start, end = job(tmp_path, loader=True)
    (events,) = nesting_events(profile)
    others = start[::10] + 10 * MS
    with pytest.raises(AlignmentError, match="of the reads during the profile lie in an event"):
        align_nesting(
            np.append(start, others), np.append(end, others + 1000), events.start_ns, events.end_ns, least=events.least
        )


@pytest.mark.parametrize("name", ["torch_hdf5", "torch_eval", "torch_mmap/pread"])
def test_recorded_jobs_without_their_anchors_agree_with_the_anchors(tmp_path, name):
    folder = recorded(f"captures/{name}")
    logs = open_job(sorted((folder / "logs").glob("*.darshan")))
    profiles = find_profiles(folder / "profile")
    log = read_log_rows(logs.processes[0].log)
    for place, rank in enumerate(log.ranks.tolist()):
        rows, profile = log.of_rank(place), read_profile([profiles[rank]])
        truth, _ = align_rank(rows, log.clock, profile, "anchors", rank)
        bare = read_profile([without_anchors(profiles[rank], tmp_path)])
        found, notes = align_rank(rows, log.clock, bare, "auto", rank)
        assert (found.method, notes) == ("nesting", [])
        assert found.interval_ns[0] <= truth.offset_ns <= found.interval_ns[1]
        assert found.residual_ns < 200_000


def without_anchors(path, folder):
    with gzip.open(path) as file:
        trace = json.load(file)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if "dxt_anchor" not in event["name"]]
    made = folder / path.name
    made.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return made
