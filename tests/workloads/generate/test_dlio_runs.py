"""A generated capture against what DLIO really issued: dlio_runs.json has the requests of real runs under strace.

The runs: DLIO v2.0 (branch mlperf_storage_v2.0, commit 392621b) with PyTorch 2.13, TensorFlow 2.21, NumPy 2.4 and
h5py 3.14 on ext4. An entry has the workload, the sizes of DLIO's files, the requests of each open file (`r` or `w`,
offset, length), and per rank the files in the order of each process, `path#number of its requests`.

dlio_tfrecord.strace.gz is strace's own text of a run of DLIO's main branch (commit e1919d7, TensorFlow 2.21): the calls
on its data set, with the folder renamed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.workloads.files import FileSet, data_set_files
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.values import workload_from_values

RUNS = {run["name"]: run for run in json.loads((Path(__file__).parent / "dlio_runs.json").read_text(encoding="utf-8"))}
TFRECORD = [name for name in RUNS if ".tfrecord#" in str(RUNS[name]["lanes"])]
SHARED_STREAMS = [*TFRECORD, "h5tf_r2t2"]
"""Runs whose reader threads take files in turn: the order of a thread varies from run to run."""
Visit = tuple[str, tuple[str, ...]]
"""A path, and what was requested between its open and its close."""


def generated(run: dict[str, Any], output: Path) -> dict[int, dict[int, list[Visit]]]:
    """Rank -> lane -> the visits of a generated run, in order."""
    workload, _ = workload_from_values(run["workload"], reading=run["reading"])
    generate(workload, run["ranks"], output)
    return visits(output)


def visits(capture: Path) -> dict[int, dict[int, list[Visit]]]:
    """Rank -> lane -> the files that it opened, in order, with their reads and writes."""
    found: dict[int, dict[int, list[tuple[str, list[str]]]]] = defaultdict(lambda: defaultdict(list))
    opened = open_capture(capture)
    paths = opened.files.column("path").to_pylist()
    for rank in opened.ranks:
        lanes = found[rank]
        for batch in opened.operations(rank):
            for row in batch.to_pylist():
                name, path = row["op"], paths[row["file_id"]].lstrip("/")
                if name == "open":
                    lanes[row["lane"]].append((path, []))
                elif name in ("read", "write"):
                    requests = next(of for at, of in reversed(lanes[row["lane"]]) if at == path)
                    requests.append(f"{name[0]}{row['offset']}+{row['length']}")
    return {
        rank: {lane: [(path, tuple(of)) for path, of in each if of] for lane, each in sorted(lanes.items())}
        for rank, lanes in sorted(found.items())
    }


def recorded(run: dict[str, Any]) -> Iterator[tuple[int, list[list[Visit]]]]:
    """Each rank with the visits of each of its processes."""
    for rank, lanes in enumerate(run["lanes"]):
        split = [[word.rsplit("#", 1) for word in lane.split()] for lane in lanes]
        yield rank, [[(path, tuple(run["requests"][int(number)])) for path, number in lane] for lane in split]


@pytest.mark.parametrize("name", [name for name in RUNS if RUNS[name]["sizes"]])
def test_the_files_have_the_names_and_sizes_of_dlios(name: str) -> None:
    workload, _ = workload_from_values(RUNS[name]["workload"], reading=RUNS[name]["reading"])
    train, evaluation = data_set_files(workload)

    assert _sizes(train) | _sizes(evaluation) == RUNS[name]["sizes"]


def _sizes(files: FileSet) -> dict[str, int]:
    found = {files.path(number): int(size) for number, size in enumerate(files.sizes)}
    for suffix in files.sides:
        found |= {files.path(number) + suffix: files.side_bytes for number in range(len(files))}
    return {path.removeprefix("/data/"): size for path, size in found.items() if "/index/" not in path}


@pytest.mark.parametrize("name", [name for name in RUNS if name not in SHARED_STREAMS])
def test_each_reader_issues_the_requests_of_a_process_of_dlio_in_its_order(name: str, tmp_path: Path) -> None:
    lanes = generated(RUNS[name], tmp_path / "run.capture")

    for rank, processes in recorded(RUNS[name]):
        assert sorted(lane for lane in lanes[rank].values() if lane) == sorted(processes)


@pytest.mark.parametrize("name", SHARED_STREAMS)
def test_all_readers_of_a_rank_issue_what_its_threads_issue_in_dlio(name: str, tmp_path: Path) -> None:
    lanes = generated(RUNS[name], tmp_path / "run.capture")

    for rank, processes in recorded(RUNS[name]):
        assert sorted(chain(*lanes[rank].values())) == sorted(chain(*processes))


def test_compare_finds_the_requests_of_a_traced_run_in_what_is_generated(tmp_path: Path) -> None:
    description = """
        framework: tensorflow
        dataset: {data_folder: /home/user/job/datar, format: tfrecord, num_files_train: 16, num_samples_per_file: 4,
          record_length_bytes: 40000}
        reader: {data_loader: tensorflow, batch_size: 4, read_threads: 2, transfer_size: 65536}
        train: {epochs: 2, computation_time: 0.01}
    """
    (tmp_path / "run.yaml").write_text(description)
    dxt_replay.merge(Path(__file__).with_name("dlio_tfrecord.strace.gz"), tmp_path / "run.capture")
    for size, alike in ((65536, True), (131072, False)):
        made = tmp_path / f"{size}.capture"
        dxt_replay.generate(tmp_path / "run.yaml", 1, made, overrides={"reader.transfer_size": size}, reading="head")
        found = dxt_replay.compare(made, tmp_path / "run.capture", different_runs=True).workload
        assert found.bytes["source"] == found.bytes["replay"]
        assert (found.operations["source"] == found.operations["replay"]) is alike
