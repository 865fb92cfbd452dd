"""The input of a fit: totals over all operations, and the causal models of some ranks for the loop.

The totals cover every rank. The training loop is examined on at most `MOST_RANKS` ranks, spread over the job: DLIO has
the same rule for all of them. The models are those of `--pace steps`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.feed import containing
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.paced_ranks import Steps, rank_loop, rank_rows
from dxt_replay.replay.causal.training_loop import COLLECTIVE, FETCH, TrainingLoop
from dxt_replay.replay.plan.chosen_layers import LayerChoice
from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.replay.plan.plan_row import NO_EVENT, OperationBatch
from dxt_replay.replay.plan.survey import spans_by_rank
from dxt_replay.replay.ranks.comm import Solo
from dxt_replay.replay.run.context import choose_layers_together, derive_context
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import APIS, OPS, READ, SPAN_KINDS, WRITE, codes
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture

MOST_RANKS = 8
"""Ranks whose training loops are examined."""

BEFORE, LOOP, SAVING, AFTER = range(4)
"""When an operation began: before the rank's first step, in its loop, inside a checkpoint of the loop, after it."""

_FOLD_ROWS = 1 << 20
"""Rows of counts after which they are added up."""

_EVALUATIONS = ("eval", "valid", "test")
"""Prefixes of span names under which an application evaluates."""

_EVALUATED = re.compile(r".*/(?:train|training|(val|valid|validation|eval|evaluation|test))/")
"""The last folder of a path that tells the purpose of its files; group 1 if only evaluations read them."""

OPEN = OPS.index("open")
_OTHER = SPAN_KINDS.index("other")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Uses:
    """Counts of the operations of all ranks; arrays (rows,), a row for each file, operation, interface and phase.

    `phase`: BEFORE, LOOP, SAVING or AFTER. `ranks`: number of ranks with such operations.
    """

    file_id: np.ndarray
    op: np.ndarray
    api: np.ndarray
    phase: np.ndarray
    operations: np.ndarray
    bytes: np.ndarray
    ranks: np.ndarray

    def total(self, rows: np.ndarray) -> tuple[int, int]:
        """Operations and bytes of the rows of a mask."""
        return int(self.operations[rows].sum()), int(self.bytes[rows].sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankReads:
    """One rank's loop, and the n reads for it; arrays (n,) in the order of their starts.

    model: the causal model of the rank.
    is_training: bool by batch fetch; the others belong to evaluations.
    training_steps: bool by step: those without a fetch of an evaluation.
    fetch: number of the batch fetch that waits for the read, -1 where none does.
    opens: (m, 2), file and number of the fetch (-1 for none) of each open, in order.
    other_ns: by fetch, ns of the other operations on files of the loop: opens, closes and the like.
    saves: int64 (k, 4), checkpoint, file, interface and length of each write inside a checkpoint.
    """

    rank: int
    model: LoopModel
    is_training: np.ndarray
    training_steps: np.ndarray
    lane: np.ndarray
    file_id: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    fetch: np.ndarray
    opens: np.ndarray
    other_ns: np.ndarray
    saves: np.ndarray

    @property
    def loop(self) -> TrainingLoop:
        """The training loop of the model."""
        return self.model.loop

    @property
    def synchronous(self) -> bool:
        """Whether the training thread itself reads. Where dependencies are known, it is lane 0."""
        return self.model.synchronous if self.model.known is None else not self.lane[self.fetch >= 0].any()

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return int(self.training_steps.sum())

    def steps_begun(self, times_ns: np.ndarray) -> np.ndarray:
        """Training steps that had begun by each of these times."""
        begins = self.loop.step_begin_ns[self.training_steps]
        return np.searchsorted(begins, times_ns, side="right")

    @property
    def of_training(self) -> np.ndarray:
        """bool (n,): the reads that a training step waits for."""
        return self.of_fetches(self.is_training)

    def of_fetches(self, chosen: np.ndarray) -> np.ndarray:
        """bool (n,): the reads that one of the `chosen` fetches (bool by fetch) waits for."""
        found = self.fetch >= 0
        found[found] &= chosen[self.fetch[found]]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDataset:
    """An HDF5 dataset: bytes of all its elements and of one, and elements of a chunk by dimension (empty: contiguous;
    None: unknown)."""

    bytes: int
    element_bytes: int
    chunk_shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """The input of the estimators.

    ranks: of the capture, all of them.
    sources: the kinds of the files that the capture was made from.
    lanes_are_threads: whether lanes are threads, not inferred from overlaps.
    paths, formats, sizes: of the files. datasets: file id -> its largest HDF5 dataset, where that is known.
    uses: totals of all ranks. looked: the ranks that were examined.
    steps: their models.
    """

    ranks: int
    sources: frozenset[str]
    lanes_are_threads: bool
    paths: tuple[str, ...]
    formats: np.ndarray
    sizes: np.ndarray
    datasets: Mapping[int, StoredDataset]
    uses: Uses
    looked: tuple[RankReads, ...]
    steps: Steps
    warnings: tuple[str, ...]


def observe(capture: Capture) -> Observation:
    """Examine a capture. Memory: the loop reads of MOST_RANKS ranks, 56 bytes each, and the files.

    Raises: CaptureError when a rank has no training steps, or a part is damaged.
    """
    chosen = spread(capture.ranks, MOST_RANKS)
    few = capture if len(chosen) == len(capture.ranks) else part_of(capture, Part(ranks=chosen))
    layers = choose_layers_together(capture, Solo(), api="auto")
    context = derive_context(few, Solo(), layers, Pace.STEPS)
    steps = context.steps
    assert steps is not None  # the pace is steps
    return Observation(
        ranks=len(capture.ranks),
        sources=frozenset(source.kind for source in capture.info.sources),
        lanes_are_threads=capture.info.lanes != "overlap",
        paths=tuple(capture.paths()),
        formats=codes(capture.files, "format"),
        sizes=capture.files["size"].to_numpy(),
        datasets=_datasets(capture),
        uses=_uses(capture, layers),
        looked=tuple(_rank_reads(few, rank, steps, layers) for rank in chosen),
        steps=steps,
        warnings=steps.warnings,
    )


def _datasets(capture: Capture) -> dict[int, StoredDataset]:
    found: dict[int, StoredDataset] = {}
    for row in capture.hdf5.select(["file_id", "type_size", "points", "chunk_shape"]).to_pylist():
        size = row["type_size"] * row["points"]
        if row["file_id"] not in found or found[row["file_id"]].bytes < size:
            chunk = None if row["chunk_shape"] is None else tuple(row["chunk_shape"])
            found[row["file_id"]] = StoredDataset(bytes=size, element_bytes=row["type_size"], chunk_shape=chunk)
    return found


def spread(ranks: tuple[int, ...], most: int) -> tuple[int, ...]:
    """At most `most` of the ranks, evenly spread, including the first and the last."""
    if len(ranks) <= most:
        return ranks
    return tuple(ranks[place] for place in np.linspace(0, len(ranks) - 1, most).round().astype(int).tolist())


def _uses(capture: Capture, layers: LayerChoice) -> Uses:
    files, begin_ns = max(capture.files.num_rows, 1), capture.time_span_ns[0]
    spans = spans_by_rank(capture.spans, capture.ranks)
    total = np.empty((0, 4), dtype=np.int64)
    parts: list[np.ndarray] = []
    for rank in capture.ranks:
        loop = rank_loop(capture, rank, spans[rank], begin_ns)
        mine = [_counted(batch, chosen, loop, files) for batch, chosen, _ in rank_rows(capture, rank, layers)]
        if mine:
            of_rank = _added_up(np.concatenate(mine))
            of_rank[:, 3] = 1
            parts.append(of_rank)
        if sum(map(len, parts)) > max(_FOLD_ROWS, len(total)):
            total, parts = _added_up(np.concatenate((total, *parts))), []
    total = _added_up(np.concatenate((total, *parts)))
    rest, file_id = np.divmod(total[:, 0], files)
    rest, phase = np.divmod(rest, 4)
    op, api = np.divmod(rest, len(APIS))
    return Uses(
        file_id=file_id,
        op=op,
        api=api,
        phase=phase,
        operations=total[:, 1],
        bytes=total[:, 2],
        ranks=total[:, 3],
    )


def _counted(batch: pa.RecordBatch, chosen: np.ndarray, loop: TrainingLoop, files: int) -> np.ndarray:
    """int64 (k, 4): key of a file, operation, interface and phase; operations; bytes; 0."""
    phase = phases(loop, batch.column("start_ns").to_numpy()[chosen])
    key = (codes(batch, "op")[chosen].astype(np.int64) * len(APIS) + codes(batch, "api")[chosen]) * 4 + phase
    key = key * files + batch.column("file_id").to_numpy()[chosen]
    length = batch.column("length").to_numpy()[chosen]
    return _added_up(np.stack((key, np.ones_like(key), length, np.zeros_like(key)), axis=1))


def _added_up(rows: np.ndarray) -> np.ndarray:
    """The rows with each key once, ascending, and the sums of the other columns."""
    keys, place = np.unique(rows[:, 0], return_inverse=True)
    sums = np.zeros((len(keys), 4), dtype=np.int64)
    np.add.at(sums, place, rows)
    sums[:, 0] = keys
    return sums


def phases(loop: TrainingLoop, start_ns: np.ndarray) -> np.ndarray:
    """int64 (n,): BEFORE, LOOP, SAVING or AFTER, by when operations of the rank began."""
    found = np.full(len(start_ns), LOOP, dtype=np.int64)
    found[start_ns < loop.entry_ns] = BEFORE
    found[start_ns >= loop.exit_ns] = AFTER
    found[containing(loop, loop.checkpoints, start_ns) != NO_EVENT] = SAVING
    return found


def _rank_reads(capture: Capture, rank: int, steps: Steps, layers: LayerChoice) -> RankReads:
    model = steps.models[rank]
    loop, dependencies = model.loop, model.dependencies()
    found = _Collected(model)
    for batch, mine, rows in rank_rows(capture, rank, layers):
        operations = steps.placed(rank, rows)
        offset, api = batch.column("offset").to_numpy()[mine], codes(batch, "api")[mine]
        found.add(operations, dependencies(operations)["need"], offset, api)
    lane, file_id, offset, length, start_ns, end_ns, fetch = _stacked(found.reads, 7)
    evaluated = np.array([_for_evaluations(path) for path in capture.paths()], dtype=bool)
    is_training = _training(loop, steps.spans[rank]) & ~_only(evaluated[file_id], fetch, len(loop.fetches))
    return RankReads(
        rank=rank,
        model=model,
        is_training=is_training,
        training_steps=_training_steps(loop, is_training),
        lane=lane,
        file_id=file_id,
        offset=offset,
        length=length,
        start_ns=start_ns,
        end_ns=end_ns,
        fetch=fetch,
        opens=_stacked(found.opens, 2).T,
        other_ns=found.other_ns,
        saves=_stacked(found.saves, 4).T,
    )


class _Collected:
    """Collects the columns of `RankReads` batch by batch: each part is (columns, rows)."""

    def __init__(self, model: LoopModel) -> None:
        loop = model.loop
        self._model = model
        self._number = np.where(loop.kind == FETCH, np.cumsum(loop.kind == FETCH) - 1, -1)
        self.reads: list[np.ndarray] = []
        self.opens: list[np.ndarray] = []
        self.saves: list[np.ndarray] = []
        self.other_ns = np.zeros(len(loop.fetches))

    def add(self, rows: OperationBatch, need: np.ndarray, offset: np.ndarray, api: np.ndarray) -> None:
        """Count operations; `need`: the event that waits for each operation."""
        loop = self._model.loop
        fetch = np.where(need == NO_EVENT, -1, self._number[need])
        of_loop = self._model.loop_files[rows.file_id]
        read = of_loop & (rows.op == READ) & (rows.start_ns < loop.exit_ns)
        columns = (rows.lane, rows.file_id, offset, rows.length, rows.start_ns, rows.end_ns, fetch)
        self.reads.append(np.stack([column[read] for column in columns]))
        opened = of_loop & (rows.op == OPEN)
        self.opens.append(np.stack((rows.file_id[opened], fetch[opened])))
        other = of_loop & (rows.op != READ) & (fetch >= 0)
        np.add.at(self.other_ns, fetch[other], (rows.end_ns - rows.start_ns)[other])
        save = containing(loop, loop.checkpoints, rows.start_ns)
        written = (save != NO_EVENT) & (rows.op == WRITE)
        self.saves.append(np.stack([each[written] for each in (save, rows.file_id, api, rows.length)]))


def _stacked(parts: list[np.ndarray], columns: int) -> np.ndarray:
    return np.concatenate([np.empty((columns, 0), dtype=np.int64), *parts], axis=1)


def _for_evaluations(path: str) -> bool:
    found = _EVALUATED.match(path)
    return found is not None and found[1] is not None


def _only(marked: np.ndarray, fetch: np.ndarray, fetches: int) -> np.ndarray:
    """bool by fetch: the fetches that wait for marked reads only."""
    of_fetch = fetch >= 0
    has = np.bincount(fetch[of_fetch & marked], minlength=fetches) > 0
    others = np.bincount(fetch[of_fetch & ~marked], minlength=fetches) > 0
    return has & ~others


def _training_steps(loop: TrainingLoop, is_training: np.ndarray) -> np.ndarray:
    """bool by step: no evaluation fetch begins in it, unless a training fetch does too."""
    begin = loop.begin_ns[loop.fetches]
    step = np.searchsorted(loop.step_begin_ns, begin, side="right") - 1
    inside = (step >= 0) & (begin < loop.step_end_ns[step])
    steps = len(loop.step_begin_ns)
    trains = np.bincount(step[inside & is_training], minlength=steps) > 0
    evaluates = np.bincount(step[inside & ~is_training], minlength=steps) > 0
    return trains | ~evaluates


def _training(loop: TrainingLoop, spans: pa.Table) -> np.ndarray:
    """bool by batch fetch: those that begin inside a step and outside of every evaluation span."""
    begin = loop.begin_ns[loop.fetches]
    inside = loop.step_at(begin) >= 0
    named = [name.lower().startswith(_EVALUATIONS) for name in spans["name"].to_pylist()]
    of_evaluation = np.array(named, dtype=bool) & (codes(spans, "kind") == _OTHER)
    for start, end in zip(
        spans["start_ns"].to_numpy()[of_evaluation], spans["end_ns"].to_numpy()[of_evaluation], strict=True
    ):
        inside &= (begin < start) | (begin >= end)
    return inside


def own_cost_ns(steps: Steps) -> Mapping[int, np.ndarray]:
    """Rank -> ns by collective: the cost of each if no rank is late, for ranks that meet; else its duration."""
    cost = steps.meetings.cost_ns
    found = {}
    for rank, model in steps.models.items():
        events = np.flatnonzero(model.loop.kind == COLLECTIVE)
        lasted = model.loop.end_ns[events] - model.loop.begin_ns[events]
        found[rank] = cost if len(cost) == len(lasted) else lasted
    return found
