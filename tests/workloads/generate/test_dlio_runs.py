"""A generated capture against what DLIO really issued: dlio_runs.json has the requests of real runs under strace.

The runs: DLIO's main branch (commit e1919d7: h5_r2t2, h5_chunks, tfr_main) and its branch mlperf_storage_v2.0
(392621b), whose TFRecord pipeline and checkpoints of PyTorch are alike, with PyTorch 2.13, TensorFlow 2.21, NumPy 2.4
and h5py 3.14 on ext4. An entry has the workload, the sizes of DLIO's files, the requests of each open file (`r` or
`w`, offset, length), and per rank the files in the order of each process, `path#number of its requests`.

dlio_tfrecord.strace.gz is strace's own text of a run of DLIO's main branch (TensorFlow 2.21): the calls on its data
set, with the folder renamed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.workloads.files import data_set_files
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.values import workload_from_values

RUNS = {run["name"]: run for run in json.loads((Path(__file__).parent / "dlio_runs.json").read_text(encoding="utf-8"))}
Visit = tuple[str, tuple[str, ...]]
"""A path, and what was requested between its open and its close."""


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


def recorded(run: dict[str, Any]) -> list[list[list[Visit]]]:
    """By rank, the visits of each of its processes."""
    found = []
    for lanes in run["lanes"]:
        split = [[word.rsplit("#", 1) for word in lane.split()] for lane in lanes]
        found.append([[(path, tuple(run["requests"][int(number)])) for path, number in lane] for lane in split])
    return found


def of_v2(run: dict[str, Any], visit: Visit) -> Visit:
    """A visit of TFRecord files as the branch wrote them, with a number that is a byte shorter beside each record."""
    path, requests = visit
    if run["name"].startswith("tfr_") and run["name"] != "tfr_main":
        requests = tuple(each.replace("+12896", "+12888").replace("r799328+", "r799320+") for each in requests)
    return path, requests


@pytest.mark.parametrize("name", RUNS)
def test_what_is_generated_is_what_dlio_issues(name: str, tmp_path: Path) -> None:
    """Process by process in its order; threads of TensorFlow take files in turn, so their order varies. PyTorch's files
    are dealt to the ranks as MLPerf does, so all ranks together read the same. Checkpoints: what is saved."""
    run = RUNS[name]
    workload, _ = workload_from_values(run["workload"])
    generate(workload, run["ranks"], tmp_path / "run.capture")
    files = [(of.path(at), int(of.sizes[at])) for of in data_set_files(workload) for at in range(len(of))]
    assert not run["sizes"] or {path.removeprefix("/data/"): size for path, size in files} == run["sizes"]
    lanes = [
        [[of_v2(run, visit) for visit in each] for each in of_rank.values()]
        for of_rank in visits(tmp_path / "run.capture").values()
    ]
    expected = recorded(run)
    if name.startswith("ck_"):
        lanes = [[[visit for visit in each if visit[1][0][0] == "w"] for each in of_rank] for of_rank in lanes]
    if name.startswith("tfr_"):
        assert [sorted(chain(*each)) for each in lanes] == [sorted(chain(*each)) for each in expected]
    elif name == "h5_r2t2":
        assert sorted(chain(*chain(*lanes))) == sorted(chain(*chain(*expected)))
    else:
        assert [sorted(lane for lane in each if lane) for each in lanes] == [sorted(each) for each in expected]


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
        dxt_replay.generate(tmp_path / "run.yaml", 1, made, overrides={"reader.transfer_size": size})
        found = dxt_replay.compare(made, tmp_path / "run.capture", different_runs=True).workload
        assert found.bytes["source"] == found.bytes["replay"]
        assert (found.operations["source"] == found.operations["replay"]) is alike
