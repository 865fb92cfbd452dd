"""A capture with its twin, and commands that meet faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.replay.faults.injection import Commands, compiled

MS = 1_000_000


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Runs commands in forks, with faults."""
    folder = tmp_path_factory.mktemp("faults")
    with Commands(compiled(folder), folder) as running:
        yield running


def short_capture(folder: Path) -> Capture:
    """Two ranks with two lanes each, that read two files and write one each, within 60 ms."""
    ops: list[Op] = []
    for rank in range(2):
        ops += [
            read(i % 2, rank=rank, lane=i % 2, start_ns=i * MS, offset=4096 * i, length=4096, step=i // 10)
            for i in range(40)
        ]
        ops += [write(2 + rank, rank=rank, start_ns=(40 + i) * MS, offset=5000 * i, length=5000) for i in range(10)]
    steps = [(rank, step) for rank in range(2) for step in range(4)]
    spans = [Span("step", step * 10 * MS, (step * 10 + 9) * MS, rank=rank, step=step) for rank, step in steps]
    files = ["/data/a.bin", "/data/b.bin", "/out/0.bin", "/out/1.bin"]
    return build_capture(folder, ops=ops, files=files, spans=spans, name="source")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds `source.capture` and its `twin`."""
    stage(plan_stage(short_capture(tmp_path), tmp_path / "twin"))
    return tmp_path
