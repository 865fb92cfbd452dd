"""PyTorch jobs to captures: logs of processes and Kineto profiles, small written ones and the real ones."""

import json

import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.store.reader import open_capture
from tests import kineto_writer as kineto
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.kineto_writer import START_NS
from tests.places import CAPTURES, recorded

START_S = START_NS // 10**9
PIDS = (4711, 4712)
NAMES = {
    1: b"/data/train.bin",
    8: b"/tmp/tmpabc.json",
    9: b"/tmp/tmpabc.json.tmp",
    10: b"/run/p/cycle.pt.trace.json.gz",
}


def log(folder, pid, *, anchors=True):
    """A process that reads, sets anchors at 1, 1.1 and 1.2 s, and exports its profile."""
    names = dict(NAMES)
    records = [DxtRecord(record_id=1, rank=0, reads=[(4096 * i, 4096, 2 + i, 2.001 + i) for i in range(4)])]
    records += [DxtRecord(record_id=own, rank=0, writes=[(0, 1 << 20, 8, 8.1)]) for own in (8, 9, 10)]
    if anchors:
        names[7] = b"/run/dxt-anchor.node.%d.bin" % pid
        marks = [(64 * i, 64, 1 + i / 10, 1 + i / 10 + 5e-6) for i in range(3)]
        records.append(DxtRecord(record_id=7, rank=0, writes=marks))
    return write_dxt_log(
        folder / f"u_python_id55-{pid}_11-22-100-1_1.darshan",
        records,
        dxt_version=1,
        names=names,
        job=JobSpec(jobid=55, nprocs=1, start_s=START_S, start_ns=0, end_s=START_S + 10, end_ns=0),
    )


def profile(path, pid, *, anchors=True, rank=0):
    """Six steps of a second each; `kineto`'s times count from START_NS."""
    zero = START_S * 10**9 - START_NS + 3_000_000  # the log's clock is 3 ms early
    events = [kineto.mark(n, zero + (2 + n) * 10**9, zero + (3 + n) * 10**9, pid=pid, tid=pid) for n in range(6)]
    events += [
        kineto.event("aten::add", zero + int((2.5 + n) * 10**9), zero + int((2.9 + n) * 10**9), pid=pid, tid=pid)
        for n in range(6)
    ]
    if anchors:
        events += [kineto.anchor(i, zero + 10**9 + i * 10**8 - 5_000, rank=rank, pid=pid) for i in range(3)]
    return kineto.write(path, events)


def merged(tmp_path, logs, profiles, **options):
    result = merge(logs, profiles, tmp_path / "a.capture", MergeOptions(**options))
    capture = open_capture(result.capture)
    return result, pa.Table.from_batches(list(capture.operations())), capture


def test_anchors_place_the_log_and_the_operations_lie_in_their_steps(tmp_path):
    path = profile(tmp_path / "cycle.pt.trace.json.gz", PIDS[0])
    result, ops, _ = merged(tmp_path, [log(tmp_path, PIDS[0])], [path])
    (clock,) = result.info.clock
    assert clock.method == "anchors"
    assert clock.offset_ns == pytest.approx(3_000_000, abs=10_000)
    reads = ops.filter(ops["length"].to_numpy() == 4096)
    assert reads["step"].to_pylist() == [0, 1, 2, 3]
    assert [source.kind for source in result.info.sources] == ["darshan", "kineto"]


def test_what_the_profiler_wrote_is_left_out(tmp_path):
    logs, profiles = [log(tmp_path, PIDS[0])], [profile(tmp_path / "cycle.pt.trace.json.gz", PIDS[0])]
    result, _, capture = merged(tmp_path, logs, profiles)
    assert sorted(capture.files["path"].to_pylist()) == ["/data/train.bin", f"/run/dxt-anchor.node.{PIDS[0]}.bin"]
    assert any(
        "that the profiler itself wrote" in text and "/tmp/tmpabc.json.tmp" in text for text in result.info.warnings
    )


@pytest.mark.parametrize("anchors", [True, False])
def test_profiles_find_their_ranks_by_anchor_or_process(tmp_path, anchors):
    logs = [log(tmp_path, pid, anchors=anchors) for pid in PIDS]
    # The names of the folders would mislead.
    profiles = [
        profile(tmp_path / f"rank{1 - rank}" / f"node0_{pid}.1795309101260993922.pt.trace.json", pid, anchors=anchors)
        for rank, pid in enumerate(PIDS)
    ]
    result, _, _ = merged(tmp_path, logs, profiles)
    assert [source.name for source in result.info.sources] == [path.name for path in (*logs, *profiles)]
    assert result.info.ranks == (0, 1)


def test_a_cut_profile_is_used_with_a_warning(tmp_path):
    path = profile(tmp_path / "cycle.pt.trace.json", PIDS[0])
    path.write_bytes(path.read_bytes()[:-900])
    result, _, _ = merged(tmp_path, [log(tmp_path, PIDS[0])], [path])
    assert any("is damaged after" in text for text in result.info.warnings)


RUNS = {  # capture -> (ranks, workers of a rank, steps)
    "torch_images": (1, 8, 100), "torch_eval": (1, 8, 180), "torch_hdf5": (2, 0, 126),
    "torch_shards": (2, 2, 60), "torch_mmap/mmap": (1, 0, 100), "torch_mmap/pread": (1, 0, 100),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_real_jobs(tmp_path, name):
    ranks, workers, steps = RUNS[name]
    folder = recorded(f"captures/{name}")
    logs = sorted((folder / "logs").glob("*.darshan"))
    result, ops, capture = merged(tmp_path, logs, find_profiles(folder / "profile"))
    assert result.info.ranks == tuple(range(ranks))
    own = [clock for clock in result.info.clock if clock.worker == 0]
    assert {clock.method for clock in own} == {"anchors"}
    assert max(clock.residual_ns for clock in own) < 5_000
    assert max((clock.worker for clock in result.info.clock), default=0) == workers
    spans = capture.spans.to_pydict()
    assert spans["kind"].count("step") == ranks * steps
    assert not any(path.startswith("/tmp/tmp") or "trace.json" in path for path in capture.files["path"].to_pylist())
    for rank in range(ranks):
        wall = json.loads((folder / f"wall-{rank}.json").read_text())
        mine = [i for i, kind in enumerate(spans["kind"]) if kind == "step" and spans["rank"][i] == rank]
        begin = spans["start_ns"][mine[0]] + result.info.job.zero_ns
        assert begin == pytest.approx(wall["t0"] * 1e9, abs=50e6)
    assert ops.num_rows == result.operations + result.reconstructed


def test_ranks_are_numbered_as_torch_distributed_numbers_them(tmp_path):
    """Logs of processes are in the order of their starts, which is not that of the ranks."""
    logs = [log(tmp_path, pid, anchors=False) for pid in PIDS]
    profiles = []
    for rank, pid in enumerate(PIDS):
        path = profile(tmp_path / f"{pid}.pt.trace.json", pid, anchors=False)
        text = path.read_text().replace(
            '"schemaVersion": 1', f'"schemaVersion": 1, "distributedInfo": {{"rank": {1 - rank}}}'
        )
        path.write_text(text)
        profiles.append(path)
    result, _, _ = merged(tmp_path, logs, profiles)
    assert [source.name for source in result.info.sources if source.kind == "darshan"] == [logs[1].name, logs[0].name]
    assert [source.name for source in result.info.sources if source.kind == "kineto"] == [
        profiles[1].name, profiles[0].name
    ]  # fmt: skip


def test_cycles_under_names_of_the_users_own_are_one_profile(tmp_path):
    first = profile(tmp_path / "first.json", PIDS[0], anchors=False)
    zero = START_S * 10**9 - START_NS + 3_000_000
    marks = [kineto.mark(n, zero + (3 + n) * 10**9, zero + (4 + n) * 10**9, pid=PIDS[0], tid=PIDS[0]) for n in (6, 7)]
    work = [kineto.event("aten::add", m["start"] + 10**8, m["end"] - 10**8, pid=PIDS[0], tid=PIDS[0]) for m in marks]
    second = kineto.write(tmp_path / "second.json", [*marks, *work])
    _, _, capture = merged(tmp_path, [log(tmp_path, PIDS[0], anchors=False)], [first, second])
    steps = capture.spans.filter(pa.compute.equal(capture.spans["kind"].cast(pa.string()), "step"))
    assert steps["step"].to_pylist() == list(range(8))
    again = kineto.write(tmp_path / "again.json", [*marks, *work])
    with pytest.raises(ProfileError, match="are both of rank 0"):
        merged(tmp_path, [log(tmp_path, PIDS[0], anchors=False)], [first, second, again], force=True)


@pytest.mark.skipif(not (CAPTURES / "torch_images").is_dir(), reason="no recorded captures beside this checkout")
@pytest.mark.parametrize(
    ("align", "methods"), [("anchors", {"nesting", "wall"}), ("wall", {"wall"}), ("0.5", {"seconds"})]
)
def test_workers_are_placed_whatever_method_places_their_rank(tmp_path, align, methods):
    folder = CAPTURES / "torch_images"
    logs = sorted((folder / "logs").glob("*.darshan"))
    result, _, _ = merged(tmp_path, logs, find_profiles(folder / "profile"), align=align)
    assert {clock.method for clock in result.info.clock if clock.worker} == methods


def test_a_mapped_file_of_a_real_job_is_named_and_nothing_is_claimed(tmp_path):
    """The job maps train.bin for every batch: the log holds opens and seeks of it, and no read."""
    source = recorded("captures/torch_mmap/mmap")
    result, _, capture = merged(tmp_path, sorted((source / "logs").iterdir()), find_profiles(source / "profile"))
    ((kind, name, moved),) = [(each.kind, each.name, each.bytes) for each in result.info.coverage.unseen]
    assert (kind, name.rpartition("/")[2], moved) == ("mapped", "train.bin", None)
    assert result.info.coverage.bytes is None
    assert "1 file was opened and never read by a call" in summarise(capture).not_judged


def test_the_evaluations_of_a_real_job_are_counted_apart(tmp_path):
    """The program evaluated after every 30 of its 180 steps; `wall-0.json` has the time of its whole loop."""
    source = recorded("captures/torch_eval")
    _, _, capture = merged(tmp_path, sorted((source / "logs").iterdir()), find_profiles(source / "profile"))
    loop = summarise(capture).loop
    assert loop.evaluations == 6
    wall = json.loads((source / "wall-0.json").read_text())
    assert loop.loop_s + loop.evaluation_s < wall["t1"] - wall["t0"]
    slow = [row for row in overlap(capture).steps.to_pylist()[1:] if row["duration_ns"] > 50 * 10**6]
    assert {row["why"] for row in slow} == {"checkpoint"}
