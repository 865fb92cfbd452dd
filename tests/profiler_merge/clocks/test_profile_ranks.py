"""Which rank a profile belongs to, by each rule alone; the log and the profiles are made for the purpose."""

import numpy as np
import pytest

from dxt_replay.profiler_merge.clocks.alignment import align_rank, parse_method
from dxt_replay.profiler_merge.clocks.profile_ranks import map_profiles
from dxt_replay.profiler_merge.darshan.jobs import open_job
from dxt_replay.profiler_merge.log_rows import read_log_rows
from dxt_replay.profiler_merge.profiles.xplane import read_profile
from dxt_replay.traces.errors import AlignmentError, ProfileError
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, write_dxt_log
from tests.xplane_writer import START_NS, Event, Line, profile

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
    alignment, notes = align_rank(*first_rank(job), read_profile(path), parse_method(method), 0)
    assert alignment.method == used
    assert not notes
    low, high = alignment.interval_ns
    assert low <= -DELTA_NS <= high


def test_auto_says_why_it_fell_back_to_the_wall_clock(tmp_path):
    path = profile_file(tmp_path / "p/vm.xplane.pb", lines=[step_line()])
    job = job_log(tmp_path)
    alignment, notes = align_rank(*first_rank(job), read_profile(path), "auto", 0)
    assert alignment.method == "wall"
    assert "anchor" in notes[0]
    with pytest.raises(AlignmentError, match="rank 0"):
        align_rank(*first_rank(job), read_profile(path), "anchors", 0)
