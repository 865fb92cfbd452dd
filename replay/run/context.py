"""Derives data from a capture before a run. Runs that differ only in their target share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dxt_replay.replay.causal.ranks import Steps, derive_steps
from dxt_replay.replay.plan.chosen_layers import LayerChoice, choose_layers
from dxt_replay.replay.plan.collectives import Collectives, choose_collectives
from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.replay.plan.survey import RankSurvey, spans_by_rank, survey_rank
from dxt_replay.replay.ranks.comm import Communicator, share_of, together
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.unseen import nothing_recorded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunContext:
    """The data that one process derives from the capture before it replays. `RunOptions` holds the user's choices.

    `layers`: at which layer each file is replayed.
    `collectives`: which files are replayed by collective operations.
    `begin_ns`, `end_ns`: recorded times at which the replay starts and ends, the same on all processes.
    `surveys`: one for each rank that this process replays.
    `spans`: rank -> rows of `SPANS_SCHEMA`, for the same ranks.
    `steps`: the causal models of these ranks; None for a pace that does not follow the training loop.
    """

    capture: Capture
    layers: LayerChoice
    collectives: Collectives
    begin_ns: int
    end_ns: int
    surveys: Sequence[RankSurvey]
    spans: Mapping[int, pa.Table]
    steps: Steps | None

    @property
    def recorded_ns(self) -> int:
        """Recorded duration of the replayed part of the capture, ns."""
        return self.end_ns - self.begin_ns


def choose_layers_together(capture: Capture, comm: Communicator, *, api: str) -> LayerChoice:
    """`choose_layers` on process 0, and its result on all. Collective.

    Raises: on all processes as `choose_layers`, and CaptureError for a capture without recorded I/O.
    """

    def chosen_layers() -> LayerChoice:
        if nothing_recorded(capture.info.coverage.unseen):
            raise CaptureError(
                f"{capture.named} was made of marks or profiles alone, so that there is no I/O to replay: merge them "
                "with the job's Darshan log or another trace"
            )
        return choose_layers(capture, api=api)

    chosen = together(comm, lambda: chosen_layers() if comm.rank == 0 else None)
    layers: LayerChoice = comm.broadcast(chosen)
    return layers


def derive_context(capture: Capture, comm: Communicator, layers: LayerChoice, pace: Pace) -> RunContext:
    """The context of this process, which replays its share of the capture's ranks. Collective.

    Raises: CaptureError on all processes when a part is damaged, or `pace` needs steps that a rank does not have.
    """
    ranks = share_of(capture.ranks, comm.rank, comm.size)
    limits = together(comm, lambda: capture.time_span_ns if comm.rank == 0 else None)
    begin_ns, end_ns = comm.broadcast(limits)
    surveys = together(comm, lambda: [survey_rank(capture, rank, layers) for rank in ranks])
    collectives = choose_collectives(capture, surveys, layers, comm)
    if collectives.files.any():
        layers = replace(layers, collective=collectives.files)
        surveys = together(comm, lambda: [survey_rank(capture, rank, layers) for rank in ranks])
    spans = together(comm, lambda: spans_by_rank(capture.spans, ranks))
    return RunContext(
        capture=capture,
        layers=layers,
        collectives=collectives,
        begin_ns=begin_ns,
        end_ns=end_ns,
        surveys=surveys,
        spans=spans,
        steps=derive_steps(capture, surveys, spans, begin_ns, comm) if pace is Pace.STEPS else None,
    )
