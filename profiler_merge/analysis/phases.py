"""Steps, compute and waits for input, from the spans of a capture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import (
    evaluations_by_rank,
    extended_steps,
    spans_by_rank,
    union_by_rank,
    whole_steps,
)
from dxt_replay.traces.units import ns_to_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Training steps.

    count: of the rank with the most.
    mean_s: over the steps of all ranks, without evaluations in them; None without any.
    extended: number of steps inferred from the profiled ones, of the rank with the most.
    """

    count: int
    mean_s: float | None
    extended: int = 0


def steps(spans: pa.Table) -> Steps:
    """Steps of a spans table."""
    counts, total_ns, evaluated = [], 0, evaluations_by_rank(spans)
    for rank, _, starts, ends in spans_by_rank(whole_steps(spans), "step"):
        counts.append(len(starts))
        total_ns += int((ends - starts - evaluated.get(rank, Intervals()).covered_within(starts, ends)).sum())
    return Steps(
        count=max(counts, default=0),
        mean_s=ns_to_seconds(total_ns) / sum(counts) if counts else None,
        extended=extended_steps(spans)[0],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """Compute-busy and input-wait times by rank, and the ranks with spans; for the others they are not known.

    `input_wait`: of training; an evaluation's waits are not part of it. `loop`: of each rank with steps, from the first
    one's begin to the last one's end.
    """

    profiled_ranks: tuple[int, ...]
    compute: dict[int, Intervals]
    input_wait: dict[int, Intervals]
    loop: dict[int, Intervals]

    @property
    def compute_s(self) -> float | None:
        """Mean of the compute in the loops, or of all compute of ranks without steps."""
        return self.mean_s(
            {
                rank: times.minus(times.minus(self.loop[rank])) if rank in self.loop else times
                for rank, times in self.compute.items()
            }
        )

    def mean_s(self, times: dict[int, Intervals]) -> float | None:
        """Mean of the lengths over the profiled ranks, in seconds; None if there are none."""
        if not self.profiled_ranks:
            return None
        return ns_to_seconds(sum(found.length_ns for found in times.values())) / len(self.profiled_ranks)


def phases(spans: pa.Table) -> Phases:
    """Phases of a spans table."""
    evaluated = evaluations_by_rank(spans)
    return Phases(
        profiled_ranks=tuple(np.unique(spans["rank"].to_numpy()).tolist()),
        compute=union_by_rank(spans, "compute"),
        input_wait={
            rank: waits.minus(evaluated.get(rank, Intervals()))
            for rank, waits in union_by_rank(spans, "input_wait").items()
        },
        loop={
            rank: Intervals(starts=starts[:1], ends=ends.max(keepdims=True))
            for rank, _, starts, ends in spans_by_rank(whole_steps(spans), "step")
        },
    )
