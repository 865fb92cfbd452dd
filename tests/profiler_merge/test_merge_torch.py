"""PyTorch jobs to captures: logs of processes and Kineto profiles, small written ones and the real ones; and several
profiles of one process, one after the other, which are one training whose steps are numbered on."""

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
from tests import xplane_writer as xplane
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.kineto_writer import START_NS
from tests.places import CAPTURES, recorded

SECOND = 10**9
START_S = START_NS // SECOND
PIDS = (4711, 4712)
NAMES = {
    1: b"/data/train.bin", 8: b"/tmp/tmpabc.json", 9: b"/tmp/tmpabc.json.tmp", 10: b"/run/p/cycle.pt.trace.json.gz",
}  # fmt: skip


def log(folder, pid, *, anchors=True):
    """A process that reads, sets anchors at 1, 1.1 and 1.2 s, and exports its profile."""
    names = dict(NAMES)
    records = [DxtRecord(record_id=1, rank=0, reads=[(4096 * i, 4096, 2 + i, 2.001 + i) for i in range(4)])]
    records += [DxtRecord(record_id=own, rank=0, writes=[(0, 1 << 20, 8, 8.1)]) for own in (8, 9, 10)]
    if anchors:
        names[7] = b"/run/dxt-anchor.node.%d.bin" % pid
        marks = [(64 * i, 64, 1 + i / 10, 1 + i / 10 + 5e-6) for i in range(3)]
        records.append(DxtRecord(record_id=7, rank=0, writes=marks))
    job = JobSpec(jobid=55, nprocs=1, start_s=START_S, start_ns=0, end_s=START_S + 10, end_ns=0)
    return write_dxt_log(folder / f"u_python_id55-{pid}_11-22-100-1_1.darshan", records, names=names, job=job)


def profile(path, pid, *, anchors=True, rank=0, first=0, count=6):
    """Steps of a second each from 2 s on; `kineto`'s times count from START_NS."""
    zero = START_S * SECOND - START_NS + 3_000_000  # the log's clock is 3 ms early
    own, events = {"pid": pid, "tid": pid}, []
    for n in range(first, first + count):
        begin = zero + (2 + n) * SECOND
        events.append(kineto.mark(n, begin, begin + SECOND, **own))
        events.append(kineto.event("aten::add", begin + SECOND // 2, begin + 9 * SECOND // 10, **own))
    if anchors:
        events += [kineto.anchor(i, zero + SECOND + i * SECOND // 10 - 5_000, rank=rank, pid=pid) for i in range(3)]
    path.parent.mkdir(parents=True, exist_ok=True)
    return kineto.write(path, events)


def keras_profile(path, first_s):
    """Two steps numbered 0 and 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stats = [{"step_num": n, "_r": 1} for n in range(2)]
    steps = [
        xplane.Event(name="train", start_ns=n * SECOND, duration_ns=SECOND - 1, stats=each)
        for n, each in enumerate(stats)
    ]
    begin = (START_S + first_s) * SECOND
    data = xplane.profile([xplane.Line(id=77, name="python", events=tuple(steps))], begin, begin + 2 * SECOND)
    path.write_bytes(data.replace(b"node1", b"node0"))  # as the log
    return path


def merged(tmp_path, logs, profiles, **options):
    result = merge(logs, profiles, tmp_path / "a.capture", MergeOptions(**options))
    capture = open_capture(result.capture)
    return result, pa.Table.from_batches(list(capture.operations())), capture


def steps_of(capture):
    """Numbers of the steps, and the seconds at which they began, after the first one."""
    spans = capture.spans.filter(pa.compute.equal(capture.spans["kind"].cast(pa.string()), "step"))
    begins = [round(begin / SECOND) for begin in spans["start_ns"].to_pylist()]
    return spans["step"].to_pylist(), [begin - begins[0] for begin in begins]


def test_anchors_place_the_log_and_what_the_profiler_wrote_is_left_out(tmp_path):
    path = profile(tmp_path / "cycle.pt.trace.json.gz", PIDS[0])
    result, ops, capture = merged(tmp_path, [log(tmp_path, PIDS[0])], [path])
    (clock,) = result.info.clock
    assert clock.method == "anchors"
    assert clock.offset_ns == pytest.approx(3_000_000, abs=10_000)
    assert ops.filter(ops["length"].to_numpy() == 4096)["step"].to_pylist() == [0, 1, 2, 3]
    assert [source.kind for source in result.info.sources] == ["darshan", "kineto"]
    assert sorted(capture.paths()) == ["/data/train.bin", f"/run/dxt-anchor.node.{PIDS[0]}.bin"]
    said = [text for text in result.info.warnings if "that the profiler itself wrote" in text]
    assert "/tmp/tmpabc.json.tmp" in said[0]


@pytest.mark.parametrize("anchors", [True, False])
def test_profiles_find_their_ranks_by_anchor_or_process(tmp_path, anchors):
    logs = [log(tmp_path, pid, anchors=anchors) for pid in PIDS]
    # The names of the folders would mislead.
    places = [tmp_path / f"rank{1 - n}/node0_{pid}.1795309101260993922.pt.trace.json" for n, pid in enumerate(PIDS)]
    profiles = [profile(path, pid, anchors=anchors) for path, pid in zip(places, PIDS, strict=True)]
    result, _, _ = merged(tmp_path, logs, profiles)
    assert [source.name for source in result.info.sources] == [path.name for path in (*logs, *profiles)]
    assert result.info.ranks == (0, 1)


def test_ranks_are_numbered_as_torch_distributed_numbers_them(tmp_path):
    """Logs of processes are in the order of their starts, which is not that of the ranks."""
    logs = [log(tmp_path, pid, anchors=False) for pid in PIDS]
    profiles = [profile(tmp_path / f"{pid}.pt.trace.json", pid, anchors=False) for pid in PIDS]
    for rank, path in enumerate(profiles):
        known = f'"schemaVersion": 1, "distributedInfo": {{"rank": {1 - rank}}}'
        path.write_text(path.read_text().replace('"schemaVersion": 1', known))
    result, _, _ = merged(tmp_path, logs, profiles)
    for kind, files in (("darshan", logs), ("kineto", profiles)):
        names = [source.name for source in result.info.sources if source.kind == kind]
        assert names == [files[1].name, files[0].name]


def test_a_cut_profile_is_used_with_a_warning(tmp_path):
    path = profile(tmp_path / "cycle.pt.trace.json", PIDS[0])
    path.write_bytes(path.read_bytes()[:-900])
    result, _, _ = merged(tmp_path, [log(tmp_path, PIDS[0])], [path])
    assert any("is damaged after" in text for text in result.info.warnings)


def test_profiles_of_one_process_are_one_training(tmp_path):
    """Cycles under names of the user's own, runs that begin with step 0 again, and two fits of a Keras program."""
    own = [log(tmp_path, PIDS[0], anchors=False)]
    cycles = [profile(tmp_path / f"{n}.json", PIDS[0], anchors=False, first=n, count=3) for n in (0, 3)]
    _, _, capture = merged(tmp_path, own, cycles)
    assert steps_of(capture) == (list(range(6)), list(range(6)))
    fits = [keras_profile(tmp_path / f"rank0/plugins/profile/{n}/node.xplane.pb", n) for n in (5, 1)]
    for profiles in (fits, [fits[0], keras_profile(tmp_path / "rank0/phase2/plugins/profile/b/node.xplane.pb", 1)]):
        result, _, capture = merged(tmp_path, own, profiles, align="0", force=True)
        assert steps_of(capture) == ([0, 1, 2, 3], [0, 1, 4, 5])
        assert [source.kind for source in result.info.sources] == ["darshan", "xplane", "xplane"]
    for again in ([*cycles, profile(tmp_path / "again.json", PIDS[0], anchors=False)], [fits[0]] * 2):
        with pytest.raises(ProfileError, match="are both of rank 0"):
            merged(tmp_path, own, again, force=True)


RUNS = {  # capture -> (ranks, workers of a rank, steps)
    "torch_images": (1, 8, 100), "torch_eval": (1, 8, 180), "torch_hdf5": (2, 0, 126),
    "torch_shards": (2, 2, 60), "torch_mmap/mmap": (1, 0, 100), "torch_mmap/pread": (1, 0, 100),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_real_jobs(tmp_path, name):
    ranks, workers, steps = RUNS[name]
    folder = recorded(f"captures/{name}")
    result, ops, capture = merged(tmp_path, sorted((folder / "logs").iterdir()), find_profiles(folder / "profile"))
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
        assert spans["start_ns"][mine[0]] + result.info.job.zero_ns == pytest.approx(wall["t0"] * 1e9, abs=50e6)
    assert ops.num_rows == result.operations + result.reconstructed
    if name == "torch_eval":  # it evaluated after every 30 of its steps; `wall` has the time of its whole loop
        loop = summarise(capture).loop
        assert loop.evaluations == 6
        assert loop.loop_s + loop.evaluation_s < wall["t1"] - wall["t0"]
        slow = [row for row in overlap(capture).steps.to_pylist()[1:] if row["duration_ns"] > 50 * 10**6]
        assert {row["why"] for row in slow} == {"checkpoint"}
    if name == "torch_mmap/mmap":  # it maps train.bin for every batch: the log holds opens and seeks of it, and no read
        ((kind, path, moved),) = [(each.kind, each.name, each.bytes) for each in result.info.coverage.unseen]
        assert (kind, path.rpartition("/")[2], moved, result.info.coverage.bytes) == ("mapped", "train.bin", None, None)
        assert "1 file was opened and never read by a call" in summarise(capture).not_judged


@pytest.mark.skipif(not (CAPTURES / "torch_images").is_dir(), reason="no recorded captures beside this checkout")
@pytest.mark.parametrize(
    ("align", "methods"), [("anchors", {"nesting", "wall"}), ("wall", {"wall"}), ("0.5", {"seconds"})]
)
def test_workers_are_placed_whatever_method_places_their_rank(tmp_path, align, methods):
    folder = CAPTURES / "torch_images"
    logs = sorted((folder / "logs").glob("*.darshan"))
    result, _, _ = merged(tmp_path, logs, find_profiles(folder / "profile"), align=align)
    assert {clock.method for clock in result.info.clock if clock.worker} == methods
