"""Findings about the training loop: what it waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from profiler_merge.analysis.analyse import Analysis
from profiler_merge.analysis.finding import Finding, percent, severity_of_loss
from profiler_merge.analysis.thresholds import (
    HIDDEN_PCT,
    LEAST_UTILISATION_PCT,
    NOTICEABLE_PCT,
    ONE_AT_A_TIME,
    STRETCHED,
)
from traces.units import NS_PER_S, format_bytes, format_duration


def input_bound(found: Analysis) -> Iterator[Finding]:
    """The loop waits for input: for storage, or for preprocessing."""
    overlap = found.overlap
    wait = overlap.input_wait_pct
    if wait is None or wait <= 100 - LEAST_UTILISATION_PCT:
        return
    wait_ns = overlap.total("input_wait_ns", profiled=True)
    in_io = 100 * overlap.total("io_in_wait_ns", profiled=True) / wait_ns
    if in_io >= 50:
        cause, remedy = "storage", "Read ahead with more threads and larger requests, or move the data closer."
    else:
        cause = "preprocessing"
        remedy = (
            "Decode in parallel (tf.data map with num_parallel_calls, DataLoader workers) or once, ahead of the run: "
            "the DLIO paper gained up to 66 % with more preprocessing threads."
        )
    yield Finding(
        code="input-bound",
        severity=severity_of_loss(wait),
        title=f"Training waits for input, mostly for {cause}",
        evidence=f"{percent(wait)} of the training loop is input wait; storage is busy in {percent(in_io)} of the "
        "wait.",
        threshold=f"above {percent(100 - LEAST_UTILISATION_PCT)}: MLPerf Storage asks for {LEAST_UTILISATION_PCT:g} % "
        "accelerator utilisation",
        remedy=remedy,
        values={"input_wait_pct": wait, "io_in_wait_pct": in_io},
    )


def no_overlap(found: Analysis) -> Iterator[Finding]:
    """I/O of the loop that does not hide behind compute."""
    overlap = found.overlap
    of_loop, hidden = overlap.io_of_loop_pct, overlap.io_hidden_pct
    if of_loop is None or hidden is None or of_loop < NOTICEABLE_PCT or hidden >= HIDDEN_PCT:
        return
    yield Finding(
        code="no-overlap",
        severity=severity_of_loss(of_loop),
        title="I/O and compute take turns",
        evidence=f"{percent(hidden)} of the I/O time lies inside compute; I/O takes {percent(of_loop)} of the training "
        "loop.",
        threshold=f"less than {HIDDEN_PCT:g} % hidden, and I/O at least {NOTICEABLE_PCT:g} % of the loop",
        remedy="Read the next batches while the present one is computed: tf.data prefetch(AUTOTUNE), DataLoader with "
        "workers and prefetch_factor. The loop gains at most the share that I/O takes of it.",
        values={"io_hidden_pct": hidden, "io_of_loop_pct": of_loop},
    )


def one_reader(found: Analysis) -> Iterator[Finding]:
    """A rank whose reads never overlap, while the loop would gain from them."""
    overlap = found.overlap
    union_ns = overlap.total("io_ns", profiled=True)
    loop_ns = overlap.total("loop_ns", profiled=True)
    if not union_ns or not loop_ns:
        return
    profiled = {rank.rank for rank in overlap.ranks if rank.profiled}
    ranks = found.patterns.ranks
    durations = zip(ranks["rank"].to_pylist(), ranks["io_ns"].to_pylist(), strict=True)
    together = sum(io_ns for rank, io_ns in durations if rank in profiled) / union_ns
    io_pct = overlap.io_of_loop_pct or 0.0
    exposed = io_pct * (1 - (overlap.io_hidden_pct or 0.0) / 100)
    if together >= ONE_AT_A_TIME or exposed < NOTICEABLE_PCT:
        return
    yield Finding(
        code="one-reader",
        severity=severity_of_loss(exposed),
        title="Each rank has one operation in flight at a time",
        evidence=f"{together:.2f} operations in flight while any is; {percent(exposed)} of the training loop is I/O "
        "that nothing hides.",
        threshold=f"less than {ONE_AT_A_TIME:g} in flight, and exposed I/O at least {NOTICEABLE_PCT:g} % of the loop",
        remedy="Read with several threads (interleave with num_parallel_calls, DataLoader num_workers): the DLIO paper "
        "gained 1.2x with 8 read threads.",
        values={"in_flight": together, "exposed_io_of_loop_pct": exposed},
    )


def checkpoint_blocking(found: Analysis) -> Iterator[Finding]:
    """Steps that a checkpoint holds up."""
    steps = found.overlap.steps
    if not steps.num_rows:
        return
    loops = [rank for rank in found.overlap.ranks if rank.loop_ns]
    worst = max(loops, key=lambda rank: rank.checkpoint_in_loop_ns / rank.loop_ns)
    share = 100 * worst.checkpoint_in_loop_ns / worst.loop_ns
    own = steps["rank"].to_numpy() == worst.rank
    saving = own & (steps["checkpoint_ns"].to_numpy() + steps["gap_checkpoint_ns"].to_numpy() > 0)
    other = own & ~saving
    if share < NOTICEABLE_PCT or not saving.any() or not other.any():
        return
    duration = steps["duration_ns"].to_numpy() + steps["gap_ns"].to_numpy()
    usual, stretched = float(np.median(duration[other])), float(np.median(duration[saving]))
    if stretched < STRETCHED * usual:
        return
    yield Finding(
        code="checkpoint-blocking",
        severity=severity_of_loss(share),
        title="Checkpoints hold up training",
        evidence=f"{int(saving.sum())} steps of rank {worst.rank} that save take {format_duration(stretched)} "
        f"(median), {stretched / usual:.1f} times the others; saving takes {percent(share)} of its loop"
        f"{_written(found)}.",
        threshold=f"at least {STRETCHED:g} times the other steps, and {NOTICEABLE_PCT:g} % of the loop",
        remedy="Copy the state in memory and write it in the background (asynchronous checkpoints), write from all "
        "ranks in parallel, or save less often.",
        values={
            "checkpoint_of_loop_pct": share,
            "saving_step_s": stretched / NS_PER_S,
            "other_step_s": usual / NS_PER_S,
        },
    )


def _written(found: Analysis) -> str:
    """What went to checkpoint files, traced or from counters, as the end of a sentence; nothing where they are none."""
    files = found.patterns.files
    saved = files.filter(pc.equal(files["format"], "checkpoint"))
    moved = sum(sum(saved[name].to_pylist()) for name in ("bytes_written", "reconstructed_bytes"))
    return f" and writes {format_bytes(moved)} in all" if moved else ""


RULES = (input_bound, no_overlap, one_reader, checkpoint_blocking)
"""The findings of this module, in the order in which equally grave ones are told."""
