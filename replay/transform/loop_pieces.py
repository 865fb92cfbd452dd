"""Makes a training loop of another length, by cutting off or repeating the steps of a recorded one. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.causal.training_loop import CHECKPOINT, FETCH
from dxt_replay.replay.transform.rank_work import NOTHING, BatchMaking, RankLoop, fetch_numbers
from dxt_replay.traces.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PiecedLoop:
    """A loop made of the steps of another one.

    loop: the new loop, at times that follow from the old ones.
    event_of: int64 (events,), the old event that each new one repeats. shift_ns: int64 (events,), its delay.
    slots: int64, numbers of the batch fetches that take a batch of the data set, in order.
    """

    loop: RankLoop
    event_of: np.ndarray
    shift_ns: np.ndarray
    slots: np.ndarray


def pieced(old: RankLoop, takes_batch: np.ndarray, batches: int, *, checkpoints: bool) -> PiecedLoop:
    """A loop that fetches `batches` batches: the steps of `old` in order, repeated from the first one if needed.

    takes_batch: bool (fetches,), the fetches of `old` that take a batch of the data set.
    checkpoints: whether its checkpoints become events of the new loop; else their time is busy time.
    Raises: UsageError if no step of `old` fetches a batch.
    """
    loop = old.loop
    step = np.searchsorted(loop.step_begin_ns, loop.begin_ns, side="right") - 1
    step[0] = -1
    takes = np.zeros(len(loop.kind), dtype=bool)
    takes[loop.fetches] = takes_batch
    kept = np.ones(len(step), dtype=bool) if checkpoints else loop.kind != CHECKPOINT
    per_step = np.bincount(step[takes & (step >= 0)], minlength=len(loop.step_begin_ns))
    if not per_step.sum():
        raise UsageError("no step of this capture fetches a batch that was read, so its steps cannot be shared out")
    steps = _steps_for(per_step, batches - int(takes[step < 0].sum()))
    begins = np.append(loop.step_begin_ns, loop.exit_ns)
    lengths = np.diff(begins)[steps]
    at_ns = begins[0] + np.cumsum(lengths) - lengths
    shift = at_ns - begins[steps]
    by_step = [np.flatnonzero(kept & (step == number)) for number in range(len(per_step))]
    before = np.flatnonzero(kept & (step < 0))
    events = np.concatenate([before, *(by_step[number] for number in steps.tolist())])
    counts = np.array([len(by_step[number]) for number in steps.tolist()], dtype=np.int64)
    shift_ns = np.concatenate((np.zeros(len(before), dtype=np.int64), np.repeat(shift, counts)))
    of_fetch = fetch_numbers(loop)[events][loop.kind[events] == FETCH]
    new = dataclasses.replace(
        loop,
        kind=loop.kind[events],
        loader=loop.loader[events],
        begin_ns=loop.begin_ns[events] + shift_ns,
        end_ns=loop.end_ns[events] + shift_ns,
        step_number=loop.step_number[0] + np.arange(len(steps), dtype=loop.step_number.dtype),
        step_begin_ns=loop.step_begin_ns[steps] + shift,
        step_end_ns=loop.step_end_ns[steps] + shift,
        exit_ns=int(at_ns[-1] + lengths[-1]),
    )
    return PiecedLoop(
        loop=RankLoop(
            loop=new,
            residual_ns=old.residual_ns[events],
            ready_ns=old.ready_ns[of_fetch],
            making=None if old.making is None else _made(old.making, of_fetch),
        ),
        event_of=events,
        shift_ns=shift_ns,
        slots=np.flatnonzero(takes_batch[of_fetch])[:batches],
    )


def _made(making: BatchMaking, of_fetch: np.ndarray) -> BatchMaking:
    """The making of the batches of these old fetches, with room for as many as before."""
    room = np.where(making.asked[of_fetch], 2 * np.arange(len(of_fetch)), NOTHING)
    pieces = BatchMaking(
        room=room,
        delay_ns=making.delay_ns[of_fetch],
        head_ns=making.head_ns[of_fetch],
        tail_ns=making.tail_ns[of_fetch],
    )
    return pieces.with_ahead(making.ahead)


def _steps_for(per_step: np.ndarray, batches: int) -> np.ndarray:
    """Rows of the steps, repeated from the first one if needed, that fetch this many batches; at least one row."""
    rounds = max(-(-batches // int(per_step.sum())), 1)
    many = np.tile(np.arange(len(per_step)), rounds)
    enough = int(np.searchsorted(np.cumsum(per_step[many]), max(batches, 1))) + 1
    return many[:enough]
