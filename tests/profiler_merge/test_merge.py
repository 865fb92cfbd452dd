"""Merging real sources: the bundled captures, and every capture and log beside the checkout where there are any."""

import subprocess
import sys

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
from tests.places import ROOT, SHARED

CAPTURES = sorted((SHARED / "captures").glob("*/job.darshan"))
THETA = SHARED / "theta" / "cosmictagger_8ranks.darshan"
STEPS = {"imagenet": 120, "cosmictagger": 150}
needs_captures = pytest.mark.skipif(not CAPTURES, reason="the captures are not beside the checkout")


def merged(tmp_path, name, profiles=None, output="c.capture", **options):
    """The result of a bundled recording, its capture and its rows."""
    files = sample(name)
    profiles = list(files.profiles) if profiles is None else profiles
    result = merge([files.log], profiles, tmp_path / output, MergeOptions(**options))
    capture = open_capture(result.capture)
    return result, capture, pa.Table.from_batches(list(capture.operations()))


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_capture_merges_whole(tmp_path, name):
    result, capture, stored = merged(tmp_path, name)
    table = stored.filter(pc.equal(stored["origin"], "traced"))
    record_of_file = capture.files["record_id"].to_numpy()
    columns = [table["rank"], record_of_file[table["file_id"].to_numpy()], codes(table, "op") != READ]
    rows = sorted(
        zip(*(np.asarray(each).tolist() for each in (*columns, table["offset"], table["length"])), strict=True)
    )
    segments = []
    for block in read_dxt(open_log(sample(name).log), "DXT_POSIX"):
        of_record = (block.ranks[block.record], block.record_ids[block.record])
        segments += zip(
            *(each.tolist() for each in (*of_record, block.is_write, block.offset, block.length)), strict=True
        )
    assert rows == sorted(segments)
    assert [clock.method for clock in capture.info.clock] == ["anchors", "anchors"]
    traced_bytes = pc.sum(table["length"]).as_py()
    ours = capture.files.filter(pa.array([not is_recorder_file(path) for path in capture.paths()]))
    streams = sum(pc.sum(ours[f"stdio_bytes_{what}"]).as_py() or 0 for what in ("read", "written"))
    assert capture.info.coverage.traceable == (1.0, 1.0)
    assert capture.info.coverage.bytes == traced_bytes / (traced_bytes + streams)
    assert not capture.info.warnings
    counts = {"traced": table.num_rows, "reconstructed": stored.num_rows - table.num_rows}
    assert result.as_json()["operations"] == counts


@pytest.mark.parametrize("name", STEPS)
def test_operations_lie_in_their_steps_and_do_not_overlap_on_a_lane(tmp_path, name):
    _, capture, _ = merged(tmp_path, name)
    assert capture.info.lanes == "overlap"
    for rank in capture.ranks:
        mine = pc.and_(pc.equal(capture.spans["rank"], rank), pc.equal(capture.spans["kind"], "step"))
        spans = capture.spans.filter(mine)
        assert spans["step"].to_pylist() == list(range(STEPS[name]))
        starts, ends = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
        assert np.all(starts[1:] >= ends[:-1])
        for batch in capture.operations(rank):
            step, begin, end, lane = (batch.column(each).to_numpy() for each in ("step", "start_ns", "end_ns", "lane"))
            inside = step >= 0
            assert inside.any()
            assert np.all((begin[inside] >= starts[step[inside]]) & (begin[inside] < ends[step[inside]]))
            for each in np.unique(lane):
                assert np.all(begin[lane == each][1:] >= end[lane == each][:-1])


def test_files_are_told_by_kind_and_size_and_excluded_ones_leave_nothing(tmp_path):
    _, capture, _ = merged(tmp_path, "imagenet", [])
    rows = [row for row in capture.files.to_pylist() if row["path"].startswith("/scratch/imagenet/data/part-")]
    assert [(row["format"], row["size"]) for row in rows] == [("tfrecord", 12 * 262144 + 2448)] * 8
    _, capture, _ = merged(tmp_path, "imagenet", exclude=("*.tfrecord",), force=True)
    assert not any(path.endswith(".tfrecord") for path in capture.paths())
    assert capture.operation_count() == 16 + 8  # 16 writes; an open and a close of four files
    assert capture.info.coverage.traceable == (1.0, 1.0)


def test_one_profile_stands_for_all_ranks_and_that_is_said(tmp_path):
    _, capture, _ = merged(tmp_path, "cosmictagger", list(sample("cosmictagger").profiles[:1]))
    by_rank = [capture.spans.filter(pc.equal(capture.spans["rank"], rank)).drop_columns("rank") for rank in (0, 1)]
    assert by_rank[0].equals(by_rank[1])
    assert any("copies" in warning for warning in capture.info.warnings)
    assert [clock.method for clock in capture.info.clock] == ["anchors", "wall"]
    steps = {}
    for name, profiles in (("one", sample("imagenet").profiles[1:]), ("both", sample("imagenet").profiles)):
        _, capture, _ = merged(tmp_path, "imagenet", list(profiles), f"{name}.capture", reconstruct=False)
        steps[name] = np.concatenate([batch.column("step").to_numpy() for batch in capture.operations(0)])
    assert np.sum(steps["both"] >= 0) == 290
    assert abs(int(np.sum(steps["one"] >= 0)) - 290) < 10


def test_seconds_move_the_operations(tmp_path):
    tables = [merged(tmp_path, "imagenet", None, f"{align}.capture", align=align)[2] for align in ("wall", "-0.5")]
    wall, moved = (np.sort(table["start_ns"].to_numpy()) for table in tables)
    assert np.array_equal(wall - moved, np.full(len(wall), 500_000_000))


@pytest.mark.parametrize(
    ("align", "error"),
    [
        *((align, UsageError) for align in ("sideways", "nan", "1e30")),
        ("anchors", AlignmentError),
        ("nesting", AlignmentError),
    ],
)
def test_a_failed_merge_leaves_an_older_capture_alone(tmp_path, align, error):
    before, _, _ = merged(tmp_path, "imagenet", [])
    with pytest.raises(error):
        merged(tmp_path, "imagenet", [], align=align, force=True)
    assert open_capture(tmp_path / "c.capture").operation_count() == 596 + before.reconstructed
    assert [path.name for path in tmp_path.iterdir()] == ["c.capture"]
    with pytest.raises(LogError, match="of 2 jobs"):
        merge([sample("imagenet").log, sample("cosmictagger").log], [], tmp_path / "d.capture")


@needs_captures
@pytest.mark.parametrize("log", CAPTURES, ids=lambda log: log.parent.name)
def test_all_captures_merge_by_anchors_and_nesting_alone_agrees(tmp_path, log):
    offsets = {}
    for align in (
        ("auto", "nesting") if log.parent.name in ("imagenet", "cosmoflow", "cosmoflow_threads") else ("auto",)
    ):
        made = merge(
            [log], find_profiles(log.parent / "profile"), tmp_path / "c", MergeOptions(align=align, force=True)
        )
        assert {clock.method for clock in made.info.clock} == {"nesting" if align == "nesting" else "anchors"}
        offsets[align] = {clock.rank: clock.offset_ns for clock in made.info.clock}
        assert sorted(offsets[align]) == [0, 1]
        if align == "auto":
            assert all(clock.interval_ns[1] - clock.interval_ns[0] <= 5000 for clock in made.info.clock)
    assert all(
        abs(offset - offsets["auto"][rank]) < 50_000 for each in offsets.values() for rank, offset in each.items()
    )
    assert made.info.lanes == ("pthread_id" if log.parent.name == "cosmoflow_threads" else "overlap")
    assert made.info.coverage.traceable == (1.0, 1.0)


@pytest.mark.skipif(not THETA.exists(), reason="the Theta log is not beside the checkout")
def test_a_production_log_without_a_profile(tmp_path):
    made = merge([THETA], [], tmp_path / "c.capture")
    assert (made.operations, len(made.info.ranks), made.info.coverage.traceable[1]) == (313_872, 8, 1.0)
    assert {clock.method for clock in made.info.clock} == {"wall"}
    table = open_capture(tmp_path / "c.capture").files
    assert pc.sum(table["stdio_bytes_written"]).as_py() > 3 * 292_770_360
    assert "checkpoint" in table["format"].to_pylist()


def test_a_merge_of_logs_imports_no_reader_of_other_traces(tmp_path):
    program = "import sys, pathlib; from dxt_replay.profiler_merge.merge import merge\n"
    program += "merge([pathlib.Path(sys.argv[1])], [*map(pathlib.Path, sys.argv[3:])], pathlib.Path(sys.argv[2]))\n"
    program += "print(*(name for name in sys.modules if name.startswith('dxt_replay.profiler_merge.tracers.')))"
    files = sample("imagenet")
    command = [sys.executable, "-c", program, *map(str, (files.log, tmp_path / "c.capture", *files.profiles))]
    assert not subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
