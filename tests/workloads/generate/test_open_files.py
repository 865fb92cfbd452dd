"""What a generated run reads, it has opened before, and what it opens, it closes: for every loader and format."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.workloads.description import READINGS, Workload
from dxt_replay.workloads.generate.generation import generate
from tests.workloads.generate.workload_cases import CASES, workload_of
from tests.workloads.test_any_workload import LOADERS

THREADS = {"files": 8, "per_file": 2, "batch": 4, "readers": 3}


def check_opens(capture: Path) -> int:
    """Follow the open files of each lane; how many operations there were."""
    opened, found = open_capture(capture), 0
    for rank in opened.ranks:
        open_now: Counter[tuple[int, int]] = Counter()
        for batch in opened.operations(rank):
            for row in batch.select(["lane", "op", "file_id"]).to_pylist():
                key = (row["lane"], row["file_id"])
                if row["op"] == "open":
                    assert not open_now[key], f"rank {rank}: {key} is opened twice"
                    open_now[key] = 1
                elif row["op"] != "stat":
                    assert open_now[key], f"rank {rank}: a {row['op']} of {key}, which is not open"
                    open_now[key] -= row["op"] == "close"
                found += 1
        assert not any(open_now.values()), f"rank {rank}: left open: {+open_now}"
    return found


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    file_format = draw(st.sampled_from(sorted(LOADERS)))
    return workload_of(
        file_format,
        draw(st.sampled_from(LOADERS[file_format])),
        reading=draw(st.sampled_from(READINGS)),
        files=draw(st.sampled_from([1, 3, 8, 16, 33])),
        evaluation_files=draw(st.sampled_from([0, 5])),
        per_file=draw(st.sampled_from([1, 2, 3, 10])),
        record=draw(st.sampled_from([100, 70_000])),
        batch=draw(st.integers(1, 5)),
        readers=draw(st.integers(1, 5)),
        checkpoints=draw(st.booleans()),
        reader={
            "file_shuffle": draw(st.sampled_from(["off", "seed"])),
            "sample_shuffle": draw(st.sampled_from(["off", "seed"])),
            "prefetch_size": draw(st.sampled_from([0, 1, 2, 9])),
        },
    )


@settings(max_examples=60)
@given(workloads(), st.integers(1, 4))
@example(workload_of("hdf5", "tensorflow", reading="v2.0", **THREADS), 1)
@example(workload_of("hdf5", "tensorflow", reading="head", **THREADS), 1)
@example(workload_of("hdf5", "tensorflow", reading="v2.0", **{**THREADS, "files": 7}), 2)
def test_a_read_lies_between_open_and_close_of_its_file(
    tmp_path_factory: pytest.TempPathFactory, workload: Workload, ranks: int
) -> None:
    output = tmp_path_factory.mktemp("open") / "run.capture"
    try:
        generated = generate(workload, ranks, output, device="null")
    except UsageError:
        return
    assert check_opens(output) == generated.operations


@pytest.mark.parametrize("name", [name for name in CASES if "in memory" not in name])  # there files stay open
def test_the_cases_leave_no_file_open(name: str, tmp_path: Path) -> None:
    workload, ranks = CASES[name]
    generated = generate(workload, ranks, tmp_path / "run.capture")
    assert check_opens(tmp_path / "run.capture") == generated.operations


def test_streams_read_also_the_batches_that_the_loop_does_not_take(tmp_path: Path) -> None:
    """Streams of 6, 5 and 5 samples make 6 batches of at most 4, and the loop takes 16 // 4 of them."""
    workload = workload_of("hdf5", "tensorflow", reading="v2.0", epochs=1, record=70_000, **THREADS)
    generate(workload, 1, tmp_path / "run.capture")
    rows = [row for batch in open_capture(tmp_path / "run.capture").operations(0) for row in batch.to_pylist()]
    reads = [row for row in rows if row["op"] == "read" and row["length"] > 60_000]
    assert len({(row["file_id"], row["offset"]) for row in reads}) == len(reads) == 16
    assert sorted(Counter(row["feeds"] for row in reads).items(), key=str) == [
        (0, 4),
        (1, 4),
        (2, 4),
        (3, 2),
        (None, 2),
    ]
