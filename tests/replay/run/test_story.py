"""One replay end to end: real files, real threads; under MPI too."""

import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading

import pytest

from dxt_replay.replay.engine.items import wait
from dxt_replay.replay.plan import spill
from dxt_replay.replay.plan.pacing import Pace, Pacing, RunOptions
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.run.result import Repeats
from dxt_replay.replay.run.story import outputs_of, run_repeatedly, run_replay
from dxt_replay.replay.target.protocol import LOCK_NAME
from dxt_replay.replay.target.stage import plan_stage, stage, unstage
from dxt_replay.replay.target.targets import locked_target
from dxt_replay.traces.errors import ReplayError, TargetError, UsageError
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.schema import DEPENDENCY_COLUMNS
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import OpsWriter
from tests.capture_builder import File, Span, build_capture, read, write
from tests.places import MPIEXEC, ROOT, needs_mpi, open_below
from tests.simulated_application import MS, US, Storage
from tests.simulated_known_loader import KnownJob
from tests.simulated_known_loader import run as simulated

PIB = 1 << 50


def staged(folder, ops, files, spans=None):
    source = build_capture(folder, ops=ops, files=files, spans=spans or [], name="source")
    stage(plan_stage(source, folder / "twin"))
    return source


def small(folder, ranks=2):
    ops, spans = [], []
    for rank in range(ranks):
        for i in range(60):
            times = {"start_ns": (5 + i) * MS, "end_ns": (5 + i) * MS + 1000}
            ops.append(read(0, rank=rank, lane=i % 2, offset=4096 * i, length=4096, step=i, **times))
        ops.append(read(0, rank=rank, start_ns=80 * MS, offset=4096 * 60, length=0))
        ops.append(write(1 + rank, rank=rank, start_ns=81 * MS, length=100_000))
        spans += [Span("step", 6 * MS, 20 * MS, rank=rank, step=0), Span("compute", 8 * MS, 12 * MS, rank=rank, step=0)]
    return staged(folder, ops, ["/data/train.bin", *(f"/out/result-{rank}.bin" for rank in range(ranks))], spans)


def replayed(source, pace=Pace.NONE, output="r.capture", comm=None, report=lambda progress: None, **choices):
    folder = source.path.parent
    pacing = pace if isinstance(pace, Pacing) else Pacing(pace=pace)
    options = RunOptions(**{"target": folder / "twin", "pacing": pacing, **choices})
    return run_replay(source, folder / output, options, comm or Solo(), report)


def mpi_job(processes, *words):
    """Python with these words in so many processes."""
    command = list(map(str, (MPIEXEC, "-n", processes, sys.executable, *words)))
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


def under_mpi(source, processes, *more, program=""):
    words = ["run", str(source.path), "--target", str(source.path.parent / "twin")]
    words += ["-o", str(source.path.parent / "r.capture"), *more]
    script = f"import sys\nfrom dxt_replay.replay.commands.main import main\n{program}\nsys.exit(main({words!r}))"
    return mpi_job(processes, "-c", script)


def operation_keys(capture, rank, *more):
    """What a rank did, without times, by lane."""
    names = ["lane", "op", "file_id", "offset", "length", "step", *more]
    rows = [tuple(row.values()) for batch in capture.operations(rank, columns=names) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row[0])


def rows_of(capture):
    return [row for batch in capture.operations() for row in batch.to_pylist()]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("pace", list(Pace))
def test_a_replay_issues_what_was_recorded_and_makes_its_files_anew(tmp_path, pace):
    source, written = small(tmp_path), tmp_path / "twin/dxt-replay-twin/out/result-1.bin"
    for number in range(2):
        document = replayed(source, pace, f"{number}.capture").as_json()
        replay = open_capture(tmp_path / f"{number}.capture")
        for rank in source.ranks:
            assert operation_keys(replay, rank) == operation_keys(source, rank)
        assert (document["operations"], document["failed"], document["short"]) == (124, 0, 0)
        assert document["bytes"] == {"read": 2 * 60 * 4096, "written": 200_000}
        assert (replay.info.made_by["pace"], replay.info.made_by["operations_stored"]) == (pace.value, 124)
        assert written.stat().st_size == 100_000
        os.truncate(written, 500_000)
    if pace is Pace.TIMED:
        rows, begin, spans = rows_of(replay), source.time_span_ns[0], replay.spans.to_pylist()
        assert sorted(row["due_ns"] for row in rows) == sorted(row["start_ns"] - begin for row in rows_of(source))
        assert all(row["due_ns"] <= row["start_ns"] <= row["end_ns"] for row in rows)
        expected = [(rank, kind, 0) for rank in (0, 1) for kind in ("step", "compute")]
        assert [(s["rank"], s["kind"], s["step"]) for s in spans] == expected
        assert all(s["end_ns"] - s["start_ns"] >= 4 * MS for s in spans)


# ------------------------------------------------------------------------------------------------ what is measured


def test_jitter_is_measured_until_the_last_process_is_done(tmp_path):
    measured = []

    class LastOfAll(Solo):
        def arrive(self):
            waits = iter([False, False, True])
            return lambda: measured.append("jitter probe" in threads()) or next(waits)

    def threads():
        return [thread.name for thread in threading.enumerate()]

    result = replayed(small(tmp_path, ranks=1), comm=LastOfAll())
    assert (measured[-3:], "jitter probe" in threads()) == ([True] * 3, False)
    assert result.as_json()["jitter_us"]["max"] >= 0


def test_the_machine_is_measured_before_a_run_that_lasts_long_enough(tmp_path, monkeypatch):
    monkeypatch.setattr("dxt_replay.replay.run.story.LEAST_MEASURED_NS", 100 * MS)
    source = staged(tmp_path, [read(0, start_ns=i * 30 * MS, length=4096) for i in range(5)], ["/data/train.bin"])
    for pace, speed, measured in ((Pace.TIMED, 1.0, True), (Pace.TIMED, 4.0, False), (Pace.NONE, 1.0, False)):
        replayed(source, Pacing(pace=pace, speed=speed), force=True)
        record = replay_record(open_capture(tmp_path / "r.capture").info)
        assert (record.jitter_before_us is not None) == measured
        assert 0 < (record.processors_pct or 0) <= 110


# --------------------------------------------------------------------------------------------------------- refused


def test_what_cannot_be_replayed_is_told_and_leaves_an_older_replay_alone(tmp_path):
    source = small(tmp_path)
    replayed(source)
    (tmp_path / "empty").mkdir()
    before = names(tmp_path)
    refused = [
        (UsageError, "another name", {"output": source.path.name}),
        (TargetError, "stage", {"target": tmp_path / "empty", "force": True}),
        (TargetError, "exists", {}),
        (UsageError, "--api direct is for POSIX", {"api": "stdio", "direct": True, "force": True}),
    ]
    for kind, said, choices in refused:
        with pytest.raises(kind, match=said):
            replayed(source, **choices)
    assert [open_capture(tmp_path / name).operation_count() for name in ("source.capture", "r.capture")] == [124, 124]
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    ("offset", "counted", "refused"),
    [(PIB, PIB, True), (PIB, 4096, False), (PIB, None, False), (0, PIB, False)],
    ids=["more than there is", "a hole", "not counted", "written again and again"],
)
def test_a_run_that_the_disk_has_no_room_for_is_refused(tmp_path, offset, counted, refused):
    file = File("/out/result.bin", size=4096, counters={} if counted is None else {"posix_bytes_written": counted})
    source = staged(tmp_path, [write(0, offset=offset, length=4096)], [file])
    if refused:
        with pytest.raises(TargetError, match=r"the run writes 1\.00 PiB and .* are free"):
            replayed(source)
        assert names(tmp_path) == ["source.capture", "twin"]
    replayed(source, api="null" if refused else "auto")


def test_a_replay_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    """Nor an open file without a name, as long as the error is looked at: NFS and FUSE keep its directory."""
    source = staged(tmp_path, [write(0, length=4096)], ["/out/a"])

    def refuse(*_):
        raise TargetError("no space left")

    monkeypatch.setattr(OpsWriter, "write", refuse)
    with pytest.raises(TargetError, match="no space left") as held:
        replayed(source)
    assert held.value.__traceback__ is not None
    assert not [name for name in open_below(tmp_path) if "/.r.capture." in name]
    assert names(tmp_path) == ["source.capture", "twin"]


def test_a_system_without_threads_is_told(tmp_path, monkeypatch):
    source, start = small(tmp_path, ranks=1), threading.Thread.start

    def refuse(thread):
        if thread.name == "lane-0.1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ReplayError, match=r"each of its 2 lanes, and the system refused number 2.*--part ranks"):
        replayed(source)
    assert names(tmp_path) == ["source.capture", "twin"]


# ------------------------------------------------------------------------------------------------- stopped, repeated


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_in_order_and_leaves_a_partial_capture(tmp_path, number):
    """In a run that is repeated, the stopped one is the last."""
    later = 3600 * 1000 * MS
    ops = [read(0, lane=i % 2, offset=64 * i, length=64, start_ns=later * (i > 3) + i) for i in range(400)]
    source, sent = staged(tmp_path, ops, ["/a"]), []

    def interrupt(progress):
        if progress.done == 4 and not sent:
            sent.append(progress.done)
            signal.raise_signal(number)

    options = RunOptions(target=tmp_path / "twin")
    (run,) = run_repeatedly(source, outputs_of(tmp_path / "r.capture", 5), options, Solo(), interrupt)
    assert (run.stopped, run.succeeded, run.tally.operations) == (True, False, 4)
    partial = open_capture(tmp_path / "r.1.capture")
    assert (partial.info.partial, partial.operation_count()) == (True, 4)


def test_each_run_has_its_capture_its_pages_dropped_and_the_median_is_theirs(tmp_path):
    source, outputs = small(tmp_path), outputs_of(tmp_path / "r.capture", 3)
    options = RunOptions(target=tmp_path / "twin", pacing=Pacing(pace=Pace.NONE), cold=True)
    runs = run_repeatedly(source, outputs, options, Solo())
    assert {(run.cold, run.resident_before_pct or 0.0) for run in runs} == {(True, 0.0)}
    document = Repeats(runs=tuple(runs)).as_json()
    elapsed = [run["elapsed_s"] for run in document["runs"]]
    assert document["elapsed_s"] == {"median": statistics.median(elapsed), "min": min(elapsed), "max": max(elapsed)}
    assert [open_capture(path).operation_count() for path in outputs] == [124] * document["repeats"]
    assert names(tmp_path) == [*(f"r.{number}.capture" for number in (1, 2, 3)), "source.capture", "twin"]


HOLDING = """
import signal, sys
from dxt_replay.replay.target.targets import locked_target
with locked_target(sys.argv[1]):
    print("held", flush=True)
    signal.pause()
"""


def test_a_target_has_one_run_at_a_time_and_a_killed_one_does_not_count(tmp_path):
    source, target = small(tmp_path), tmp_path / "twin"

    def second(progress):
        with pytest.raises(TargetError, match="another process"), locked_target(target):
            pass

    replayed(source, report=second)
    written = target / "dxt-replay-twin/out/result-0.bin"
    before = written.stat()
    command = [sys.executable, "-c", HOLDING, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(TargetError, match=r"another process is staging into .* or replaying on it"):
            replayed(source, output="second.capture")
        with pytest.raises(TargetError, match="another process"):
            unstage(target)
        other.kill()
    assert os.path.samestat(written.stat(), before)
    assert names(tmp_path) == ["r.capture", "source.capture", "twin"]
    assert (target / LOCK_NAME).exists()
    replayed(source, force=True)
    assert not (target / LOCK_NAME).exists()


# -------------------------------------------------------------------------------------------------- several processes


BROKEN = """
from dxt_replay.replay.plan import layers
from dxt_replay.replay.ranks.mpi import connect
from dxt_replay.traces.errors import CaptureError
if connect().rank == 1:
    def broken(*arguments):
        raise CaptureError("a part of rank 1 is damaged")
    layers.survey_rank = broken
"""


@needs_mpi
def test_under_mpiexec_the_ranks_are_shared_out_idle_processes_counted_and_the_files_of_all_dropped(tmp_path):
    source = small(tmp_path)
    for file in (tmp_path / "twin").rglob("*.bin"):
        file.read_bytes()
    done = under_mpi(source, 3, "--json", "--pace", "none", "--cold")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["operations"], document["processes"], document["failed"]) == (2 * 62, 3, 0)
    replay = open_capture(tmp_path / "r.capture")
    for rank in source.ranks:
        assert operation_keys(replay, rank) == operation_keys(source, rank)
    *others, idle = document["warnings"]
    assert idle.startswith("1 of 3 processes had nothing to do")
    if not others:  # the file system drops pages
        assert document["cache"] == {"policy": "cold", "resident_before_pct": 0.0, "from_page_cache": False}


@needs_mpi
@pytest.mark.parametrize(
    ("program", "said"), [("", "dxt-replay stage"), (BROKEN, "process 1: a part of rank 1 is damaged")]
)
def test_under_mpiexec_an_error_ends_all_and_is_told_once(tmp_path, program, said):
    source = small(tmp_path)
    if not program:
        shutil.rmtree(tmp_path / "twin")
    done = under_mpi(source, 2, program=program)
    assert done.returncode == 2
    assert done.stderr.count("dxt-replay: error:") == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r.capture").exists()


# ------------------------------------------------------------------------------------------------- known dependencies

JOB = KnownJob(steps=6, readers=2, compute_ns=2 * MS, ready_ns=300 * US, evaluation_steps=2, checkpoint_every=4)


def known(folder, readers=2):
    job = dataclasses.replace(JOB, readers=readers)
    source = simulated(job, Storage(latency_ns=100 * US)).capture(folder, job)
    stage(plan_stage(source, source.path.parent / "twin"))
    return source


@pytest.mark.parametrize("readers", [0, 2])
def test_dependency_columns_pass_through_replays_which_keep_to_them(tmp_path, readers):
    source = earlier = known(tmp_path, readers)

    def keys(capture, rank):
        return [row[:5] + row[6:] for row in operation_keys(capture, rank, *DEPENDENCY_COLUMNS)]

    for name in ("first.capture", "second.capture"):
        replayed(earlier, Pace.STEPS, name)
        earlier = open_capture(source.path.parent / name)
        assert earlier.info.dependencies == "known"
        for rank in source.ranks:
            assert keys(earlier, rank) == keys(source, rank)
            spans = earlier.spans.to_pylist()
            waits = [row for row in spans if row["rank"] == rank and row["kind"] == "input_wait"]
            for row in (row for row in rows_of(earlier) if row["rank"] == rank):
                assert row["feeds"] is None or row["end_ns"] <= waits[row["feeds"]]["end_ns"]
                if row["follows"] is not None:
                    assert row["start_ns"] >= waits[row["follows"]]["end_ns" if row["follows_end"] else "start_ns"]
    replayed(source, Pace.TIMED, "timed.capture")
    timed = open_capture(source.path.parent / "timed.capture")
    assert timed.info.dependencies == "inferred", "without batch fetches"
    assert {row[-3:] for row in operation_keys(timed, 0, *DEPENDENCY_COLUMNS)} == {(None, None, None)}


def test_rows_beyond_memory_wait_in_a_file_and_come_back_in_order(tmp_path, monkeypatch):
    """Each queue holds five rows, and a piece of the file a few more."""
    written, write_rows = list[int](), spill.SpillFile.write

    def write(file, extent, offset, data):
        written.append(extent)
        write_rows(file, extent, offset, data)

    for name, value in (("MEMORY_ROWS", 5), ("LEAST_ROWS", 5), ("EXTENT_BYTES", 700)):
        monkeypatch.setattr(spill, name, value)
    monkeypatch.setattr(spill.SpillFile, "write", write)
    monkeypatch.setattr("dxt_replay.replay.run.recorded.CHUNK_ROWS", 3)
    source = known(tmp_path)
    replayed(source, Pace.STEPS)
    replay = open_capture(source.path.parent / "r.capture")
    for rank in source.ranks:
        assert operation_keys(replay, rank) == operation_keys(source, rank)
        begins = [row["start_ns"] for row in rows_of(replay) if row["rank"] == rank]
        assert begins == sorted(begins)
    assert len(written) > len(set(written)) > 3, "pieces are used again"


def test_lanes_that_wait_for_each_other_end_the_run(tmp_path, monkeypatch):
    source = known(tmp_path)

    def never(**fields):
        return wait(**{**fields, "until": fields["until"] + 1_000_000})

    monkeypatch.setattr("dxt_replay.replay.causal.items.wait", never)
    monkeypatch.setattr("dxt_replay.replay.run.feeder.STUCK_NS", 50 * MS)
    with pytest.raises(ReplayError, match="lanes wait for each other: the causal model contradicts itself"):
        replayed(source, Pace.STEPS, "stuck.capture")
    assert not (source.path.parent / "stuck.capture").exists()
