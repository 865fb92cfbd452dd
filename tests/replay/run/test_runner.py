"""One replay end to end: real files, real threads; under MPI too."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.ranks.comm import Solo
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.runner import run_replay
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import Op, Span, build_capture, read, write

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
MS = 1_000_000


def small_capture(folder, ranks=2):
    ops, spans = [], []
    for rank in range(ranks):
        for i in range(60):
            at = 5 * MS + i * MS
            ops.append(
                read(0, rank=rank, lane=i % 2, start_ns=at, end_ns=at + 1000, offset=4096 * i, length=4096, step=i)
            )
        ops.append(read(0, rank=rank, start_ns=80 * MS, offset=4096 * 60, length=0))
        ops.append(write(1 + rank, rank=rank, start_ns=81 * MS, length=100_000))
        spans.append(Span("step", 6 * MS, 20 * MS, rank=rank, step=0))
        spans.append(Span("compute", 8 * MS, 12 * MS, rank=rank, step=0))
    files = ["/data/train.bin", *(f"/out/result-{rank}.bin" for rank in range(ranks))]
    return build_capture(folder, ops=ops, files=files, spans=spans, name="source")


def options(target, capture, **choices):
    pacing = Pacing(pace=choices.pop("pace", Pace.TIMED), speed=choices.pop("speed", 1.0))
    return RunOptions(target=target, pacing=pacing, **choices)


def operation_keys(capture, rank):
    """What a rank did, without times, by lane."""
    keys = []
    for batch in capture.operations(rank, columns=["lane", "op", "file_id", "offset", "length", "step"]):
        keys += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(keys, key=lambda key: key[0])


@pytest.mark.parametrize("pace", list(Pace))
def test_a_replay_issues_what_was_recorded(tmp_path, pace):
    source = small_capture(tmp_path)
    stage(plan_stage(source, tmp_path / "twin"))
    output = tmp_path / "replay.capture"
    result = run_replay(source, output, options(tmp_path / "twin", source, pace=pace), Solo())
    replay = open_capture(output)
    for rank in source.ranks:
        assert operation_keys(replay, rank) == operation_keys(source, rank)
    document = result.as_json()
    assert (document["operations"], document["failed"], document["short"]) == (124, 0, 0)
    assert document["bytes"] == {"read": 2 * 60 * 4096, "written": 200_000}
    assert document["core"] == "compiled"
    assert replay.info.made_by["pace"] == pace.value
    assert replay.info.made_by["operations_stored"] == 124
    assert (tmp_path / "twin/dxt-replay-twin/out/result-1.bin").stat().st_size == 100_000


def test_timed_operations_never_begin_before_they_are_due(tmp_path):
    source = small_capture(tmp_path)
    stage(plan_stage(source, tmp_path / "twin"))
    run_replay(source, tmp_path / "r.capture", options(tmp_path / "twin", source), Solo())
    replay = open_capture(tmp_path / "r.capture")
    begin = source.time_span_ns[0]
    for rank in source.ranks:
        recorded = [t for batch in source.operations(rank) for t in batch.column("start_ns").to_pylist()]
        rows = [row for batch in replay.operations(rank) for row in batch.to_pylist()]
        assert sorted(row["due_ns"] for row in rows) == [t - begin for t in recorded]
        assert all(row["due_ns"] <= row["start_ns"] <= row["end_ns"] for row in rows)
    spans = replay.spans.to_pylist()
    assert [(s["rank"], s["kind"], s["step"]) for s in spans] == [
        (0, "step", 0),
        (0, "compute", 0),
        (1, "step", 0),
        (1, "compute", 0),
    ]
    assert all(s["end_ns"] - s["start_ns"] >= 4 * MS for s in spans)


def test_a_second_run_makes_its_written_files_anew(tmp_path):
    source = small_capture(tmp_path, ranks=1)
    stage(plan_stage(source, tmp_path / "twin"))
    written = tmp_path / "twin/dxt-replay-twin/out/result-0.bin"
    chosen = options(tmp_path / "twin", source, pace=Pace.NONE)
    run_replay(source, tmp_path / "r.capture", chosen, Solo())
    os.truncate(written, 500_000)
    run_replay(source, tmp_path / "again.capture", chosen, Solo())
    assert written.stat().st_size == 100_000


def test_jitter_is_measured_until_the_last_process_is_done(tmp_path):
    source = small_capture(tmp_path, ranks=1)
    stage(plan_stage(source, tmp_path / "twin"))
    measured = []

    def measures():
        return "jitter probe" in [thread.name for thread in threading.enumerate()]

    class LastOfAll(Solo):
        def arrive(self):
            waits = iter([False, False, True])

            def all_there():
                measured.append(measures())
                return next(waits)

            return all_there

    result = run_replay(source, tmp_path / "r.capture", options(tmp_path / "twin", source, pace=Pace.NONE), LastOfAll())
    assert measured == [True, True, True]
    assert not measures()
    assert result.as_json()["jitter_us"]["max"] >= 0


@pytest.mark.parametrize(
    ("pacing", "expected"),
    [
        (Pacing(), 0.04),
        (Pacing(speed=4.0), 0.01),
        (Pacing(pace=Pace.THINK, compute_speed=2.0), None),
        (Pacing(pace=Pace.NONE), None),
    ],
)
def test_the_recorded_time_is_told_beside_what_it_is_at_this_speed(tmp_path, pacing, expected):
    ops = [read(0, start_ns=0, length=10), read(0, start_ns=20 * MS, end_ns=40 * MS, length=10)]
    source = build_capture(tmp_path, ops=ops, files=["/data"], name="source")
    stage(plan_stage(source, tmp_path / "twin"))
    found = run_replay(
        source, tmp_path / "r.capture", RunOptions(target=tmp_path / "twin", pacing=pacing), Solo()
    ).as_json()
    assert (found["recorded_s"], found["expected_s"]) == (0.04, expected)


def test_failed_operations_are_recorded_and_the_run_goes_on(tmp_path):
    source = small_capture(tmp_path, ranks=1)
    stage(plan_stage(source, tmp_path / "twin"))
    blocked = tmp_path / "twin/dxt-replay-twin/out"
    shutil.rmtree(blocked)
    chosen = options(tmp_path / "twin", source, pace=Pace.NONE)

    class Blocking(Solo):
        def barrier(self):
            (blocked / "result-0.bin").mkdir(parents=True, exist_ok=True)

    result = run_replay(source, tmp_path / "r.capture", chosen, Blocking())
    assert result.as_json()["errors"] == {"EISDIR": 1}
    assert result.as_json()["operations"] == 62
    rows = [row for batch in open_capture(tmp_path / "r.capture").operations() for row in batch.to_pylist()]
    assert [(row["op"], row["length"]) for row in rows if row["result"] < 0] == [("write", 0)]


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
def test_processes_that_have_no_rank_are_counted_in_one_warning(tmp_path):
    source = small_capture(tmp_path, ranks=2)
    stage(plan_stage(source, tmp_path / "twin"))
    command = [MPIEXEC, "-n", "5", sys.executable, "-m", "dxt_replay.replay.commands.main", "run", str(source.path)]
    command += ["--target", str(tmp_path / "twin"), "-o", str(tmp_path / "r.capture"), "--json", "--pace", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    idle = [text for text in json.loads(done.stdout)["warnings"] if "nothing to do" in text]
    assert [text.split(":")[0] for text in idle] == ["3 of 5 processes had nothing to do"]


def test_a_target_that_is_not_staged_is_told(tmp_path):
    source = small_capture(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetError, match="stage"):
        run_replay(source, tmp_path / "r.capture", options(tmp_path / "empty", source), Solo())


def test_a_signal_ends_the_run_in_order_and_leaves_a_partial_capture(tmp_path):
    ops = [read(0, start_ns=i * 1000 * MS, length=10) for i in range(60)]
    source = build_capture(tmp_path, ops=ops, files=["/a"], name="source")
    stage(plan_stage(source, tmp_path / "twin"))
    sent = []

    def interrupt(progress):
        if progress.done and not sent:
            sent.append(progress.done)
            signal.raise_signal(signal.SIGTERM)

    assert threading.current_thread() is threading.main_thread()
    result = run_replay(source, tmp_path / "r.capture", options(tmp_path / "twin", source), Solo(), interrupt)
    assert result.stopped
    partial = open_capture(tmp_path / "r.capture")
    assert partial.info.partial
    assert 1 <= partial.operation_count() < 60


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
@pytest.mark.parametrize("processes", [2, 3])
def test_under_mpiexec_the_ranks_are_shared_out(tmp_path, processes):
    source = small_capture(tmp_path, ranks=4)
    stage(plan_stage(source, tmp_path / "twin"))
    command = [
        MPIEXEC,
        "-n",
        str(processes),
        sys.executable,
        "-m",
        "dxt_replay.replay.commands.main",
        "run",
        str(source.path),
    ]
    command += ["--target", str(tmp_path / "twin"), "-o", str(tmp_path / "r.capture"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["operations"], document["processes"], document["failed"]) == (4 * 62, processes, 0)
    replay = open_capture(tmp_path / "r.capture")
    for rank in source.ranks:
        assert operation_keys(replay, rank) == operation_keys(source, rank)


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
def test_under_mpiexec_a_bad_target_is_told_once(tmp_path):
    source = small_capture(tmp_path)
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "dxt_replay.replay.commands.main", "run", str(source.path)]
    command += ["--target", str(tmp_path / "nowhere"), "-o", str(tmp_path / "r.capture")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("dxt-replay: error:") == 1
    assert "Traceback" not in done.stderr


def test_the_source_is_never_the_output(tmp_path):
    source = small_capture(tmp_path)
    stage(plan_stage(source, tmp_path / "twin"))
    with pytest.raises(UsageError, match="another name"):
        run_replay(source, source.path, options(tmp_path / "twin", source), Solo())
    assert open_capture(source.path).operation_count() == 124


def test_a_failed_run_leaves_an_older_replay_alone(tmp_path):
    source = small_capture(tmp_path)
    stage(plan_stage(source, tmp_path / "twin"))
    output = tmp_path / "r.capture"
    run_replay(source, output, options(tmp_path / "twin", source, pace=Pace.NONE), Solo())
    before = sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetError):
        run_replay(source, output, options(tmp_path / "empty", source), Solo())
    assert open_capture(output).operation_count() == 124
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "empty"])


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
def test_cold_drops_the_files_of_all_processes(tmp_path):
    ops = [read(rank, rank=rank, start_ns=i, offset=4096 * i, length=4096) for rank in (0, 1) for i in range(50)]
    source = build_capture(tmp_path, ops=ops, files=["/a", "/b"], name="source")
    stage(plan_stage(source, tmp_path / "twin"))
    for file in (tmp_path / "twin").rglob("[ab]"):
        file.read_bytes()
    command = [
        MPIEXEC,
        "-n",
        "2",
        sys.executable,
        "-m",
        "dxt_replay.replay.commands.main",
        "run",
        str(source.path),
        "--cold",
    ]
    command += ["--target", str(tmp_path / "twin"), "-o", str(tmp_path / "r.capture"), "--json", "--pace", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    if document["warnings"]:
        pytest.skip(document["warnings"][0])
    assert document["cache"] == {"policy": "cold", "resident_before_pct": 0.0, "from_page_cache": False}


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: install the mpich wheel")
def test_under_mpiexec_an_error_of_one_process_ends_all(tmp_path):
    source = small_capture(tmp_path, ranks=2)
    stage(plan_stage(source, tmp_path / "twin"))
    arguments = ["run", str(source.path), "--target", str(tmp_path / "twin"), "-o", str(tmp_path / "r.capture")]
    program = f"""
import sys
from dxt_replay.replay.run import context
from dxt_replay.replay.ranks.mpi_world import connect
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.errors import CaptureError
if connect().rank == 1:
    def broken(*arguments):
        raise CaptureError("a part of rank 1 is damaged")
    context.survey_rank = broken
sys.exit(main({arguments!r}))
"""
    done = subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert "process 1: a part of rank 1 is damaged" in done.stderr
    assert not (tmp_path / "r.capture").exists()


def test_a_read_that_moves_fewer_bytes_fails_the_run(tmp_path):
    """The file is made within the run, with half of the bytes that are read of it."""
    ops = [
        write(0, length=10, start_ns=1),
        Op("rename", 0, other_file_id=1, start_ns=2 * MS),
        read(1, length=20, start_ns=3 * MS),
    ]
    source = build_capture(tmp_path, files=["/new", "/final"], ops=ops)
    stage(plan_stage(source, tmp_path / "target"))
    result = run_replay(source, tmp_path / "r.capture", options(tmp_path / "target", source), Solo())
    assert (result.tally.failed, result.tally.short, result.succeeded) == (0, 1, False)


def test_thousands_of_lanes_in_one_process_come_to_an_end(tmp_path):
    lanes = 2000
    ops = [read(0, lane=lane, start_ns=lane * 1000, end_ns=lane * 1000 + 500, length=1) for lane in range(lanes)]
    source = build_capture(tmp_path, ops=ops, files=["/data/train.bin"], name="source")
    stage(plan_stage(source, tmp_path / "twin"))
    choices = options(tmp_path / "twin", source, api="null", pace=Pace.NONE)
    result = run_replay(source, tmp_path / "replay.capture", choices, Solo())
    assert result is not None
    assert (result.tally.operations, result.tally.failed) == (lanes, 0)


def test_the_machine_is_measured_before_a_run_that_lasts_long_enough(tmp_path):
    ops = [read(0, start_ns=i * 300 * MS, length=4096) for i in range(5)]
    source = build_capture(tmp_path, ops=ops, files=["/data/train.bin"], name="source")
    stage(plan_stage(source, tmp_path / "twin"))
    for pace, speed, measured in ((Pace.TIMED, 1.0, True), (Pace.TIMED, 4.0, False), (Pace.NONE, 1.0, False)):
        chosen = options(tmp_path / "twin", source, pace=pace, speed=speed, force=True)
        run_replay(source, tmp_path / "r.capture", chosen, Solo())
        record = replay_record(open_capture(tmp_path / "r.capture").info)
        assert (record.jitter_before_us is not None) == measured
        assert 0 < record.processors_pct <= 110
