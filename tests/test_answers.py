"""Answers that people read, from files as other programs write them: a file in, a number or a sentence out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import CaptureInfo, Coverage, Job
from tests import kineto_writer as kineto
from tests.capture_builder import Op, Span, build_capture, read
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, posix_rows, write_log
from tests.places import recorded
from tests.xplane_writer import Event, Line, plane, space

MS = 1_000_000
MAPPED = "opened and never read"
READS = DxtRecord(record_id=1, reads=[(4096 * i, 4096, 1 + i / 10, 1.05 + i / 10) for i in range(20)])


class Answers:
    """Runs commands as a user would, and returns what they print, on one line."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, *arguments: str | Path, status: int = 0) -> str:
        details = ["--details"] if arguments[0] == "summary" else []
        assert main([*map(str, arguments), *details]) == status
        printed = self.capsys.readouterr()
        return " ".join((printed.out + printed.err).split())

    def of_profile(self, data: bytes, name: str, *options: str) -> str:
        path = self.folder / name
        path.write_bytes(data)
        self("merge", path, "-o", self.folder / "a.capture", "--force")
        return self("summary", self.folder / "a.capture", *options)

    def of_log(self, **modules: list[dict[str, Any]]) -> str:
        """modules: rows of counters, beside a file with traced reads where DXT is among them."""
        return self("summary", self.log("a.darshan", modules))

    def log(
        self, name: str, modules: Mapping[str, list[dict[str, Any]]], job: JobSpec | None = None, *, dxt: bool = True,
        other: Path = Path("/data/other"),
    ) -> Path:  # fmt: skip
        versions = {"POSIX": 4, "STDIO": 2, "MPI-IO": 3}
        rows = {**modules, "POSIX": [*(posix_rows([READS]) * dxt), *modules.get("POSIX", [])]}
        found = {
            each: ModuleSpec(version=versions[each], streams=[encode_counters(each, made, versions[each])])
            for each, made in rows.items()
        }
        if dxt:
            found["DXT_POSIX"] = ModuleSpec(version=1, streams=[encode_dxt([READS])])
        names = {1: b"/data/train", 2: bytes(other), 3: b"/data/third"}
        return write_log(self.folder / name, names=names, modules=found, job=job or JobSpec(nprocs=1))


@pytest.fixture
def answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Answers:
    return Answers(tmp_path, capsys)


@pytest.mark.parametrize(
    ("counters", "mapped"),
    [
        ({"POSIX_SEEKS": 2, "POSIX_MODE": 0o666}, False),  # a lock file, a marker, a log: opened to be written
        ({"POSIX_SEEKS": 3}, False),  # a temporary file without a name, by Python: its folder is what was opened
        ({"POSIX_SEEKS": 3, "POSIX_DUPS": 1}, True),  # numpy.memmap
        ({"POSIX_SEEKS": 1}, True),  # a C program that maps
        ({"POSIX_SEEKS": 3, "POSIX_DUPS": -1}, True),  # old Darshan counts no duplicates
    ],
)
def test_only_a_file_that_can_have_been_mapped_voids_the_headline(
    answers: Answers, counters: dict[str, int], mapped: bool
) -> None:
    assert (MAPPED in answers.of_log(POSIX=[{"record_id": 2, "POSIX_OPENS": 1, **counters}])) == mapped


def test_a_stream_that_darshan_gave_to_another_file_is_no_mapping(answers: Answers) -> None:
    duplicated = {"POSIX_OPENS": 2, "POSIX_DUPS": 1, "POSIX_SEEKS": 4}
    rows = [{"record_id": each, **duplicated} for each in (2, 3)]
    stream = {"record_id": 2, "STDIO_OPENS": 2, "STDIO_FDOPENS": 2, "STDIO_READS": 2, "STDIO_BYTES_READ": 2 << 20}
    folder = {"record_id": 4, "POSIX_OPENS": 2, "POSIX_DUPS": 1}  # of multiprocessing, which is removed
    assert MAPPED not in answers.of_log(POSIX=[*rows, folder], STDIO=[stream])
    assert MAPPED in answers.of_log(POSIX=rows, STDIO=[stream | {"STDIO_OPENS": 1, "STDIO_FDOPENS": 1}])


def test_a_small_file_that_is_only_opened_voids_nothing(answers: Answers) -> None:
    lock, data = answers.folder / "pid.lock", answers.folder / "data"
    for path, size, mapped in ((lock, 6, False), (data, 8192, True)):
        path.write_bytes(b"x" * size)
        log = answers.log("a.darshan", {"POSIX": [{"record_id": 2, "POSIX_OPENS": 1}]}, other=path)
        assert (MAPPED in answers("summary", log)) == mapped


@pytest.mark.parametrize("name", ["k1", "jan2021", "small", "threads18"])
def test_headlines_of_public_logs_stay(answers: Answers, name: str) -> None:
    said = answers("summary", recorded(f"trials/repro3/sources/{name}.darshan"))
    assert "storage does not limit this run" in said
    assert MAPPED not in said


def test_input_waits_for_c_streams_are_not_called_preprocessing(answers: Answers) -> None:
    """Each step of 10 ms waits 9 ms for a stream, whose reads are rebuilt from counters."""
    begins = [10 * i * MS for i in range(10)]
    spans = [Span("step", begin, begin + 10 * MS, step=i) for i, begin in enumerate(begins)]
    spans += [Span("input_wait", begin, begin + 9 * MS, step=i) for i, begin in enumerate(begins)]
    stream = {"api": "STDIO", "length": 1 << 20, "origin": "reconstructed"}
    ops = [Op("read", 0, start_ns=begin, end_ns=begin + 9 * MS, **stream) for begin in begins]
    ops.append(read(0, length=1, start_ns=100 * MS))
    capture = build_capture(answers.folder, files=["/data/a"], ops=ops, spans=spans)
    assert "I/O in it: not known" in answers("summary", capture.path)
    said = answers("summary", capture.path, "--show", "findings")
    assert "Decode in" not in said
    assert "mostly without recorded I/O" not in said


def test_a_profile_without_step_marks_is_a_profile(answers: Answers) -> None:
    line = Line(id=1, name="python", events=(_event("f:MatMul", 0, 5),))
    data = space([plane("/host:CPU", [line])])
    assert "The profile marks no training steps" in answers.of_profile(data, "a.xplane.pb")
    said = answers.of_profile(data, "a.xplane.pb", "--show", "findings")
    assert "Nothing was judged: no training steps, and no I/O was recorded." in said


def _event(name: str, begin_ms: int, lasted_ms: int) -> Event:
    return Event(name=name, start_ns=begin_ms * MS, duration_ns=lasted_ms * MS)


def _accelerator(name: str, line: str, begins_ms: list[int], *, steps: bool = False) -> bytes:
    work = [_event("fusion", begin, 80) for begin in begins_ms]
    marks = [_event(str(i), begin, 80) for i, begin in enumerate(begins_ms)]
    lines = [Line(id=1, name=line, events=tuple(work))] * bool(work)
    return plane(f"/device:{name}", [*lines, *([Line(id=2, name="Steps", events=tuple(marks))] * steps)])


@pytest.mark.parametrize(("kind", "line"), [("TPU", "XLA Ops"), ("TPU", "XLA Modules"), ("GPU", "Stream #13(Compute)")])
def test_each_accelerator_of_a_process_counts(answers: Answers, kind: str, line: str) -> None:
    """Two of three work 80 of 100 ms in each of four steps, the second 10 ms later; a fetch under its work delays
    nothing."""
    planes = [_accelerator(f"{kind}:{i}", line, [100 * n + 10 * i for n in range(4)], steps=True) for i in range(2)]
    fetch = Line(id=9, name="main/1", events=(_event("IteratorGetNextOp::DoCompute", 20, 40),))
    host = plane("/host:CPU", [fetch])
    said = answers.of_profile(space([*planes, _accelerator(f"{kind}:2", line, []), host]), "a.xplane.pb")
    assert f"is of one process with 3 {kind}s, 2 of which worked" in said
    assert "Training of 4 steps on 1 rank" in said
    assert "accelerator is busy 82.1 % of the training" in said  # 320 of 390 ms each
    assert "waits for input 0.0 %" in said or "No waits for input are shown" in said


def test_a_profile_that_names_no_host_is_read_with_a_warning(answers: Answers) -> None:
    environment = plane("Task Environment", stats={"profile_start_time": kineto.START_NS})
    said = answers.of_profile(space([_accelerator("TPU:0", "XLA Ops", [0]), environment], ()), "a.xplane.pb")
    assert "compute, whole training 80.0 ms" in said
    assert "names no host: if it was cut off between two planes, the later ones are missing" in said


def _steps(kernel_ms: int) -> list[dict[str, Any]]:
    """Two steps of 10 ms, and a kernel that begins in the middle of the second one."""
    return [
        *(kineto.mark(n, 10 * n * MS, (10 * n + 10) * MS) for n in range(2)),
        kineto.event("aten::mm", 0, 20 * MS),
        kineto.kernel("k", 15 * MS, (15 + kernel_ms) * MS, 1),
    ]


def test_ranks_are_those_of_the_job(answers: Answers) -> None:
    around = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 128}}
    said = answers.of_profile(kineto.trace(_steps(5), around=around), "a.pt.trace.json")
    assert "Training of 2 steps on 128 ranks" in said
    assert "of rank 3 of 128: no I/O was recorded. The profiles of 127 ranks are missing." in said


def test_kernels_and_compute_have_one_window(answers: Answers) -> None:
    said = answers.of_profile(kineto.trace(_steps(30)), "a.pt.trace.json")
    assert "its accelerator is busy 25.0 % of the training" in said
    assert "compute, whole training 5.00 ms" in said


def test_a_profile_that_is_a_bare_array_is_read(answers: Answers) -> None:
    events = json.loads(kineto.trace(_steps(5), generation=2))["traceEvents"]
    assert "busy 25.0 % of the training" in answers.of_profile(json.dumps(events).encode(), "a.pt.trace.json")


def test_a_slowest_rank_of_unknown_time_is_not_0_s(answers: Answers) -> None:
    row = {"record_id": 2, "rank": -1, "POSIX_OPENS": 4, "POSIX_WRITES": 4, "POSIX_BYTES_WRITTEN": 400,
           "POSIX_F_WRITE_TIME": 8.0, "POSIX_SLOWEST_RANK": -1, "POSIX_F_SLOWEST_RANK_TIME": -1.0}  # fmt: skip
    log = answers.log("a.darshan", {"POSIX": [row]}, JobSpec(nprocs=4), dxt=False)
    said = answers("summary", log)
    assert "all ranks together spent 8.000 s in POSIX calls; the mean of the ranks is 2.000 s" in said
    assert "8.000 s not known" in said


def test_a_negative_number_of_bytes_is_not_known(answers: Answers) -> None:
    row = {"record_id": 2, "MPIIO_INDEP_WRITES": 3, "MPIIO_BYTES_WRITTEN": -32574}
    said = answers.of_log(**{"MPI-IO": [row]})
    assert "MPIIO 0 3 not known" in said
    assert "MPIIO_BYTES_WRITTEN of /data/other is -32574" in said


def test_standard_streams_of_an_anonymised_log_are_no_storage(answers: Answers) -> None:
    said = answers("summary", recorded("darshan-logs/nonmpi_dxt_anonymized.darshan"))
    assert "10,203 operations on standard input, output and error" in said
    row = {"record_id": record_id("<STDOUT>"), "STDIO_OPENS": 1, "STDIO_WRITES": 9, "STDIO_BYTES_WRITTEN": 99}
    assert "STDIO" not in answers.of_log(STDIO=[row])


def test_the_utilisation_of_a_benchmark_has_one_rule(answers: Answers) -> None:
    """Two epochs whose first steps wait; MLPerf's rule leaves these out."""
    workload = answers.folder / "v.yaml"
    workload.write_text(
        "framework: pytorch\nworkflow: {train: true}\n"
        "dataset: {data_folder: d, format: npz, num_files_train: 16, record_length_bytes: 8000000}\n"
        "reader: {data_loader: pytorch, batch_size: 2, read_threads: 4}\n"
        "train: {epochs: 2, computation_time: 0.3}\n"
    )
    capture = answers.folder / "v.capture"
    answers("generate", workload, "--ranks", "1", "-o", capture, "--device", "latency=1ms,bandwidth=100MB/s")
    assert "accelerator utilisation 100.0 % by DLIO's rule" in answers("summary", capture)
    slow = answers.folder / "m.yaml"
    slow.write_text("storage_model: 1\nname: slow\noperations:\n  read: {latency: 1ms, bandwidth: 100MB/s}\n")
    assert "Accelerator utilisation: 100.0 %" in answers("simulate", capture, "--storage", slow)


def test_copies_of_a_rank_that_compute_alike_are_named(answers: Answers) -> None:
    keys = ("train.computation_time={mean: 0.05, stdev: 0.02}", "dataset.num_files_train=1", "reader.batch_size=16")
    capture, more = answers.folder / "1.capture", answers.folder / "8.capture"
    answers("generate", "dlrm", *keys, "--ranks", "1", "-o", capture, "--device", "null")
    said = answers("transform", capture, "-o", more, "--ranks", "8", "--weak")
    assert "with times of its own, the slowest of 8 would take 1.5" in said


def test_workers_of_unknown_ranks_are_no_ranks(answers: Answers) -> None:
    """Two ranks, each with a spawned worker: nothing in the logs says of which."""
    worker = b"python -c from multiprocessing.spawn import spawn_main"
    for pid, exe in ((11, b"python train.py"), (12, b"python train.py"), (21, worker), (22, worker)):
        job = JobSpec(nprocs=1, jobid=5, exe=exe, start_s=1_700_000_000 + pid)
        answers.log(f"u_python_id5-{pid}_1.darshan", {"POSIX": posix_rows([READS])}, job, dxt=False)
    said = answers("summary", answers.folder)
    assert "A run on 2 ranks" in said
    assert "which rank started which of 2 worker processes is not known" in said
    assert "not known" in said.partition("Interfaces")[2]


def _training(folder: Path, computed_ms: list[int], **made_by: Any) -> Path:
    """A loop that waits 5 ms for a file of its own in each step, then computes."""
    spans, ops, at = [], [], 0
    for i, computed in enumerate(computed_ms):
        ops += [Op("open", i, start_ns=at), read(i, length=MS, start_ns=at + 1000, end_ns=at + 4 * MS)]
        ops += [Op("close", i, start_ns=at + 4 * MS)]
        end = at + (5 + computed) * MS
        spans += [Span("step", at, end, step=i), Span("input_wait", at, at + 5 * MS, step=i)]
        spans.append(Span("compute", at + 5 * MS, end, step=i))
        at = end
    info = CaptureInfo(
        job=Job(nprocs=1, run_time_s=at / 1e9), ranks=(0,), made_by={"command": "merge", **made_by},
        coverage=Coverage(bytes=1.0, operations=1.0),
    )  # fmt: skip
    files = [f"/data/{i}.npz" for i in range(len(computed_ms))]
    return build_capture(folder, files=files, ops=ops, spans=spans, info=info).path


def test_waits_for_logs_are_in_no_figure(answers: Answers) -> None:
    """Of 10 steps of 10 ms, each with 5 ms of waiting, the log of a worker takes 4 ms of each wait."""
    capture = _training(answers.folder, [5] * 10, log_writing=[[0, 10 * i * MS, (10 * i + 4) * MS] for i in range(10)])
    said = answers("summary", capture)
    assert "Training waits for input 16.7 % of the steady loop" in said
    assert "loop 60.0 ms" in said
    assert "compute 83.3 % of the training" in said
    assert "Besides, training waited 40.0 ms while Darshan wrote the logs" in said


def test_a_pause_is_no_compute(answers: Answers) -> None:
    capture = _training(answers.folder, [50] * 20 + [2000] + [50] * 20)
    assert "train.computation_time 0.05" in answers("fit", capture, "-o", answers.folder / "w.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("llama3_70b model.num_layers=8 --ranks 8", "checkpoint.mode=subset model.parallelism.data=8"),
        ("flux_b200 dataset.num_files_train=1 --ranks 1", "reader.preprocess_time=0.605 adds it"),
    ],
)
def test_generate_says_where_the_figures_of_mlperf_differ(answers: Answers, words: str, said: str) -> None:
    assert said in answers("generate", *words.split(), "-o", answers.folder / "a.capture", "--device", "null")
