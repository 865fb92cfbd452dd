"""`regress`, `capacity` and `simulate --check`: real runs, and storage and machines of which the answer is known."""

import json
import mmap
import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as xml
from importlib.util import find_spec

import pytest

import dxt_replay
from dxt_replay.replay import capacity as module
from dxt_replay.replay.capacity import MACHINE, MEMORY, NOTHING, STORAGE, LoadRun, Search, searched
from dxt_replay.replay.commands import capacities, predicting
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.regress.record import read_record
from dxt_replay.replay.show.predict import capacity_headline
from dxt_replay.traces.errors import ReplayError, TargetError, UsageError
from dxt_replay.traces.measures.span_times import computed_in_loops
from tests import simulated_application as application
from tests.capture_builder import Span, build_capture, read
from tests.object_servers import ObjectServer
from tests.places import MPIEXEC, needs_mpi
from tests.replay.causal.test_model import FAST, derived

MS = 1_000_000


# ------------------------------------------------------------------------------------------------------------- regress
def source_of(folder, ranks=1):
    """Ten steps of 2 ms; each waits for a read."""
    ops, spans = [], []
    for rank, step in ((rank, step) for rank in range(ranks) for step in range(10)):
        at = step * 2 * MS
        ops.append(read(0, rank=rank, start_ns=at, end_ns=at + 20_000, offset=4096 * step, length=4096, step=step))
        parts = (("step", 0, 2 * MS), ("input_wait", 0, 20_000), ("compute", 30_000, 2 * MS))
        spans += [Span(kind, at + begin, at + end, rank=rank, step=step) for kind, begin, end in parts]
    return build_capture(folder, ops=ops, files=["/a"], spans=spans, name="s").path


@pytest.fixture
def line(tmp_path):
    """Of six pairs."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    places = f"--baseline {tmp_path}/old --candidate {tmp_path}/new"
    return f"regress {source_of(tmp_path, 2)} {places} --repeats 6 --json --report {tmp_path}/junit.xml"


def test_real_data_are_read_where_they_are_and_noise_fails_where_it_is_asked_to(tmp_path, line, capsys):
    """No six pairs of 20 ms tell a change of 0.001 %."""
    for side in ("baseline", "candidate"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a").write_bytes(os.urandom(1 << 17))
        line += f" --map {side}:/={tmp_path}/{side}"
    status = main(shlex.split(f"{line} --threshold 0.001 --fail-inconclusive"))
    document = json.loads(capsys.readouterr().out)
    assert all((run["failed"], run["bytes"]["read"]) == (0, 2 * 40960) for run in document["runs"])
    assert not list((tmp_path / "new").rglob("a"))
    assert (document["primary"], document["pace"], document["cache"]["policy"]) == ("elapsed_s", "steps", "cold")
    if document["verdict"] == "inconclusive":
        assert (status, xml.parse(tmp_path / "junit.xml").getroot().attrib["failures"]) == (1, "1")


def test_a_kept_replay_is_refused_before_anything_runs(tmp_path, line, say):
    kept = tmp_path / "kept" / "pair-002-candidate.capture"
    kept.mkdir(parents=True)
    (kept / "precious").write_text("words", encoding="utf-8")
    say(f"{line} -o {kept.parent} --force", status=2)
    assert "pair-002-candidate.capture exists and is not a capture" in say.err
    assert not list(tmp_path.rglob("dxt-replay-twin")), "staged for nothing"


def test_one_directory_twice_is_noise_and_its_record_is_compared_with(tmp_path, say):
    twin, first, second = tmp_path / "t", tmp_path / "first.json", tmp_path / "second.json"
    twin.mkdir()
    base = f"regress {source_of(tmp_path)} --pace none --warm --threshold 1000 --repeats"
    say(f"{base} 5 {twin}", status=2)
    assert "give --repeats 6 or more" in say.err
    said = say(f"{base} 6 {twin} --record {first}").splitlines()
    assert said[0].startswith("The same directory twice: this is noise. ")
    assert "The storage itself" not in said[1]
    written = json.loads(first.read_text())
    assert written["schema_version"] == 2
    assert (written["options"]["pace"], written["options"]["cache"]) == ("none", "as found")
    assert written["result"]["headline"].startswith("The same directory twice: this is noise. ")
    assert written["result"]["verdict"] not in ("regression", "improvement")
    paired = [run for run in written["runs"] if run["pair"]]
    document = say(f"{base} 4 --baseline {first} --candidate {twin} --record {second} --json")
    assert (document["against"]["record"], document["against"]["runs"]) == ("first.json", 12)
    assert [run["side"] for run in document["runs"]] == ["baseline"] * 12 + ["candidate"] * 5
    assert document["environment"]["differences"] == []
    assert document["metrics"]["elapsed_s"]["baseline"] == [
        run["metrics"]["elapsed_s"] for run in sorted(paired, key=lambda run: run["start_ns"])
    ]
    assert len(read_record(second).runs) == 5
    say(f"{base} 2 --baseline {second} --candidate {twin}", status=2)
    assert "runs against this record are needed" in say.err


@needs_mpi
def test_under_mpiexec_all_processes_take_part_and_one_speaks(tmp_path, line):
    program = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "dxt_replay.replay.commands.main"]
    words = shlex.split(f"{line} --threshold 1000")  # no noise is so large
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [run["operations"] for run in document["runs"]] == [20] * 14
    assert document["order"] == [run["side"] for run in document["runs"] if not run["warmup"]]
    assert xml.parse(tmp_path / "junit.xml").getroot().tag == "testsuites"


# ------------------------------------------------------------------------------------------------------------ capacity
WORKLOAD = """\
framework: pytorch
workflow: {generate_data: false, train: true, checkpoint: false}
dataset: {data_folder: data, format: npz, num_files_train: 16, num_samples_per_file: 1, record_length: 2048}
reader: {data_loader: pytorch, batch_size: 4, read_threads: 1, prefetch_size: 2}
train: {epochs: 1, computation_time: 0.02}
"""


@pytest.fixture
def workload(tmp_path):
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    (tmp_path / "target").mkdir()
    return tmp_path / "small.yaml"


class Made:
    """Measures a made storage that carries `carried` ranks, on a machine that keeps up with `machine` of them.

    busy_pct: of the processors in runs with storage beyond `carried`. used: accelerators, where it is too much and not.
    free: the same of runs without storage.
    """

    def __init__(self, carried, machine, busy_pct=None, used=(60.0, 95.0), free=None):
        self.carried, self.machine, self.busy_pct, self.used, self.free = carried, machine, busy_pct, used, free
        self.free_pct, self.in_memory = 99.0, False

    def __call__(self, ranks, *, storage=True):
        fits = ranks <= min(self.machine, self.carried if storage else ranks)
        busy = None if self.busy_pct is None else self.busy_pct if storage and ranks > self.carried else 5.0
        used = self.used[fits] if storage or self.free is None else self.free
        return LoadRun(
            ranks=ranks, utilisation_pct=used, training_s=1.0, mib_s=1.0, latency_us=None, processors_pct=busy,
            storage=storage,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "found", "limited_by"),
    [
        (Made(5, 100), 5, STORAGE), (Made(100, 100), 16, NOTHING), (Made(100, 6), 6, MACHINE), (Made(3, 3), 3, MACHINE),
        (Made(0, 9), 0, STORAGE),
        # Processors that copying keeps busy: the run without I/O copies nothing and keeps up.
        (Made(3, 100, 95.0), 3, MACHINE), (Made(3, 100, 60.0), 3, STORAGE),
        # The machine takes most of what was lost, though it keeps up.
        (Made(2, 9, used=(89.0, 99.0), free=92.0), 2, MACHINE),
    ],
)  # fmt: skip
def test_the_storage_is_told_from_the_machine(made, found, limited_by):
    search, runs = Search(limit_pct=90.0, most=16), []
    assert searched(search, made, runs) == limited_by
    assert search.sustained == found
    without = [run.storage for run in runs].count(False)  # none where the processors were seen to be busy
    assert without == (limited_by != NOTHING and made.busy_pct != 95.0)


def test_files_that_another_process_keeps_in_memory_give_no_answer(workload, tmp_path, monkeypatch):
    """The kernel keeps pages that are mapped, whatever is asked of it."""
    held = []

    def staged(load, place):
        place.mkdir(exist_ok=True)
        dxt_replay.stage(load, place)
        for path in place.rglob("*.npz"):
            with path.open("rb") as file:
                held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            sum(held[-1][::4096])

    monkeypatch.setattr(capacities, "stage", staged)
    found = dxt_replay.capacity(workload, tmp_path / "target", utilisation_pct=1.0, most=1)
    assert found.limited_by == MEMORY
    assert capacity_headline(found).startswith("Not known: files were in memory")
    assert any("stayed in the page cache" in each or "does not drop pages" in each for each in found.warnings)


@pytest.mark.parametrize("carried", [1, 6])
def test_the_guess_of_a_storage_model_is_arithmetic(tmp_path, carried, monkeypatch):
    """Steps of 20 ms that read four samples ahead: a pipe of B bytes/s carries B x 20 ms / 90 % of their bytes."""
    description, model = tmp_path / "w.yaml", tmp_path / "m.yaml"
    description.write_text(WORKLOAD.replace("16,", "400,").replace("2048", "200000"))
    rate = round(4 * 200_500 / 0.02 * 0.9 * (carried + 0.5))
    model.write_text(f"storage_model: 1\nname: made\nlimits:\n  - {{each: system, rate: {rate}B/s}}\n")
    monkeypatch.setattr(module, "searched", lambda search, measure, runs: NOTHING)
    found = dxt_replay.capacity(description, tmp_path / "target", storage=model, most=8)
    assert found.simulated_ranks == carried


@pytest.mark.parametrize(("stopped", "said"), [(False, "operations of a run of 1 rank failed"), (True, "was stopped")])
def test_a_run_that_failed_says_nothing_of_the_storage(stopped, said, workload, tmp_path, monkeypatch):
    """Reads that fail end at once: they would pass for a fast storage."""
    replay = capacities.run

    def failing(*arguments, **choices):
        result = replay(*arguments, **choices)
        if not stopped:
            result.tally.errors[5] = result.tally.failed = 3
        result.tally.stopped = stopped
        return result

    monkeypatch.setattr(capacities, "run", failing)
    with pytest.raises(ReplayError, match=said):
        dxt_replay.capacity(workload, tmp_path / "target", utilisation_pct=1.0, most=1)


def test_utilisation_of_a_capture_is_its_recorded_compute(tmp_path):
    recorded = application.run(application.Application(steps=6, depth=2), application.Storage(latency_ns=100_000))
    capture = build_capture(tmp_path, files=application.FILES, ops=recorded.ops, spans=recorded.spans)
    compute_ns, loops_ns = computed_in_loops(capture.spans)
    _, loads = capacities._loads(capture, (), tmp_path)
    for ranks in (2, 3):
        copy = dxt_replay.open_capture(loads.of(ranks))
        assert loads.carried(copy, ranks) == (pytest.approx(100.0 * compute_ns / loops_ns), None)


def test_a_job_that_no_storage_would_keep_busy_is_refused_and_so_is_an_output_that_is_a_file(workload, tmp_path):
    sample = dxt_replay.sample("cosmictagger")
    dxt_replay.merge(sample.log, tmp_path / "c.capture", profiles=sample.profiles)
    with pytest.raises(UsageError, match="no storage reaches 90 %"):
        dxt_replay.capacity(tmp_path / "c.capture", tmp_path / "t")
    assert not (tmp_path / "t").exists()
    with pytest.raises(TargetError, match="Not a directory"):
        dxt_replay.capacity(workload, tmp_path / "target", output=workload)


# ---------------------------------------------------------------------------------------------------- simulate --check
def test_a_check_agrees_widens_the_interval_or_contradicts(tmp_path, monkeypatch, say):
    """By how long a replay of a window takes, in place of which a number of times its recorded time stands."""
    capture, model = derived(tmp_path, application.Application(steps=20), FAST)[0].path, tmp_path / "model.yaml"
    model.write_text("storage_model: 1\nname: ours\noperations: {read: 1ms, open: 1ms}\n")
    line, times = f"simulate {capture} --storage {model}", [1.0]

    def replayed_ns(part, target, speed):
        return round(times[0] * (part.time_span_ns[1] - part.time_span_ns[0]))

    monkeypatch.setattr(predicting, "_replayed_ns", replayed_ns)
    alone = say(f"{line} --json")
    assert alone["check"] is None
    times[0] = alone["elapsed_s"] / alone["recorded_s"]
    printed = say(f"{line} --check {tmp_path}")
    assert "Checked: All of it took" in printed
    assert "they agree" in printed
    times[0] = 1.4
    found = dxt_replay.simulate(capture, model, check=str(tmp_path), check_seconds=0.1).as_json()
    assert (found["check"]["verdict"], found["check"]["steps"][0]) == ("differs", 0)
    assert found["interval_s"][1] >= found["elapsed_s"] * (1 + found["check"]["difference_pct"] / 100) * 0.999
    assert "the interval is wider for that" in say(f"{line} --check {tmp_path}")
    times[0] = 3.0
    assert say(f"{line} --check {tmp_path}", status=1, warns=True) == ""
    assert "there is no prediction: the replayed window took" in say.err
    assert "Calibrate it again" in say.err


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_check_replays_below_the_target_and_leaves_nothing(tmp_path, is_staged):
    capture, target = derived(tmp_path, application.Application(steps=20), FAST)[0].path, tmp_path / "target"
    target.mkdir()
    if is_staged:
        dxt_replay.stage(capture, target)
    before = sorted(target.rglob("*"))
    assert predicting._replayed_ns(dxt_replay.part(capture, steps="0-3"), target, 1.0) > 0
    assert sorted(target.rglob("*")) == before


# ------------------------------------------------------------------------------------------------------- object stores
needs_obstore = pytest.mark.skipif(find_spec("obstore") is None, reason="obstore is not installed")


def training(folder, *, steps, compute_ns):
    """A rank that reads one range for each step, up to two steps ahead."""
    made = application.Application(
        steps=steps, depth=2, reads_per_batch=1, think_ns=0, decode_ns=0, compute_ns=compute_ns, jitter=0.0
    )
    recorded = application.run(made, application.Storage(latency_ns=1 * MS))
    return build_capture(folder, files=application.FILES, ops=recorded.ops, spans=recorded.spans)


@needs_obstore
def test_capacity_of_an_object_store_is_arithmetic(tmp_path):
    """The server answers one request in 50 ms. N ranks with a request a step need steps of N x 50 ms. They compute for
    100 ms a step and shall be used 70 %, so steps of up to 143 ms will do: two ranks, not three."""
    source = training(tmp_path, steps=10, compute_ns=100 * MS)
    with ObjectServer(service_s=0.05).running() as server:
        found = dxt_replay.capacity(source, server.url(), utilisation_pct=70.0, most=4)
        assert (found.ranks, found.interval, found.limited_by) == (2, (2, 2), STORAGE), found.as_json()
        assert found.as_json()["target"] == server.url()
        assert len(server.of_replay("GET")) == sum(run.ranks * 10 for run in found.runs if run.storage)


@needs_obstore
def test_a_slower_object_store_is_found_and_the_same_one_is_not(tmp_path, say):
    """The server itself needs about 1 ms. The sides are the same bucket behind two servers, one of them on Monday."""
    ops = [read(0, start_ns=i * MS, end_ns=i * MS + MS // 2, offset=4096 * i, length=4096) for i in range(10)]
    source, record = build_capture(tmp_path, files=["/data/a.bin"], ops=ops), tmp_path / "monday.json"
    with ObjectServer().running() as fast, ObjectServer(service_s=0.04).running() as slow:
        slow.objects = fast.objects
        dxt_replay.stage(source, fast.url())
        same = dxt_replay.regress(source, fast.url(), fast.url(), repeats=4, pace="timed", record=record)
        found = same.as_json()
        assert found["verdict"] != "regression", found
        assert found["environment"]["targets"]["candidate"]["file_system"] == "s3"
        assert not any(text.startswith("target") for text in found["environment"]["differences"])
        line = f"regress {source.path} --baseline {record} --candidate {slow.url()} --repeats 4 --pace timed --json"
        found = say(line, status=1)  # judged by latency
        assert found["verdict"] == "regression", found
        assert any(text.startswith("target s3://") for text in found["environment"]["differences"])
