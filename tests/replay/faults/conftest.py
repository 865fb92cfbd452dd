"""A capture with its twin, and commands that meet faults."""

import pytest

from dxt_replay.replay.target.stage import plan_stage, stage
from tests.capture_builder import Span, build_capture, read, write
from tests.replay.faults.injection import Commands, compiled

MS = 1_000_000


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """Runs commands in forks, with faults."""
    folder = tmp_path_factory.mktemp("faults")
    with Commands(compiled(folder), folder) as running:
        yield running


def short_capture(folder):
    """Two ranks with two lanes each, that read two files and write one each, within 60 ms."""
    ops, spans = [], []
    for rank in range(2):
        at = [{"rank": rank, "start_ns": i * MS} for i in range(50)]
        ops += [read(i % 2, lane=i % 2, offset=4096 * i, length=4096, step=i // 10, **at[i]) for i in range(40)]
        ops += [write(2 + rank, offset=5000 * i, length=5000, **at[40 + i]) for i in range(10)]
        spans += [Span("step", i * 10 * MS, (i * 10 + 9) * MS, rank=rank, step=i) for i in range(4)]
    files = ["/data/a.bin", "/data/b.bin", "/out/0.bin", "/out/1.bin"]
    return build_capture(folder, ops=ops, files=files, spans=spans, name="source")


@pytest.fixture
def folder(tmp_path):
    """Holds `source.capture` and its `twin`."""
    stage(plan_stage(short_capture(tmp_path), tmp_path / "twin"))
    return tmp_path


def run(folder, *more):
    return ["run", folder / "source.capture", "--target", folder / "twin", "-o", folder / "replay.capture", *more]
