"""What each command says first, and in few lines: doubt, a machine that stood still, what was generated."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import dxt_replay
from dxt_replay.replay.show import compare, make, predict, run, summary
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import BETWEEN_STEPS, CaptureInfo, Coverage, Job, Unseen
from tests.capture_builder import Span, build_capture, read
from tests.darshan_writer import JobSpec, ModuleSpec, encode_counters, write_log
from tests.places import SMALL, recorded
from tests.schemas import schema

MS = 1_000_000
MAPPED = Coverage(bytes=None, operations=1.0, unseen=(Unseen(kind="mapped", name="/data/m", bytes=None),))


def steps_of(folder, count, step_ms, *, wait_ms=0, wait="next", read_ms=(0, 1), length=4096, **more):
    """Each step waits for its batch, then does something else; one read from `read_ms` on, for the second number of
    milliseconds."""
    spans, ops = [], []
    for step in range(count):
        begin = step * step_ms * MS
        spans.append(Span("step", begin, begin + step_ms * MS, step=step))
        if wait_ms:
            spans.append(Span("input_wait", begin, begin + wait_ms * MS, step=step, name=wait))
        start = begin + read_ms[0] * MS
        end = start + read_ms[1] * MS
        ops.append(read(0, offset=4096 * step, length=length, start_ns=start, end_ns=end, step=step))
    return build_capture(folder, name="source", files=["/data/a"], ops=ops, spans=spans, **more).path


def job(folder, *, count=40, coverage=None, cpu_pct=0, made_pct=None, **steps):
    """Steps of 100 ms. cpu_pct: of the loop's thread; made_pct: of the waits, in which recorded threads computed."""
    made_by = {"program": "dxt-replay", "command": "merge", "operations_stored": count}
    if made_pct is not None:
        loop, waited = count * 100 * MS, count * steps["wait_ms"] * MS
        marks = {"rank": 0, "loop_ns": loop, "cpu_ns": loop * cpu_pct // 100, "device_ns": 0}
        made_by["marks"] = [{**marks, "wait_ns": waited, "made_ns": waited * made_pct // 100}]
    coverage = coverage or Coverage(bytes=1.0, operations=1.0)
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=5.0), ranks=(0,), made_by=made_by, coverage=coverage)
    return steps_of(folder, count, 100, info=info, **steps)


CASES = {
    "its reads explain its waits": ({"wait_ms": 60, "read_ms": (0, 60), "made_pct": 1}, "known", "Storage limits"),
    "recorded threads compute in its waits": (
        {"wait_ms": 60, "made_pct": 95}, "known", "Training waits for input to be prepared.",
    ),
    "no processor time was recorded": ({"wait_ms": 60}, "known", "What else training waits for is not known"),
    "nothing explains its waits": (
        {"wait_ms": 80, "made_pct": 1}, "not known",
        "on other storage is not known: training waits for input during 78 %",
    ),
    "nothing explains a part of its waits": (
        {"wait_ms": 40, "read_ms": (0, 5), "made_pct": 10}, "bounded",
        "on other storage is known within bounds only: training waits for input during",
    ),
    "its steps fetch their own batch": (
        {"wait_ms": 1, "read_ms": (10, 80), "wait": BETWEEN_STEPS, "made_pct": 0, "cpu_pct": 10}, "not known",
        "steps that fetch their own batch hide it; mark the fetch. Storage cost at most 3.600 s, 90.0 % of the loop's",
    ),
    "page faults were not traced": (
        {"wait_ms": 60, "read_ms": (0, 60), "coverage": MAPPED}, "not known",
        "on other storage is not known: 1 file was opened and never read by a call",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_all_commands_begin_with_the_same_doubt(tmp_path, say, case):
    given, state, words = CASES[case]
    capture, changed = job(tmp_path, **given), tmp_path / "t.capture"
    (tmp_path / "twin").mkdir()
    say(f"stage {capture} --target {tmp_path}/twin")
    said, doubts = {}, {}
    for line in (
        f"summary {capture}",
        f"simulate {capture} --storage null",
        f"transform {capture} --readers 2 -o {changed} --force",
        f"run {capture} --target {tmp_path}/twin --pace steps --speed 100 -o {tmp_path}/r.capture --force",
    ):
        name = line.split()[0]
        said[name], found = say(line), say(f"{line} --json")
        doubts[name] = (found["storage_limit"] if name == "summary" else found)["doubt"]
    assert words in said["summary"].replace("\n", " ")
    assert doubts["summary"]["state"] == state
    assert all(found == doubts["summary"] for found in doubts.values())
    first = said["summary"].replace("\n", " ").partition(". ")[0]
    if state == "not known":
        said["summary of what transform wrote"] = say(f"summary {changed}")  # no firmer than its source
    begins = {name: text.startswith("How long this training takes on other storage") for name, text in said.items()}
    assert set(begins.values()) == {state != "known"}, said
    assert state == "known" or all(said[name].replace("\n", " ").startswith(first) for name in doubts)


def test_a_loop_that_shows_no_waits_is_doubted_where_its_reads_would_last(tmp_path, say):
    """So small a part of the recorded loop hides nothing; on slow storage, or at a higher speed, it may."""
    capture, slow = job(tmp_path, count=10, length=1 << 22), tmp_path / "slow.yaml"
    slow.write_text("storage_model: 1\nname: slow\noperations:\n  read: {latency: 50ms, bandwidth: 1GB/s}\n")
    (tmp_path / "twin").mkdir()
    say(f"stage {capture} --target {tmp_path}/twin")
    run = f"run {capture} --target {tmp_path}/twin --pace steps --force -o {tmp_path}/r"
    for line, doubted in (
        (f"simulate {capture} --storage null", False),
        (f"simulate {capture} --storage {slow}", True),
        (run, False),
        (f"{run} --speed 100000", True),
    ):
        unknown = "How long this training takes on other storage is not known: reads would last up to "
        assert say(line).startswith(unknown) == doubted


@pytest.mark.parametrize("pace", ["timed", "steps"])
def test_a_process_that_was_stopped_is_disturbed_and_no_storage_is_blamed(tmp_path, pace, say):
    source, twin, output = steps_of(tmp_path, 30, 50), tmp_path / "twin", tmp_path / "r.capture"
    twin.mkdir()
    say(f"stage {source} --target {twin}")
    words = f"-m dxt_replay run {source} --target {twin} -o {output} --pace {pace} --json".split()
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as running:
        while not list(tmp_path.glob(".r.capture*")):
            time.sleep(0.01)
        time.sleep(0.7)  # of the 1.5 s that the replay takes
        os.kill(running.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(running.pid, signal.SIGCONT)
        found = json.loads(running.communicate()[0])
    assert found["stood_still_s"] == pytest.approx(0.5, abs=0.15)
    if pace == "steps":
        assert found["training"]["replayed_s"] == pytest.approx(found["elapsed_s"] - 0.5, abs=0.25)
    said = say(f"compare {source} {output}")
    assert "isturbed: stood still for 0." in said.split("Workload:")[0]
    assert "too slow" not in said
    assert "could not keep" not in said


@pytest.mark.parametrize(("option", "cached"), [("", False), ("--warm", True), ("--cold", False)])
def test_a_run_is_cold_unless_it_is_asked_to_be_warm(tmp_path, option, cached, say):
    source, twin, replay = steps_of(tmp_path, 4, 50), tmp_path / "twin", tmp_path / "replay.capture"
    twin.mkdir()
    say(f"stage {source} --target {twin}")
    next(twin.rglob("a")).read_bytes()
    first = say(f"run {source} --target {twin} -o {replay} --pace none -q {option}").partition("\n")[0]
    dropped = dxt_replay.open_capture(replay).info.made_by["result"]["cache"]
    if not cached and dropped["resident_before_pct"]:
        pytest.skip("this file system keeps its pages")
    assert ("from the page cache" in first) == cached, first
    said = say(f"compare {source} {replay}")
    assert ("from the page cache" in said.partition("\n")[0]) == cached
    assert ("Storage here, from the page cache, was" in said) == cached


def test_what_was_generated_is_never_called_recorded(tmp_path, say):
    source, twin, replay = tmp_path / "w.capture", tmp_path / "twin", tmp_path / "replay.capture"
    small = ("dataset.num_files_train=8", "dataset.num_files_eval=4", "train.epochs=1", "train.computation_time=0.001")
    dxt_replay.generate("default", 1, source, overrides=small)
    twin.mkdir()
    dxt_replay.stage(source, twin)
    for line in (
        f"summary {source}",
        f"simulate {source} --storage nvme",
        f"run {source} --target {twin} --pace steps -o {replay}",
        f"compare {source} {replay} --details",
        f"transform {source} --compute-speed 2 -o {tmp_path}/t.capture",
    ):
        first, said = say(f"{line} -q").split("\n", 1)
        assert first == "Generated, not recorded: times of an assumed device of 1 GB/s."
        assert "recorded" not in said.lower(), line
    assert not say(f"summary {replay} -q").startswith("Generated"), "a replay was measured"


# ---------------------------------------------------------------------------------------------- a log without a trace
def test_one_rank_that_writes_a_shared_file_for_all(tmp_path, say):
    name = b"/scratch/out.h5"
    of_all = {"record_id": record_id(name), "rank": -1}
    counted = {
        "POSIX": {"POSIX_OPENS": 1, "POSIX_WRITES": 2000, "POSIX_BYTES_WRITTEN": 2_000_000, "POSIX_F_WRITE_TIME": 12.0},
        "MPI-IO": {"MPIIO_COLL_WRITES": 80, "MPIIO_BYTES_WRITTEN": 2_000_000, "MPIIO_F_WRITE_TIME": 160.0,
                   "MPIIO_F_SLOWEST_RANK_TIME": 20.0},
    }  # fmt: skip
    path = write_log(
        tmp_path / "a.darshan",
        job=JobSpec(nprocs=8, exe=b"app --api-key S3CRET --lr 1 TOKEN=S3CRET"),
        names={record_id(name): name},
        modules={
            module: ModuleSpec(version=version, streams=[encode_counters(module, [of_all | counted[module]], version)])
            for module, version in (("POSIX", 4), ("MPI-IO", 3))
        },
    )
    said = say(f"summary {path} --details")
    assert "the slowest rank, 0, spent 20.000 s of 60.864 s in MPIIO calls; the mean of the ranks is 20.000 s" in said
    assert "app --api-key *** --lr 1 TOKEN=***" in said
    assert "S3CRET" not in said


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("e3sm_io_heatmap_only", {"small-reads", "small-writes", "misaligned", "re-reads", "shared-file"}),
        ("imbalanced-io", {"small-reads", "small-writes", "misaligned", "shared-file", "rank-imbalance"}),
    ],
)
def test_public_logs_have_what_drishti_finds(name, codes, say):
    line = f"summary {recorded(f'darshan-logs/{name}.darshan')} --show findings --json"
    assert codes <= {each["code"] for each in say(line)["tables"]["findings"]}


# ------------------------------------------------------------------------------------------ in brief, and in a notebook
WITH_STEPS = ("cosmoflow_threads", "torch_images", "torch_shards", "torch_eval", "torch_mmap", "dftracer")
JOBS = {
    "cosmoflow_threads": ("captures/cosmoflow_threads/job.darshan", "jobs/cosmoflow_threads"),
    "torch_images": ("jobs/torch_images/logs", "jobs/torch_images/profile"),
    "torch_shards": ("jobs/torch_shards/logs", "jobs/torch_shards/profile"),
    "torch_eval": ("captures/torch_eval/logs", "captures/torch_eval/profile"),
    "torch_mmap": ("captures/torch_mmap/mmap/logs", "captures/torch_mmap/mmap/profile"),
    "workers": ("jobs/workers", None),
    "counters": ("jobs/counters/hdf5_file_opens_only.darshan", None),
    "strace": ("other-sources/strace/one.strace.gz", None),
    "dftracer": ("jobs/dftracer", None),
}
"""Name of a recorded job -> its logs and profiles."""


@pytest.mark.parametrize("name", JOBS)
def test_a_recorded_job_is_summed_up_in_few_lines(name, tmp_path, monkeypatch, say):
    logs, profiles = JOBS[name]
    profiles = [SMALL / profiles] if profiles else []
    capture = dxt_replay.merge(SMALL / logs, tmp_path / "a.capture", profiles=profiles).capture
    monkeypatch.setenv("COLUMNS", "80")
    for line, most in (
        (f"summary {capture}", 15),
        (f"summary {capture} --show findings", 20 if name != "torch_eval" else 30),
        (f"simulate {capture} --storage nvme", 12),
    ):
        said = say(line, status=0 if name in WITH_STEPS or "simulate" not in line else 2)
        assert len(said.splitlines()) <= most, said
    shown = dxt_replay.summary(capture)
    assert len(repr(shown)) <= 300
    assert "<table>" in shown._repr_html_()


FIGURES = {"summary": summary.FIGURES, "run": run.FIGURES, "compare": compare.FIGURES}
FIGURES |= {**predict.FIGURES, **make.FIGURES}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_the_name_in_the_reference_that_it_has_in_text(name):
    """But for one in an object whose keys the schema does not list."""
    shown = {figure.label for figure in FIGURES[name] if figure.keys and figure.keys[0] != "overhead.fraction_pct"}
    assert shown
    assert {label for label in shown if f'"title": {json.dumps(label)}' not in json.dumps(schema(name))} == set()
