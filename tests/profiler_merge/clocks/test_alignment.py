"""Clocks of logs beside profiles, the rank of each profile, and profiles of another run: made and recorded ones."""

import numpy as np
import pytest

from dxt_replay.profiler_merge.clocks.alignment import EXCLUSIVE, align_rank, align_worker, nesting_events, parse_method
from dxt_replay.profiler_merge.clocks.offsets import align_nesting
from dxt_replay.profiler_merge.clocks.profile_ranks import map_profiles
from dxt_replay.profiler_merge.darshan.jobs import open_job
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.profiler_merge.rank_rows import read_log_rows
from dxt_replay.traces.errors import AlignmentError, ProfileError
from dxt_replay.traces.schema import READ
from tests import kineto_writer as kineto
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, write_dxt_log
from tests.places import CAPTURES, recorded
from tests.xplane_writer import START_NS, Event, Line, profile

MS = 1_000_000
START_S = START_NS // 10**9
READS_AT_S = {rank: np.sort(np.random.default_rng(rank).uniform(1, 7, 25)) for rank in (0, 1)}
DELTA_NS = 7_000_000


def reads(rank):
    return [(4096 * i, 4096, at, at + 0.0005) for i, at in enumerate(READS_AT_S[rank])]


def job_log(folder, *, ranks=2, anchors=False, start_s=START_S, host=b"node1"):
    """Ranks with 25 reads each, and their anchors in files of their own, as DXT and POSIX have them."""
    records, names, rows = [], {1: b"/data/a.tfrecord"}, []
    for rank in range(ranks):
        records.append(DxtRecord(record_id=1, rank=rank, reads=reads(rank), hostname=host))
        if anchors:
            pid = 500 + rank
            names[pid] = b"/run/dxt-anchor.node.%d.bin" % pid
            writes = [(64 * i, 64, 0.5 + i, 0.500002 + i) for i in range(3)]
            records.append(DxtRecord(record_id=pid, rank=rank, writes=writes, hostname=host))
            rows.append({"record_id": pid, "rank": rank, "POSIX_WRITES": 3})
    posix = {"POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])} if ranks > 1 and rows else {}
    job = JobSpec(nprocs=ranks, start_s=start_s, start_ns=0, end_s=start_s + 10, end_ns=0)
    path = folder / "job.darshan"
    return open_job([write_dxt_log(path, records, dxt_version=1, names=names, job=job, extra_modules=posix)])


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


@pytest.mark.parametrize(
    ("place", "pid", "rank"),
    [
        # The rank in the annotation is wrong and the path says 0: the pid's file was written by rank 1.
        ("rank0/vm.xplane.pb", 501, 1),
        ("rank_1/plugins/vm.xplane.pb", None, 1),  # the path decides when nothing else does
        ("somewhere/vm.xplane.pb", None, None),
    ],
)
def test_the_rank_of_a_profile(tmp_path, place, pid, rank):
    job = job_log(tmp_path, anchors=pid is not None)
    path, again = (
        profile_file(tmp_path / folder / place, lines=[step_line(*(anchor_marks(0, pid) if pid else ()))])
        for folder in ("a", "b")
    )
    found = map_profiles([(path,)], job)
    assert found.by_rank == ({} if rank is None else {rank: (path,)})
    assert rank is not None or str(path) in found.warnings[0]
    if rank is not None:
        with pytest.raises(ProfileError, match="both of rank 1"):
            map_profiles([(path,), (again,)], job)


def first_rank(job):
    found = read_log_rows(job.first)
    return found.of_rank(0), found.clock


@pytest.mark.parametrize(("method", "used"), [("auto", "anchors"), ("nesting", "nesting"), ("wall", "wall")])
def test_each_method_finds_the_offset_it_can(tmp_path, method, used):
    job = job_log(tmp_path, anchors=True)
    path = profile_file(tmp_path / "p/vm.xplane.pb", lines=[step_line(*anchor_marks(0, 500)), reading_line(0)])
    alignment, notes = align_rank(*first_rank(job), read_profile([path]), parse_method(method), 0)
    assert (alignment.method, notes) == (used, [])
    assert alignment.interval_ns[0] <= -DELTA_NS <= alignment.interval_ns[1]
    bare, job = read_profile([profile_file(tmp_path / "b/vm.xplane.pb", lines=[step_line()])]), job_log(tmp_path)
    alignment, (note,) = align_rank(*first_rank(job), bare, "auto", 0)
    assert (alignment.method, "anchor" in note) == ("wall", True)
    with pytest.raises(AlignmentError, match="rank 0"):
        align_rank(*first_rank(job), bare, "anchors", 0)


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


@pytest.mark.parametrize("folder", [log.parent for log in CAPTURES.glob("*/job.darshan")], ids=lambda path: path.name)
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
        times = [*(reads[name] + log.clock.start_ns for name in ("start_ns", "end_ns")), np.zeros(len(reads), int)]
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


def test_a_rank_without_a_profile_leaves_its_workers_on_the_wall_clock():
    folder = recorded("captures/torch_eval")
    job = open_job(sorted((folder / "logs").glob("*.darshan")))
    log = read_log_rows(job.processes[1].log)
    assert align_worker(log.rows, log.clock, None) is None
    assert align_rank(log.rows, log.clock, None, "auto", 0)[0].method == "wall"


HERE = {"pid": None}


@pytest.mark.parametrize(
    ("log", "given", "options", "said"),
    [
        ({}, {"pid": 777}, {}, ["its anchors are of process 777, those in the log of 500"]),
        ({"start_s": START_S - 5000}, HERE, {}, ["it was recorded from", "the job ran from"]),
        ({"host": b"node7"}, HERE, {}, ["of host node1, and the job ran on node7"]),
        (
            {"start_s": START_S - 5000, "host": b"node7"},
            {"pid": 777, "rank": 3},
            {},
            ["process 777", "of rank 3", "recorded from", "host node1"],
        ),
        ({}, {"pid": 500}, {}, None),
        ({"host": b"NODE1.cluster.org"}, HERE, {}, None),  # the full name of a host is the same
        ({"start_s": START_S - 5000}, HERE, {"align": "5000"}, None),  # the user's word on the clock is taken
    ],
)
def test_the_profile_of_another_run_is_refused(tmp_path, log, given, options, said):
    marks = anchor_marks(given.get("rank", 0), given["pid"]) if given["pid"] else ()
    profiles = [profile_file(tmp_path / "node1.xplane.pb", lines=[step_line(*marks)])]
    log = job_log(tmp_path, ranks=1, anchors=True, **log).first.path
    arguments = [log], profiles, tmp_path / "a.capture"
    if said is None:
        made = merge(*arguments, MergeOptions(**options))
        assert (made.info.clock[0].method == "anchors") == (given["pid"] == 500)
        return
    with pytest.raises(ProfileError, match="of another run") as caught:
        merge(*arguments, MergeOptions(**options))
    assert all(part in str(caught.value) for part in (str(arguments[1][0]), *said))


@pytest.mark.parametrize("name", ["worker_0", "rank_3", "worker0_step_12", "graph_capture_rank_0", "node1_PID"])
def test_a_pytorch_name_is_a_host_where_its_number_is_a_process_of_its_events(tmp_path, name):
    steps = [kineto.mark(number, 10**9 * number, 10**9 * number + 9 * 10**8) for number in range(1, 4)]
    path = tmp_path / f"{name.replace('PID', str(kineto.PID))}.1694128201545.pt.trace.json"
    kineto.write(path, steps, start_ns=START_NS)
    log = job_log(tmp_path, ranks=1, anchors=True, host=b"x3105c0s19b1n0").first.path
    if "PID" in name:
        with pytest.raises(ProfileError, match="it is of host node1, and the job ran on x3105c0s19b1n0"):
            merge([log], [path], tmp_path / "a.capture")
    else:
        made = merge([log], [path], tmp_path / "a.capture", MergeOptions(align="wall"))
        assert made.info.sources[1].name == path.name
