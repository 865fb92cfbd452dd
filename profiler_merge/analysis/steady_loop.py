"""The training loop without its warm-up: its waits, and the most that faster storage could gain. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis.finding import MATERIAL_PCT, WARM_UP
from dxt_replay.traces.measures.span_times import computed_in_loops, gpu_busy_in_profile, gpu_steps
from dxt_replay.traces.paces import Pace
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.schema import CaptureInfo
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.units import NS_PER_S

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.loop import Overlap

LEAST_STEPS = 3
"""Least number of steps for a warm-up: with fewer there is no usual step to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyLoop:
    """The training loop, without the first step of each rank if that step is a warm-up; means over the profiled ranks.

    `recording_wait_s`: longest input wait of a rank, from the first step to the last, while Darshan wrote logs of
    processes that had ended; no other time includes it;
    None where the times of the logs' files are not known.

    `loop_s`: without evaluations. `evaluations`: of the rank with most; `evaluation_s`: their time, mean of the ranks.
    `warm_up_s`: time of the first steps beyond the usual step; 0 if they count like all others.
    `compute_pct`: compute-busy of the whole loop, with its first step: the accelerator utilisation where
    `benchmark_utilisation_pct` is None; None where none is shown. `compute_at_most`: it includes gaps between the
    kernels of a step. `gpu_behind_steps`: steps of which a GPU had work left when the loop asked for the next batch;
    None where not known.
    `gpu_busy_pct`: time in which something ran on a GPU, of `gpu_profile_s`, the time from the first step to the end of
    the profile, evaluations included; mean of the GPUs that worked; None where no kernels are shown.
    `benchmark_utilisation_pct`: accelerator utilisation by the rule of DLIO and MLPerf Storage, which leaves out the
    first steps of each epoch; None for any other training.
    `io_pct`: I/O (union); `io_exposed_pct`: its part outside of compute; `io_in_wait_pct`: share of I/O in the input
    wait; None where so much is rebuilt from counters that it is not known.
    `storage_gain_s`: upper bound of what infinitely fast storage saves, from traced and reconstructed I/O; `summary`,
    the page and the findings show it.
    """

    steps: int
    loop_s: float
    warm_up_s: float
    input_wait_s: float
    input_wait_pct: float
    io_in_wait_pct: float | None
    compute_pct: float | None
    io_pct: float
    io_exposed_pct: float
    storage_gain_s: float
    storage_gain_pct: float
    evaluations: int
    evaluation_s: float
    recording_wait_s: float | None
    compute_at_most: bool
    gpu_behind_steps: int | None
    gpu_busy_pct: float | None
    gpu_profile_s: float | None
    benchmark_utilisation_pct: float | None


def steady_loop(
    overlap: Overlap,
    in_flight_s: float,
    spans: pa.Table,
    recording_wait_ns: int | None = None,
    other_s: float = 0.0,
    *,
    hides_fetch: bool = False,
) -> SteadyLoop | None:
    """The steady loop of `overlap`; None without steps.

    in_flight_s: time with traced reads and writes of any rank in flight; infinite where some may not be traced, so that
    all waits may be for storage. other_s: time in opens, stats and the like. hides_fetch: whether steps may hold
    fetches that no mark shows, and so these, too.
    spans: of the capture. recording_wait_ns: as of `traces.measures.log_waits.longest_log_wait_ns`.
    """
    ranks = overlap.ranks.filter(pc.not_equal(overlap.ranks["loop_ns"], 0))
    if not ranks.num_rows or not overlap.steps.num_rows:
        return None
    first, warm_up_ns = _warm_up(overlap.steps)
    kept, skipped = overlap.steps.filter(pa.array(~first)), overlap.steps.filter(pa.array(first))

    def total(quantity: str, column: str) -> int:
        return sum(ranks[quantity].to_pylist()) - sum(skipped[column].to_pylist())

    loop_ns = total("loop_ns", "duration_ns")
    if not loop_ns:
        return None
    wait_ns, io_ns = total("input_wait_in_loop_ns", "input_wait_ns"), total("io_in_loop_ns", "io_ns")
    in_wait_ns, exposed_ns = (sum(kept[name].to_pylist()) for name in ("io_in_wait_ns", "io_exposed_ns"))
    # The share of I/O in the wait is not known where I/O whose times are estimates could change it.
    estimated_ns = min(overlap.rebuilt_in_loop_ns, wait_ns - in_wait_ns)
    share = None if 100 * estimated_ns > MATERIAL_PCT * wait_ns else 100 * in_wait_ns / wait_ns if wait_ns else 0.0
    # A chain of waits holds at most as much I/O as any rank's loop can have had in flight.
    io_s = min(io_ns / NS_PER_S, in_flight_s) + other_s + sum(ranks["reconstructed_io_ns"].to_pylist()) / NS_PER_S
    loop_s = loop_ns / len(ranks) / NS_PER_S
    blocked_s = _blocked_ns(kept, wait_ns) / NS_PER_S + (other_s if hides_fetch else 0.0)
    gain_s = min(blocked_s, math.inf if math.isinf(in_flight_s) else io_s, loop_s)
    compute_ns, loops_ns = computed_in_loops(spans)
    busy_ns, whole_ns, gpus = gpu_busy_in_profile(spans)
    timed, behind = gpu_steps(spans)
    return SteadyLoop(
        steps=max(ranks["steps"].to_pylist()) - (1 if skipped.num_rows else 0),
        loop_s=loop_s,
        warm_up_s=warm_up_ns / len(ranks) / NS_PER_S,
        input_wait_s=wait_ns / len(ranks) / NS_PER_S,
        input_wait_pct=100 * wait_ns / loop_ns,
        io_in_wait_pct=share,
        compute_pct=100 * compute_ns / loops_ns if compute_ns else None,
        io_pct=100 * io_ns / loop_ns,
        io_exposed_pct=100 * exposed_ns / loop_ns,
        storage_gain_s=gain_s,
        storage_gain_pct=100 * gain_s / loop_s,
        evaluations=max(ranks["evaluations"].to_pylist()),
        evaluation_s=sum(ranks["evaluation_ns"].to_pylist()) / len(ranks) / NS_PER_S,
        recording_wait_s=None if recording_wait_ns is None else recording_wait_ns / NS_PER_S,
        compute_at_most=timed > 0,
        gpu_behind_steps=behind if timed else None,
        gpu_busy_pct=100 * busy_ns / whole_ns if whole_ns else None,
        gpu_profile_s=whole_ns / gpus / NS_PER_S if gpus else None,
        benchmark_utilisation_pct=None,
    )


def waits_are_real(info: CaptureInfo) -> bool:
    """Whether operations wait for each other as in training; not so in a replay at recorded times, or at once."""
    replay = replay_record(info)
    return replay is None or Pace.named(replay.pace).is_closed_loop


def _warm_up(steps: pa.Table) -> tuple[np.ndarray, int]:
    """Which steps are first ones that take `WARM_UP` times their rank's median of the others, bool (steps,), and their
    total excess in ns."""
    rank, duration = steps["rank"].to_numpy(), steps["duration_ns"].to_numpy()
    found, above = np.zeros(len(rank), dtype=bool), 0
    for first, end in pairwise([*runs(rank).tolist(), len(rank)]):
        others = duration[first + 1 : end]
        if len(others) >= LEAST_STEPS - 1 and duration[first] >= WARM_UP * np.median(others):
            found[first] = True
            above += int(duration[first] - np.median(others))
    return found, above


def _blocked_ns(steps: pa.Table, wait_ns: int) -> int:
    """Time in which training can have waited for storage, ns.

    It is the sum over steps of the longest wait of any rank, because the others may have waited for that rank in a
    collective, plus the waits in `wait_ns` (of all ranks) between steps."""
    column = {name: steps[name].to_numpy() for name in steps.column_names if name != "why"}
    exposed = np.maximum(column["io_exposed_ns"] - column["io_in_wait_ns"], 0)
    inside = np.minimum(column["input_wait_ns"] + column["checkpoint_ns"] + exposed, column["duration_ns"])
    blocked = inside + column["gap_checkpoint_ns"]
    _, place = np.unique(column["step"], return_inverse=True)
    longest = np.zeros(place.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(longest, place, blocked)
    return int(longest.sum()) + max(wait_ns - int(column["input_wait_ns"].sum()), 0)
