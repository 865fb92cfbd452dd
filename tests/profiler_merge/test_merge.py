"""Merging real sources: the bundled captures, and every capture and log beside the checkout where there are any."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dxt_replay.profiler_merge.darshan.dxt import read_dxt
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.profiles.xplane import find_profiles
from dxt_replay.traces.errors import AlignmentError, LogError, UsageError
from dxt_replay.traces.files import is_recorder_file
from dxt_replay.traces.samples import NAMES, sample
from dxt_replay.traces.schema import READ, codes
from dxt_replay.traces.store.reader import open_capture
from tests.places import SHARED

CAPTURES = sorted((SHARED / "captures").glob("*/job.darshan"))
THETA = SHARED / "theta" / "cosmictagger_8ranks.darshan"
needs_captures = pytest.mark.skipif(not CAPTURES, reason="the captures are not beside the checkout")
needs_theta = pytest.mark.skipif(not THETA.exists(), reason="the Theta log is not beside the checkout")


def all_operations(capture):
    batches = list(capture.operations())
    return pa.Table.from_batches(batches)


def segments_of(log):
    """What the log's DXT holds, as sorted tuples without times."""
    found = []
    for block in read_dxt(open_log(log), "DXT_POSIX"):
        columns = (
            block.ranks[block.record],
            block.record_ids[block.record],
            block.is_write,
            block.offset,
            block.length,
        )
        found += list(zip(*(column.tolist() for column in columns), strict=True))
    return sorted(found)


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_capture_merges_whole(tmp_path, name):
    files = sample(name)
    result = merge([files.log], list(files.profiles), tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    stored = all_operations(capture)
    table = stored.filter(pc.equal(stored["origin"], "traced"))
    record_of_file = capture.files["record_id"].to_numpy()
    merged = zip(
        table["rank"].to_pylist(),
        record_of_file[table["file_id"].to_numpy()].tolist(),
        (codes(table, "op") != READ).tolist(),
        table["offset"].to_pylist(),
        table["length"].to_pylist(),
        strict=True,
    )
    assert sorted(merged) == segments_of(files.log)
    assert [clock.method for clock in capture.info.clock] == ["anchors", "anchors"]
    assert all(clock.interval_ns[1] - clock.interval_ns[0] <= 5000 for clock in capture.info.clock)
    traced_bytes = pc.sum(table["length"]).as_py()
    ours = capture.files.filter(pa.array([not is_recorder_file(path) for path in capture.paths()]))
    streams = sum(pc.sum(ours[f"stdio_bytes_{what}"]).as_py() or 0 for what in ("read", "written"))
    assert capture.info.coverage.traceable == (1.0, 1.0)
    assert capture.info.coverage.bytes == traced_bytes / (traced_bytes + streams)
    assert not capture.info.warnings
    assert result.as_json()["operations"] == {
        "traced": table.num_rows,
        "reconstructed": stored.num_rows - table.num_rows,
    }


@pytest.mark.parametrize(("name", "steps"), [("imagenet", 120), ("cosmictagger", 150)])
def test_operations_lie_in_their_steps(tmp_path, name, steps):
    files = sample(name)
    merge([files.log], list(files.profiles), tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    for rank in capture.ranks:
        spans = capture.spans.filter(
            pc.and_(pc.equal(capture.spans["rank"], rank), pc.equal(capture.spans["kind"], "step"))
        )
        assert spans["step"].to_pylist() == list(range(steps))
        starts, ends = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
        assert np.all(starts[1:] >= ends[:-1])
        for batch in capture.operations(rank):
            step = batch.column("step").to_numpy()
            begin = batch.column("start_ns").to_numpy()
            inside = step >= 0
            assert inside.any()
            assert np.all((begin[inside] >= starts[step[inside]]) & (begin[inside] < ends[step[inside]]))


@pytest.mark.parametrize("name", NAMES)
def test_operations_of_one_lane_do_not_overlap(tmp_path, name):
    files = sample(name)
    merge([files.log], [], tmp_path / "c.capture", MergeOptions(align="wall"))
    capture = open_capture(tmp_path / "c.capture")
    assert capture.info.lanes == "overlap"
    for batch in capture.operations():
        lanes = batch.column("lane").to_numpy()
        start, end = batch.column("start_ns").to_numpy(), batch.column("end_ns").to_numpy()
        for lane in np.unique(lanes):
            assert np.all(start[lanes == lane][1:] >= end[lanes == lane][:-1])


def test_files_are_told_by_kind_and_size(tmp_path):
    files = sample("imagenet")
    merge([files.log], [], tmp_path / "c.capture")
    table = open_capture(tmp_path / "c.capture").files
    kinds = dict(zip(table["path"].to_pylist(), table["format"].to_pylist(), strict=True))
    data = {path for path in kinds if path.startswith("/scratch/imagenet/data/part-")}
    assert {kinds[path] for path in data} == {"tfrecord"}
    assert len(data) == 8
    sizes = {
        size for path, size in zip(table["path"].to_pylist(), table["size"].to_pylist(), strict=True) if path in data
    }
    assert sizes == {12 * 262144 + 2448}


def test_excluded_files_leave_neither_rows_nor_counters(tmp_path):
    files = sample("imagenet")
    merge([files.log], list(files.profiles), tmp_path / "c.capture", MergeOptions(exclude=("*.tfrecord",)))
    capture = open_capture(tmp_path / "c.capture")
    assert not any(path.endswith(".tfrecord") for path in capture.paths())
    # 16 writes; an open and a close of four files.
    assert capture.operation_count() == 16 + 8
    assert capture.info.coverage.traceable == (1.0, 1.0)


def test_one_profile_stands_for_all_ranks_and_that_is_said(tmp_path):
    files = sample("cosmictagger")
    merge([files.log], [files.profiles[0]], tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    by_rank = [capture.spans.filter(pc.equal(capture.spans["rank"], rank)).drop_columns("rank") for rank in (0, 1)]
    assert by_rank[0].equals(by_rank[1])
    assert any("copies" in warning for warning in capture.info.warnings)
    assert [clock.method for clock in capture.info.clock] == ["anchors", "wall"]


def test_seconds_move_the_operations(tmp_path):
    files = sample("imagenet")
    for name, align in (("a", "wall"), ("b", "-0.5")):
        merge([files.log], list(files.profiles), tmp_path / f"{name}.capture", MergeOptions(align=align))
    first, second = (all_operations(open_capture(tmp_path / f"{name}.capture")) for name in "ab")
    wall, moved = (np.sort(table["start_ns"].to_numpy()) for table in (first, second))
    assert np.array_equal(wall - moved, np.full(len(wall), 500_000_000))


@pytest.mark.parametrize("align", ["sideways", "nan", "1e30"])
def test_an_alignment_that_is_none_is_refused(tmp_path, align):
    with pytest.raises(UsageError, match="--align"):
        merge([sample("imagenet").log], [], tmp_path / "c.capture", MergeOptions(align=align))
    assert not (tmp_path / "c.capture").exists()


def test_anchors_that_are_asked_for_and_absent_are_an_error(tmp_path):
    with pytest.raises(AlignmentError, match="anchor"):
        merge([sample("imagenet").log], [], tmp_path / "c.capture", MergeOptions(align="anchors"))


def test_a_log_of_a_whole_job_stands_alone(tmp_path):
    log = sample("imagenet").log
    with pytest.raises(LogError, match="of 2 jobs"):
        merge([log, sample("cosmictagger").log], [], tmp_path / "c.capture")


@needs_captures
@pytest.mark.parametrize("log", CAPTURES, ids=lambda log: log.parent.name)
def test_all_captures_merge_by_anchors(tmp_path, log):
    merge([log], find_profiles(log.parent / "profile"), tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    assert sorted(clock.rank for clock in capture.info.clock) == [0, 1]
    assert all(clock.method == "anchors" for clock in capture.info.clock)
    assert all(clock.interval_ns[1] - clock.interval_ns[0] <= 5000 for clock in capture.info.clock)
    assert capture.info.lanes == ("pthread_id" if log.parent.name == "cosmoflow_threads" else "overlap")
    assert capture.info.coverage.traceable == (1.0, 1.0)


@needs_captures
@pytest.mark.parametrize("name", ["imagenet", "cosmoflow", "cosmoflow_threads"])
def test_nesting_alone_agrees_with_the_anchors(tmp_path, name):
    folder = SHARED / "captures" / name
    offsets = {}
    for align in ("anchors", "nesting"):
        options = MergeOptions(align=align, force=True)
        merged = merge([folder / "job.darshan"], find_profiles(folder / "profile"), tmp_path / "c.capture", options)
        assert {clock.method for clock in merged.info.clock} == {align}
        offsets[align] = {clock.rank: clock.offset_ns for clock in merged.info.clock}
    for rank, anchored in offsets["anchors"].items():
        assert abs(offsets["nesting"][rank] - anchored) < 50_000


@needs_theta
def test_a_production_log_without_a_profile(tmp_path):
    merged = merge([THETA], [], tmp_path / "c.capture")
    assert merged.operations == 313_872
    assert len(merged.info.ranks) == 8
    assert merged.info.coverage.traceable[1] == 1.0
    assert {clock.method for clock in merged.info.clock} == {"wall"}
    table = open_capture(tmp_path / "c.capture").files
    assert pc.sum(table["stdio_bytes_written"]).as_py() > 3 * 292_770_360
    assert "checkpoint" in table["format"].to_pylist()


def test_a_failed_merge_leaves_an_older_capture_alone(tmp_path):
    log = sample("imagenet").log
    before = merge([log], [], tmp_path / "c.capture")
    assert before.operations == 596
    with pytest.raises(AlignmentError):
        merge([log], [], tmp_path / "c.capture", MergeOptions(align="nesting", force=True))
    assert open_capture(tmp_path / "c.capture").operation_count() == 596 + before.reconstructed
    assert [path.name for path in tmp_path.iterdir()] == ["c.capture"]


def test_operations_of_a_rank_without_a_profile_get_the_steps_of_the_profiled_one(tmp_path):
    files = sample("imagenet")
    steps = {}
    for name, profiles in (("one", files.profiles[1:]), ("both", files.profiles)):
        merge([files.log], list(profiles), tmp_path / f"{name}.capture", MergeOptions(reconstruct=False))
        capture = open_capture(tmp_path / f"{name}.capture")
        steps[name] = np.concatenate([batch.column("step").to_numpy() for batch in capture.operations(0)])
    assert np.sum(steps["both"] >= 0) == 290
    assert abs(int(np.sum(steps["one"] >= 0)) - 290) < 10
