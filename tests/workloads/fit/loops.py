"""Small training loops as captures, written from known parameters: what a fit must give back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Op, Span, build_capture, read, write

STEP_NS, FETCH_NS, READ_NS = 10_000_000, 1_000_000, 20_000


def record_loop(
    folder: Path,
    *,
    steps: int = 40,
    batch: int = 4,
    record: int = 8192,
    files: int = 4,
    per_file: int = 40,
    ranks: int = 1,
    suffix: str = ".bin",
    open_each: bool = False,
    save_every: int = 0,
    save_bytes: int = 100_000,
    shuffled: bool = True,
    extra: tuple[Op, ...] = (),
    extra_files: tuple[File, ...] = (),
) -> Capture:
    """A training thread that reads `batch` records in each step, at random places or in order, and may save.

    Ranks read the samples of a pass in turn. File number `files` is the checkpoint.
    """
    samples = files * per_file
    ops: list[Op] = list(extra)
    spans: list[Span] = []
    for rank in range(ranks):
        taken = 0
        for step in range(steps):
            begin = 1_000_000 + step * STEP_NS
            at = begin + 1_000
            for _ in range(batch):
                number = taken * ranks + rank
                order = (
                    np.random.default_rng(number // samples).permutation(samples) if shuffled else np.arange(samples)
                )
                file_id, index = divmod(int(order[number % samples]), per_file)
                if open_each:
                    ops.append(Op("open", file_id, rank=rank, start_ns=at, end_ns=at + 100))
                ops.append(
                    read(
                        file_id, offset=index * record, length=record, rank=rank, start_ns=at + 200, end_ns=at + READ_NS
                    )
                )
                at += READ_NS + 1_000
                taken += 1
            spans.append(Span("step", begin, begin + STEP_NS - 10, name="train", rank=rank, thread=1, step=step))
            spans.append(Span("input_wait", begin, begin + FETCH_NS, name="next_batch", rank=rank, thread=1, step=step))
            if save_every and (step + 1) % save_every == 0:
                saved = begin + 8_000_000
                spans.append(Span("checkpoint", saved, saved + 1_000_000, name="save", rank=rank, thread=1, step=step))
                if rank == 0:
                    ops.append(write(files, length=save_bytes, start_ns=saved + 10, end_ns=saved + 500_000))
    named = [File(f"/data/set/part-{number}{suffix}", size=per_file * record) for number in range(files)]
    saved_to = [File("/run/ckpt/model.pt", format="checkpoint")] if save_every else []
    return build_capture(folder, ops=ops, files=[*named, *saved_to, *extra_files], spans=sorted(spans, key=_order))


def _order(span: Span) -> tuple[int, int]:
    return span.rank, span.start_ns
