"""Findings about the training loop and its waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis.analyse import Analysis
from dxt_replay.profiler_merge.analysis.finding import Finding, Stake, percent
from dxt_replay.profiler_merge.analysis.remedies import input_remedy, remedy
from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop
from dxt_replay.profiler_merge.analysis.thresholds import (
    HIDDEN_PCT,
    LEAST_UTILISATION_PCT,
    NOTICEABLE_PCT,
    ONE_AT_A_TIME,
    STRETCHED,
    WARM_UP,
)
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_duration

LOOP = "training loop"

MOSTLY_STORAGE_PCT = 50.0
"""Per cent of the input wait with storage busy, from which the wait counts as mostly for storage."""


def _of_loop(seconds: float, loop: SteadyLoop) -> Stake:
    return Stake(seconds=seconds, whole_s=loop.loop_s, of=LOOP)


def input_bound(found: Analysis) -> Iterator[Finding]:
    """The loop waits for input, because of storage or of something else, such as preprocessing."""
    loop = found.summary.loop
    if loop is None or loop.input_wait_pct <= 100 - LEAST_UTILISATION_PCT:
        return
    share, unknown, values = loop.io_in_wait_pct, found.summary.not_judged, {"input_wait_pct": loop.input_wait_pct}
    if share is not None:
        storage = f"storage is busy in {percent(share)} of the wait."
        values["io_in_wait_pct"] = share
    else:
        share, most = (min(100 * each / loop.input_wait_s, 100.0) for each in found.saved_s or (0.0, loop.input_wait_s))
        storage = f"infinitely fast storage would save at least {percent(share)} of the wait."
        if share < MOSTLY_STORAGE_PCT <= most:
            unknown = unknown or "much of the I/O is rebuilt from counters, and its times are estimates"
        elif share < MOSTLY_STORAGE_PCT:
            storage = f"infinitely fast storage would save at most {percent(most)} of the wait."
        values["saved_of_wait_pct"] = share
    by_storage = share >= MOSTLY_STORAGE_PCT
    cause, name = ("for storage", "read ahead") if by_storage else ("without recorded I/O", "prepare faster")
    known = by_storage or unknown is None
    if not known:
        storage, values = f"the cause is not known: {unknown}.", {"input_wait_pct": loop.input_wait_pct}
    yield Finding(
        code="input-bound",
        title=f"Training waits for input, mostly {cause}" if known else "Training waits for input",
        evidence=f"{percent(loop.input_wait_pct)} of the training loop is input wait{_after_warm_up(loop)}; {storage}",
        threshold=f"above {percent(100 - LEAST_UTILISATION_PCT)}: MLPerf Storage asks for {LEAST_UTILISATION_PCT:g} % "
        "accelerator utilisation",
        remedy=input_remedy(name if known else "read ahead", found.setting, loop),
        values=values,
        **_of_loop(loop.input_wait_s, loop).columns(),
    )


def _after_warm_up(loop: SteadyLoop) -> str:
    return " (first step left out)" if loop.warm_up_s else ""


def no_overlap(found: Analysis) -> Iterator[Finding]:
    """I/O of the loop that compute does not hide."""
    loop, hidden = found.summary.loop, found.overlap.io_hidden_pct
    if loop is None or hidden is None or loop.io_pct < NOTICEABLE_PCT or hidden >= HIDDEN_PCT:
        return
    stake = _of_loop(loop.storage_gain_s, loop)
    if not stake.matters:
        return
    yield Finding(
        code="no-overlap",
        title="I/O and compute take turns",
        evidence=f"{percent(hidden)} of the I/O time lies inside compute; I/O takes {percent(loop.io_pct)} of the "
        f"training loop{_after_warm_up(loop)}.",
        threshold=f"less than {HIDDEN_PCT:g} % hidden, and I/O at least {NOTICEABLE_PCT:g} % of the loop",
        remedy=input_remedy("read ahead", found.setting, loop),
        values={"io_hidden_pct": hidden, "io_of_loop_pct": loop.io_pct},
        **stake.columns(),
    )


def one_reader(found: Analysis) -> Iterator[Finding]:
    """A rank whose reads never overlap although the loop would gain from that."""
    loop = found.summary.loop
    union_ns = found.overlap.total("io_ns", profiled=True)
    if not union_ns or loop is None:
        return
    profiled = set(found.overlap.ranks.filter(found.overlap.ranks["profiled"])["rank"].to_pylist())
    ranks = found.patterns.ranks
    durations = zip(ranks["rank"].to_pylist(), ranks["io_ns"].to_pylist(), strict=True)
    together = sum(io_ns for rank, io_ns in durations if rank in profiled) / union_ns
    stake = _of_loop(loop.storage_gain_s, loop)
    if together >= ONE_AT_A_TIME or loop.io_exposed_pct < NOTICEABLE_PCT or not stake.matters:
        return
    yield Finding(
        code="one-reader",
        title="Each rank has one operation in flight at a time",
        evidence=f"{together:.2f} operations are in flight while any is; {percent(loop.io_exposed_pct)} of the "
        f"training loop is I/O outside compute{_after_warm_up(loop)}.",
        threshold=f"less than {ONE_AT_A_TIME:g} in flight, and exposed I/O at least {NOTICEABLE_PCT:g} % of the loop",
        remedy=input_remedy("read in parallel", found.setting, loop),
        values={"in_flight": together, "exposed_io_of_loop_pct": loop.io_exposed_pct},
        **stake.columns(),
    )


def checkpoint_blocking(found: Analysis) -> Iterator[Finding]:
    """Steps that a checkpoint delays."""
    steps = found.overlap.steps
    if not steps.num_rows:
        return
    ranks = found.overlap.ranks.select(["rank", "loop_ns", "checkpoint_in_loop_ns"]).to_pylist()
    worst = max((rank for rank in ranks if rank["loop_ns"]), key=_checkpoint_share)
    stake = Stake(seconds=worst["checkpoint_in_loop_ns"] / NS_PER_S, whole_s=worst["loop_ns"] / NS_PER_S, of=LOOP)
    own = steps["rank"].to_numpy() == worst["rank"]
    saving = own & (steps["checkpoint_ns"].to_numpy() + steps["gap_checkpoint_ns"].to_numpy() > 0)
    other = own & ~saving
    if not stake.matters or not saving.any() or not other.any():
        return
    duration = steps["duration_ns"].to_numpy() + steps["gap_ns"].to_numpy()
    usual, stretched = float(np.median(duration[other])), float(np.median(duration[saving]))
    if usual <= 0 or stretched < STRETCHED * usual:
        return
    yield Finding(
        code="checkpoint-blocking",
        title="Checkpoints hold up training",
        evidence=f"{int(saving.sum())} steps of rank {worst['rank']} that save take {format_duration(stretched)} "
        f"(median), {stretched / usual:.1f} times the others; saving takes {percent(stake.pct)} of its loop"
        f"{_written(found)}.",
        threshold=f"at least {STRETCHED:g} times the other steps, and {NOTICEABLE_PCT:g} % of the loop",
        remedy=remedy("save aside", found.setting.framework),
        values={
            "checkpoint_of_loop_pct": stake.pct,
            "saving_step_s": stretched / NS_PER_S,
            "other_step_s": usual / NS_PER_S,
        },
        **stake.columns(),
    )


def _checkpoint_share(rank: Mapping[str, int]) -> float:
    return rank["checkpoint_in_loop_ns"] / rank["loop_ns"]


def _written(found: Analysis) -> str:
    """The bytes written to checkpoint files, traced or counted, as the end of a sentence; empty if there are none."""
    files = found.patterns.files
    saved = files.filter(pc.equal(files["format"], "checkpoint"))
    moved = sum(sum(saved[name].to_pylist()) for name in ("bytes_written", "reconstructed_bytes"))
    return f" and writes {format_bytes(moved)} in all" if moved else ""


def warm_up(found: Analysis) -> Iterator[Finding]:
    """A first step that is much longer than the others; the findings about the loop leave it out."""
    loop = found.summary.loop
    if loop is None or not loop.warm_up_s:
        return
    stake = Stake(seconds=loop.warm_up_s, whole_s=loop.loop_s + loop.warm_up_s, of=LOOP)
    if not stake.matters:
        return
    yield Finding(
        code="warm-up",
        title="The first step is a warm-up",
        evidence=f"It takes {format_duration(loop.warm_up_s * NS_PER_S)} longer than the usual step (mean of the "
        "ranks); the other findings leave it out.",
        threshold=f"at least {WARM_UP:g} times the median of the other steps",
        remedy="None is needed for a long run, which has one first step too. In a short test, leave the first step "
        "out (--steps 1-N) before you compare.",
        values={"warm_up_s": loop.warm_up_s},
        **{**stake.columns(), "severity": "info"},
    )


RULES = (input_bound, no_overlap, one_reader, checkpoint_blocking, warm_up)
"""The findings of this module; equally severe ones are listed in this order."""
