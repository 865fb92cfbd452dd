"""`dxt-replay generate --check`: what real runs of DLIO requested, as strace shows it, beside what is generated.

dlio_tfrecord.strace.gz is strace's own text of a run of DLIO's main branch (commit e1919d7, TensorFlow 2.21): the calls
on its data set, with the folder renamed. The other requests are those of
`tests/workloads/generate/dlio_runs.json`; here they are lines of strace again, of processes side by side.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from tests.capture_builder import Op, build_capture
from tests.workloads.generate.test_dlio_runs import RUNS, Visit, recorded

FOLDER = "/scratch/job"
"""Where the run was started: relative folders of the description lie below."""
CALL_NS = 10_000
START_NS = 1_700_000_000 * 10**9
TFRECORD = {
    "reading": "head",
    "workload": {
        "framework": "tensorflow",
        "dataset": {
            "data_folder": "datar",
            "format": "tfrecord",
            "num_files_train": 16,
            "num_samples_per_file": 4,
            "record_length_bytes": 40000,
        },
        "reader": {"data_loader": "tensorflow", "batch_size": 4, "read_threads": 2, "transfer_size": 65536},
        "train": {"epochs": 2, "computation_time": 0.01},
    },
}
SHARED_AND_NOT = ("npz_r2t2", "h5tf_r2t2")


def write_trace(run: dict[str, Any], folder: Path, change: Callable[[list[Visit]], list[Visit]] = list) -> Path:
    """The run as a file of strace for each rank. `change`: of the visits of each process."""
    folder.mkdir()
    for rank, processes in recorded(run):
        calls: list[tuple[int, str]] = []
        first = 1000 * (rank + 1)
        for number, visits in enumerate(processes):
            pid = first + number
            if number:
                calls.append(
                    (number, f"{first} {_time(number)} clone(child_stack=NULL, flags=SIGCHLD) = {pid} <0.000001>")
                )
            begin = 1000 + number * 3
            for begin_us, text in _calls(change(visits)):
                calls.append((begin + begin_us, f"{pid} {_time(begin + begin_us)} {text} <0.000001>"))
        (folder / f"rank{rank}.strace").write_text("\n".join(text for _, text in sorted(calls)) + "\n")
    return folder


def _time(us: int) -> str:
    return f"{START_NS // 10**9 + us // 10**6}.{us % 10**6:06d}"


def _calls(visits: list[Visit]) -> Iterator[tuple[int, str]]:
    """The calls of a process, each with its time in us."""
    at = 0
    for path, requests in visits:
        shown = f"3<{FOLDER}/{path}>"
        yield at, f'openat(AT_FDCWD<{FOLDER}>, "{path}", O_RDWR|O_CREAT|O_CLOEXEC, 0644) = {shown}'
        for request in requests:
            at += 20
            offset, length = request[1:].split("+")
            name = "pread64" if request[0] == "r" else "pwrite64"
            yield at, f'{name}({shown}, ""..., {length}, {offset}) = {length}'
        yield at + 20, f"close({shown}) = 0"
        at += 40


def check(run: dict[str, Any], trace: Path, folder: Path, *more: str) -> int:
    (folder / "w.yaml").write_text(json.dumps(run["workload"]))
    return main(["generate", str(folder / "w.yaml"), "--check", str(trace), "--reading", run["reading"], *more])


def test_a_trace_of_a_real_run_is_equal_and_of_another_request_size_different(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = Path(__file__).with_name("dlio_tfrecord.strace.gz")
    lines = gzip.decompress(trace.read_bytes()).decode().splitlines()
    assert check(TFRECORD, trace, tmp_path, "--json") == 0
    train = json.loads(capsys.readouterr().out)["kinds"]["train"]
    assert train["opens"]["run"] == sum("openat(" in line for line in lines)
    assert train["reads"]["run"] == sum("pread64(" in line for line in lines)
    assert check(TFRECORD, trace, tmp_path, "reader.transfer_size=131072") == 1
    printed = " ".join(capsys.readouterr().out.split())
    opens = sum("openat(" in line and "img_00_of_16" in line for line in lines)
    assert f"only in the run, {opens} times: read 65,536 B at 0, read 65,536 B at 65,536" in printed


@pytest.mark.parametrize("name", RUNS)
def test_what_dlio_did_is_equal(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(RUNS[name], tmp_path / "traces")
    assert check(RUNS[name], trace, tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == {
        "generated": RUNS[name]["ranks"],
        "run": RUNS[name]["ranks"],
        "equal": True,
        "not_known": 0,
    }
    measures = [measure for kind in found["kinds"].values() for measure in kind.values()]
    assert all(measure["equal"] for measure in measures)
    reads = [visit for _, processes in recorded(RUNS[name]) for visits in processes for visit in visits]
    requests = sum(text[0] == "r" for _, texts in reads for text in texts)
    assert sum(kind["reads"]["run"] for kind in found["kinds"].values()) == requests
    assert found["differences"] == []


@pytest.mark.parametrize("name", SHARED_AND_NOT)
def test_requests_in_another_order_are_a_difference(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def turned(visits: list[Visit]) -> list[Visit]:
        return [(path, tuple(reversed(requests))) for path, requests in visits]

    trace = write_trace(RUNS[name], tmp_path / "traces", turned)
    assert check(RUNS[name], trace, tmp_path, "--json") == 1
    train = json.loads(capsys.readouterr().out)["kinds"]["train"]
    unequal = {name for name, measure in train.items() if not measure["equal"]}
    assert unequal == {"order"}


def test_a_longer_read_is_named_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RUNS["npz_r2t2"]

    def longer(visits: list[Visit]) -> list[Visit]:
        return [
            (path, tuple(text.replace("r0+4096", "r0+65536") if "train/img_03" in path else text for text in requests))
            for path, requests in visits
        ]

    trace = write_trace(run, tmp_path / "traces", longer)
    assert check(run, trace, tmp_path) == 1
    printed = " ".join(capsys.readouterr().out.split())  # a long path breaks the lines
    assert printed.startswith("different: ")
    assert "First differences" in printed
    assert "img_03_of_16.npz (1 file of this kind differs)" in printed
    assert "read 65,536 B at 0" in printed
    assert check(run, trace, tmp_path, "dataset.num_files_train=8") == 1
    assert "train: 16 files only in the run, first" in capsys.readouterr().out


def test_the_reading_that_nobody_runs_is_different_and_the_remedy_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RUNS["h5tf_r2t2"]
    trace = write_trace(run, tmp_path / "traces")
    assert check({**run, "reading": "documented"}, trace, tmp_path) == 1
    assert "try --reading head or v2.0" in capsys.readouterr().out


def test_folders_of_another_run_are_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RUNS["npz_r2t2"]
    trace = write_trace(run, tmp_path / "traces")
    assert check(run, trace, tmp_path, "dataset.data_folder=/other", "checkpoint.checkpoint_folder=/ck2") == 2
    assert "dataset.data_folder=/where/it/was" in capsys.readouterr().err


def test_the_generated_capture_is_equal_to_itself_and_can_be_kept(tmp_path: Path) -> None:
    small = ("dataset.num_files_train=8", "train.epochs=1")
    dxt_replay.generate("default", 2, tmp_path / "one.capture", overrides=small, reading="head")
    found = dxt_replay.check_workload(
        "default", tmp_path / "one.capture", output=tmp_path / "two.capture", overrides=small, reading="head"
    )
    assert found.check.equal
    assert dxt_replay.open_capture(tmp_path / "two.capture").ranks == (0, 1)


def test_what_only_counters_tell_is_not_called_equal(tmp_path: Path) -> None:
    """Reads that were rebuilt from counters have invented places, and opens of DXT no place in the order."""
    small = ("dataset.num_files_train=8", "dataset.num_files_eval=4", "train.epochs=1")
    dxt_replay.generate("default", 1, tmp_path / "one.capture", overrides=small, reading="head")
    capture = dxt_replay.open_capture(tmp_path / "one.capture")
    paths = capture.paths()
    ops = [
        Op(
            **{name: row[name] for name in ("op", "file_id", "offset", "length", "lane", "start_ns", "end_ns")},
            **origin,
        )
        for batch in capture.operations()
        for row in batch.to_pylist()
        if row["op"] in ("open", "close", "read")
        for origin in [{"origin": "reconstructed"} if row["op"] != "read" or row["file_id"] == 0 else {}]
    ]
    rebuilt = build_capture(tmp_path, ops=ops, files=paths)
    check = dxt_replay.check_workload("default", rebuilt, overrides=small, reading="head").check
    assert check.equal
    train = check.kinds["train"]
    assert (train["reads"].equal, train["opens"].equal) == (True, True)
    assert (train["sizes"].equal, train["requests"].equal, train["order"].equal) == (None, None, None)
    assert train["requests"].not_known == 1
    assert check.ranks.equal is None
