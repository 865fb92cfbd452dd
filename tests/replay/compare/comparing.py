"""What tests of `compare` share: a small recorded run, and replays of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture, read, write

MS = 1_000_000
S = 1_000_000_000
FILES = ("/data/a", "/data/b", "/out/c")
STEPS = 40


def recorded() -> list[Op]:
    """Two ranks, two lanes each, 40 steps in 8 s: both lanes read file a, lane 0 reads b, and writes c now and then."""
    ops = []
    for rank in range(2):
        for step in range(STEPS):
            at = step * 200 * MS + rank * MS
            for k in range(5):
                start = at + k * 4 * MS
                place = step * 5 + k
                ops.append(
                    read(0, rank=rank, lane=k % 2, offset=4096 * place, length=4096, start_ns=start, end_ns=start + MS)
                )
            ops.append(read(1, rank=rank, offset=100 * step, length=100, start_ns=at + 30 * MS, end_ns=at + 31 * MS))
            if step % 10 == 9:
                ops.append(
                    write(2, rank=rank, offset=10**6 * step, length=10**6, start_ns=at + 40 * MS, end_ns=at + 50 * MS)
                )
    return ops


def spans(scale: float = 1.0) -> list[Span]:
    found = []
    for rank in range(2):
        for step in range(STEPS):
            begin, end = int(step * 200 * MS * scale), int((step * 200 + 190) * MS * scale)
            found.append(Span("step", rank=rank, start_ns=begin, end_ns=end, step=step))
            found.append(Span("compute", rank=rank, start_ns=begin + 10 * MS, end_ns=end - 10 * MS, step=step))
    return found


def info(**made_by: Any) -> CaptureInfo:
    return CaptureInfo(job=Job(nprocs=2, run_time_s=8), ranks=(0, 1), made_by=made_by)


def replayed_ops(late_ns: int = 20_000) -> list[Op]:
    """What a good replay leaves: as recorded, 20 us late, with due times and results."""
    return [
        replace(
            op, start_ns=op.start_ns + late_ns, end_ns=(op.end_ns or 0) + late_ns, due_ns=op.start_ns, result=op.length
        )
        for op in recorded()
    ]


@pytest.fixture(name="source")
def source_fixture(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=FILES, ops=recorded(), spans=spans(), info=info(), name="source")


def replay_of(
    tmp_path: Path,
    ops: list[Op],
    *,
    files: tuple[str, ...] = FILES,
    span_list: list[Span] | None = None,
    **made_by: Any,
) -> Capture:
    made_by = {"pace": "timed", "speed": 1.0, **made_by}
    return build_capture(
        tmp_path,
        files=files,
        ops=ops,
        spans=spans() if span_list is None else span_list,
        info=info(**made_by),
        name="replay",
    )
