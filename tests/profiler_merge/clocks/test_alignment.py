"""Clocks of logs beside profiles, and the rank of each profile: made ones, and recorded ones held against anchors."""

import gzip
import json

import numpy as np
import pytest

from dxt_replay.profiler_merge.clocks.alignment import (
    EXCLUSIVE,
    align_rank,
    align_worker,
    nesting_events,
    parse_method,
)
from dxt_replay.profiler_merge.clocks.offsets import align_nesting
from dxt_replay.profiler_merge.clocks.profile_ranks import map_profiles
from dxt_replay.profiler_merge.darshan.jobs import open_job
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.profiler_merge.rank_rows import read_log_rows
from dxt_replay.traces.errors import AlignmentError, ProfileError
from dxt_replay.traces.schema import READ
from tests import kineto_writer as kineto
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, write_dxt_log
from tests.places import CAPTURES, recorded
from tests.xplane_writer import START_NS, Event, Line, profile

MS, BATCH = 1_000_000, 16
START_S = START_NS // 10**9
READS_AT_S = {rank: np.sort(np.random.default_rng(rank).uniform(1, 7, 25)) for rank in (0, 1)}
DELTA_NS = 7_000_000


def reads(rank):
    return [(4096 * i, 4096, at, at + 0.0005) for i, at in enumerate(READS_AT_S[rank])]


def job_log(folder, *, anchors=False):
    """Two ranks with 25 reads each, and their anchors in files of their own, as DXT and POSIX have them."""
    records, names = [], {1: b"/data/a.tfrecord"}
    for rank in (0, 1):
        records.append(DxtRecord(record_id=1, rank=rank, reads=reads(rank), hostname=b"node1"))
        if anchors:
            pid = 500 + rank
            names[pid] = b"/run/dxt-anchor.node.%d.bin" % pid
            writes = [(64 * i, 64, 0.5 + i, 0.500002 + i) for i in range(3)]
            records.append(DxtRecord(record_id=pid, rank=rank, writes=writes, hostname=b"node1"))
    extra = {}
    if anchors:
        rows = [{"record_id": 500 + rank, "rank": rank, "POSIX_WRITES": 3} for rank in (0, 1)]
        extra["POSIX"] = ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])
    path = write_dxt_log(
        folder / "job.darshan",
        records,
        dxt_version=1,
        names=names,
        job=JobSpec(nprocs=2, start_s=START_S, start_ns=0, end_s=START_S + 10, end_ns=0),
        extra_modules=extra,
    )
    return open_job([path])


def profile_file(path, *, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(profile(lines))
    return path


def step_line(*events, id=77):
    steps = tuple(
        Event(name="train", start_ns=10**9 * k, duration_ns=9 * 10**8, stats={"step_num": k}) for k in range(8)
    )
    return Line(id=id, name="python", events=tuple(sorted((*steps, *events), key=lambda e: e.start_ns)))


def reading_line(rank, id=5):
    """Events that hold the rank's reads, as the profile's clock shows them."""
    events = tuple(
        Event(name="Iterator::Root::TFRecord", start_ns=int(at * 1e9) - DELTA_NS - 1000, duration_ns=502_000)
        for at in READS_AT_S[rank]
    )
    return Line(id=id, name="tf_data_iterator_resource/5", events=events)


def anchor_marks(rank, pid):
    return [
        Event(
            name="dxt_anchor", start_ns=int((0.5 + i) * 1e9) - DELTA_NS, duration_ns=4000,
            stats={"i": i, "rank": rank, "pid": pid},
        )
        for i in range(3)
    ]  # fmt: skip


def test_the_anchor_file_of_the_pid_decides(tmp_path):
    job = job_log(tmp_path, anchors=True)
    # The rank in the annotation is wrong and the path says 0: the pid's file was written by rank 1.
    path = profile_file(tmp_path / "rank0/vm.xplane.pb", lines=[step_line(*anchor_marks(0, 501))])
    assert map_profiles([(path,)], job).by_rank == {1: (path,)}


def test_the_path_decides_when_nothing_else_does(tmp_path):
    job = job_log(tmp_path)
    path = profile_file(tmp_path / "rank_1/plugins/vm.xplane.pb", lines=[step_line()])
    assert map_profiles([(path,)], job).by_rank == {1: (path,)}


def test_a_profile_that_no_rule_places_is_named(tmp_path):
    path = profile_file(tmp_path / "somewhere/vm.xplane.pb", lines=[step_line()])
    mapped = map_profiles([(path,)], job_log(tmp_path))
    assert mapped.by_rank == {}
    assert str(path) in mapped.warnings[0]


def test_two_profiles_of_one_rank_are_refused(tmp_path):
    paths = [profile_file(tmp_path / run / "rank1/vm.xplane.pb", lines=[step_line()]) for run in ("a", "b")]
    with pytest.raises(ProfileError, match="both of rank 1"):
        map_profiles([(path,) for path in paths], job_log(tmp_path))


def first_rank(job):
    found = read_log_rows(job.first)
    return found.of_rank(0), found.clock


@pytest.mark.parametrize(("method", "used"), [("auto", "anchors"), ("nesting", "nesting"), ("wall", "wall")])
def test_each_method_finds_the_offset_it_can(tmp_path, method, used):
    job = job_log(tmp_path, anchors=True)
    path = profile_file(tmp_path / "p/vm.xplane.pb", lines=[step_line(*anchor_marks(0, 500)), reading_line(0)])
    alignment, notes = align_rank(*first_rank(job), read_profile([path]), parse_method(method), 0)
    assert alignment.method == used
    assert not notes
    low, high = alignment.interval_ns
    assert low <= -DELTA_NS <= high


def test_auto_says_why_it_fell_back_to_the_wall_clock(tmp_path):
    path = profile_file(tmp_path / "p/vm.xplane.pb", lines=[step_line()])
    job = job_log(tmp_path)
    alignment, notes = align_rank(*first_rank(job), read_profile([path]), "auto", 0)
    assert alignment.method == "wall"
    assert "anchor" in notes[0]
    with pytest.raises(AlignmentError, match="rank 0"):
        align_rank(*first_rank(job), read_profile([path]), "anchors", 0)


@pytest.mark.parametrize(
    ("events", "classes"),
    [
        # Operations of the pipeline, by class; the loop's own count where no pipeline reads.
        ({"tf_data_x/5": ["Iterator::Root::FlatMap[0]::TFRecord", "Iterator::Root::FlatMap[0]", "ReadFile:ReadFile",
                          "p/PyFunc:PyFunc", "Iterator::TextLine"], "python": ["train", "next_batch"]}, [2, 1, 1]),
        ({"python": ["train", "next_batch", "EagerLocalExecute: MergeV2Checkpoints"], "x": ["next_batch"]}, [1, 1]),
        ({"python": ["x"]}, []),
    ],
)  # fmt: skip
def test_classes_of_events_that_can_hold_reads(tmp_path, events, classes):
    lines = [
        Line(id=number, name=name, events=tuple(
            Event(name=each, start_ns=at, duration_ns=1, stats={"step_num": 0} if each == "train" else {})
            for at, each in enumerate(names)
        ))
        for number, (name, names) in enumerate(events.items(), 1)
    ]  # fmt: skip
    found = nesting_events(read_profile([profile_file(tmp_path / "a.xplane.pb", lines=lines)]))
    assert [len(start) for _, start, _ in found] == classes
    assert {line for lines, _, _ in found for line in lines.tolist()} <= {1}


def _by_name(*names):
    folders = [CAPTURES / name for name in names] if names else sorted(CAPTURES.glob("*"))
    found = [pytest.param(path, id=path.name) for path in folders if (path / "job.darshan").exists()]
    return found or [pytest.param(None, marks=pytest.mark.skip(reason="no captures beside the checkout"))]


@pytest.mark.parametrize("folder", _by_name())
def test_nesting_is_right_or_refuses_on_real_captures(folder):
    """Nine applications, most of which read in the training thread: an answer must hold the anchors'."""
    log = read_log_rows(open_job([folder / "job.darshan"]).first)
    for place, rank in enumerate(log.ranks.tolist()):
        rows = log.of_rank(place)
        made = read_profile(find_profiles(folder / "profile" / f"rank{rank}"))
        truth, _ = align_rank(rows, log.clock, made, "anchors", rank)
        low, high = truth.interval_ns
        assert 0 < high - low <= 5_000
        assert -61 * MS < truth.offset_ns < -MS
        assert not truth.evidence
        sure = folder.name in ("imagenet", "cosmoflow", "cosmoflow_threads")
        reads = rows[rows["op"] == READ]
        times = [
            reads["start_ns"] + log.clock.start_ns,
            reads["end_ns"] + log.clock.start_ns,
            np.zeros(len(reads), int),
        ]
        for _, start_ns, end_ns in nesting_events(made):
            for window in ({}, {"window_ns": None}) if sure else ({},):
                try:
                    found = align_nesting(times, (start_ns, end_ns, np.zeros(len(start_ns), int)), **window)
                except AlignmentError:
                    assert not sure
                    continue
                assert found.interval_ns[0] <= high
                assert low <= found.interval_ns[1]
        if sure:
            assert abs(align_rank(rows, log.clock, made, "nesting", rank)[0].offset_ns - truth.offset_ns) < 50_000


# PyTorch: reads of the training thread lie where it asks for batches.

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def torch_job(tmp_path, *, loader, seed=3, steps=60, offset_ns=-7_000_000):
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
    return read_profile([path]), *(np.array(times) + kineto.START_NS - offset_ns for times in (starts, ends))


@pytest.mark.parametrize("loader", [True, False])
def test_reads_of_the_training_thread_place_the_clock(tmp_path, loader):
    made, start, end = torch_job(tmp_path, loader=loader)
    (events,) = nesting_events(made)
    events, zeros = (events[1], events[2], events[0] * 0), np.zeros(len(start), int)
    found = align_nesting((start, end, zeros), events, least=EXCLUSIVE)
    assert found.interval_ns[0] <= -7 * MS <= found.interval_ns[1]
    assert found.residual_ns < 300_000
    others = start[::10] + 10 * MS  # some reads lie elsewhere
    with_others = np.append(start, others), np.append(end, others + 1000), np.append(zeros, zeros[::10])
    with pytest.raises(AlignmentError, match="of the reads during the profile lie in an event"):
        align_nesting(with_others, events, least=EXCLUSIVE)


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


@pytest.mark.skipif(not (CAPTURES / "torch_images").is_dir(), reason="no recorded captures beside this checkout")
def test_no_recorded_batch_is_read_after_it_was_fetched_or_before_it_was_asked_for():
    """The two workers of an epoch read 16 files a batch in turn, and may be four batches ahead."""
    folder = CAPTURES / "torch_images"
    job = open_job(sorted((folder / "logs").glob("*.darshan")))
    (path,) = find_profiles(folder / "profile")
    profile = read_profile([path])
    rows = np.flatnonzero(profile.names_matching(r"enumerate.*Multi.*__next__")[profile.name])
    asked, answered = np.sort(profile.start_ns[rows]), np.sort(profile.end_ns[rows])
    placed = 0
    for process in job.processes[1:]:
        log = read_log_rows(process.log)
        rows = log.rows
        found = align_worker(rows, log.clock, profile)
        if found is None:
            continue
        placed += 1
        epoch, turn = divmod(process.worker - 1, 2)
        first = (rows["offset"] == 0) & (rows["length"] > 0)
        begin = rows["start_ns"][first][::BATCH] + process.log.job.start_ns
        last = np.maximum.reduceat(rows["end_ns"][rows["length"] > 0], np.arange(0, first.sum(), BATCH))
        fetch = epoch * 26 + 2 * np.arange(len(begin)) + turn
        at_most = (answered[fetch] - last - process.log.job.start_ns).min()
        at_least = (asked[fetch[2:] - 4] - begin[2:]).max()
        assert at_least - 100_000 <= found.interval_ns[1]
        assert at_most >= found.interval_ns[0]
        assert found.residual_ns < 4 * MS
    assert placed >= 6


def test_a_rank_without_a_profile_leaves_its_workers_on_the_wall_clock():
    folder = recorded("captures/torch_eval")
    job = open_job(sorted((folder / "logs").glob("*.darshan")))
    log = read_log_rows(job.processes[1].log)
    assert align_worker(log.rows, log.clock, None) is None
    assert align_rank(log.rows, log.clock, None, "auto", 0)[0].method == "wall"
