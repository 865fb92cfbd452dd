"""What a fit looks at: bytes of each file over all ranks, and the training loops of some ranks.

The loop is examined on at most `MOST_RANKS` ranks, spread over the job: DLIO has the same rule for all of them. The
models are those of `--pace steps`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.loop import COLLECTIVE, FETCH, TrainingLoop, containing
from dxt_replay.replay.causal.model import LoopModel
from dxt_replay.replay.causal.ranks import Steps, rank_loop, rank_rows
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.layers import LayerChoice, spans_by_rank
from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.run.story import choose_layers_together, derive_context
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import OPS, READ, SPAN_KINDS, WRITE, codes
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture

MOST_RANKS = 8

READS = np.dtype([(name, np.int64) for name in ("lane", "file", "offset", "length", "start_ns", "end_ns", "fetch")])
"""A read of a rank; `fetch`: number of the batch fetch that waits for it, -1 where none does."""

USES = np.dtype([("read", np.int64), ("saved", np.int64), ("written", np.int64), ("writers", np.int64)])
"""Bytes of a file over all ranks: read, written inside checkpoints of the loop, and written after the begin of the
loop; `writers`: ranks that wrote the latter."""

_EVALUATED = re.compile(r".*/(?:train|training|(val|valid|validation|eval|evaluation|test))/")
"""The last folder of a path that tells the purpose of its files; group 1 if only evaluations read them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankReads:
    """One rank's loop, its spans, and the reads for it (READS, by their starts).

    is_training: bool by batch fetch; the others belong to evaluations. training_steps: bool by step: those without a
    fetch of an evaluation. opens: the file of each open. other_ns: by fetch, ns of operations on files of the loop that
    are no reads. saved: by event of the loop, bytes written inside a checkpoint. cost_ns: by collective, its cost if no
    rank is late, where ranks meet; else its duration.
    """

    rank: int
    model: LoopModel
    spans: pa.Table
    reads: np.ndarray
    is_training: np.ndarray
    training_steps: np.ndarray
    opens: np.ndarray
    other_ns: np.ndarray
    saved: np.ndarray
    cost_ns: np.ndarray

    @property
    def loop(self) -> TrainingLoop:
        """The training loop of the model."""
        return self.model.loop

    @property
    def synchronous(self) -> bool:
        """Whether the training thread itself reads. Where dependencies are known, it is lane 0."""
        waited = self.reads["fetch"] >= 0
        return self.model.synchronous if self.model.known is None else not self.reads["lane"][waited].any()

    def steps_begun(self, times_ns: np.ndarray) -> np.ndarray:
        """Training steps that had begun by each of these times."""
        return np.searchsorted(self.loop.step_begin_ns[self.training_steps], times_ns, side="right")

    def waited(self, *, training: bool) -> np.ndarray:
        """bool by read: those that a training step waits for, or an evaluation."""
        found = self.reads["fetch"] >= 0
        found[found] &= self.is_training[self.reads["fetch"][found]] == training
        return found

    def of(self, files: np.ndarray) -> np.ndarray:
        """The reads of these files."""
        return self.reads[np.isin(self.reads["file"], files)]

    def trained_on(self, files: np.ndarray) -> np.ndarray:
        """The reads of these files that a training step waits for."""
        return self.reads[self.waited(training=True) & np.isin(self.reads["file"], files)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """The input of the estimators.

    ranks: of the capture, all of them. sources: the kinds of the files that the capture was made from.
    lanes_are_threads: whether lanes are threads, not inferred from overlaps. paths, formats, sizes: of the files.
    datasets: file -> bytes of its largest HDF5 dataset, where that is known. uses: of the files (USES); moved: bytes of
    all operations. looked: the ranks that were examined. warnings: of the models.
    """

    ranks: int
    sources: frozenset[str]
    lanes_are_threads: bool
    paths: tuple[str, ...]
    formats: np.ndarray
    sizes: np.ndarray
    datasets: Mapping[int, int]
    uses: np.ndarray
    moved: int
    looked: tuple[RankReads, ...]
    warnings: tuple[str, ...]


def observe(capture: Capture) -> Observation:
    """Examine a capture. Memory: the loop reads of MOST_RANKS ranks, 56 bytes each, and the files.

    Raises: CaptureError when a rank has no training steps, or a part is damaged.
    """
    places = np.linspace(0, len(capture.ranks) - 1, min(len(capture.ranks), MOST_RANKS)).round().astype(int)
    chosen = tuple(capture.ranks[place] for place in places.tolist())
    few = capture if len(chosen) == len(capture.ranks) else part_of(capture, Part(ranks=chosen))
    layers = choose_layers_together(capture, Solo(), api="auto")
    steps = derive_context(few, Solo(), layers, Pace.STEPS).steps
    assert steps is not None  # the pace is steps
    datasets: dict[int, int] = {}
    for row in capture.hdf5.select(["file_id", "type_size", "points"]).to_pylist():
        datasets[row["file_id"]] = max(datasets.get(row["file_id"], 0), row["type_size"] * row["points"])
    uses, moved = _uses(capture, layers)
    return Observation(
        ranks=len(capture.ranks),
        sources=frozenset(source.kind for source in capture.info.sources),
        lanes_are_threads=capture.info.lanes != "overlap",
        paths=tuple(capture.paths()),
        formats=codes(capture.files, "format"),
        sizes=capture.files["size"].to_numpy(),
        datasets=datasets,
        uses=uses,
        moved=moved,
        looked=tuple(_rank_reads(few, rank, steps, layers) for rank in chosen),
        warnings=steps.warnings,
    )


def _uses(capture: Capture, layers: LayerChoice) -> tuple[np.ndarray, int]:
    spans, begin_ns = spans_by_rank(capture.spans, capture.ranks), capture.time_span_ns[0]
    uses, moved = np.zeros(capture.files.num_rows, dtype=USES), 0
    for rank in capture.ranks:
        loop, wrote = rank_loop(capture, rank, spans[rank], begin_ns), np.empty(0, dtype=np.int64)
        for batch, chosen, _ in rank_rows(capture, rank, layers):
            file_id, length, start_ns = (
                batch.column(name).to_numpy()[chosen] for name in ("file_id", "length", "start_ns")
            )
            op = codes(batch, "op")[chosen]
            saving = containing(loop, loop.checkpoints, start_ns) != NO_EVENT
            written = (op == WRITE) & (saving | (start_ns >= loop.entry_ns))
            for name, mine in (("read", op == READ), ("saved", written & saving), ("written", written)):
                np.add.at(uses[name], file_id[mine], length[mine])
            wrote = np.union1d(wrote, file_id[written])
            moved += int(length.sum())
        uses["writers"][wrote] += 1
    return uses, moved


def _rank_reads(capture: Capture, rank: int, steps: Steps, layers: LayerChoice) -> RankReads:
    model, spans = steps.models[rank], steps.spans[rank]
    loop, dependencies = model.loop, model.dependencies()
    number = np.where(loop.kind == FETCH, np.cumsum(loop.kind == FETCH) - 1, -1)
    other_ns, saved = np.zeros(len(loop.fetches)), np.zeros(len(loop.kind), dtype=np.int64)
    parts, opens = [np.empty(0, dtype=READS)], [np.empty(0, dtype=np.int64)]
    for batch, mine, batch_rows in rank_rows(capture, rank, layers):
        rows = steps.placed(rank, batch_rows)
        need = dependencies(rows)["need"]
        fetch = np.where(need == NO_EVENT, -1, number[need])
        of_loop = model.loop_files[rows.file_id]
        read = of_loop & (rows.op == READ) & (rows.start_ns < loop.exit_ns)
        offset = batch.column("offset").to_numpy()[mine]
        columns = (rows.lane, rows.file_id, offset, rows.length, rows.start_ns, rows.end_ns, fetch)
        parts.append(np.empty(int(read.sum()), dtype=READS))
        for name, column in zip(READS.names or (), columns, strict=True):
            parts[-1][name] = column[read]
        opens.append(rows.file_id[of_loop & (rows.op == OPS.index("open"))])
        other = of_loop & (rows.op != READ) & (fetch >= 0)
        np.add.at(other_ns, fetch[other], (rows.end_ns - rows.start_ns)[other])
        save = containing(loop, loop.checkpoints, rows.start_ns)
        written = (save != NO_EVENT) & (rows.op == WRITE)
        np.add.at(saved, save[written], rows.length[written])
    reads = np.concatenate(parts)
    is_training = _training(loop, spans, capture.paths(), reads)
    # A step is one of training if no evaluation fetch begins in it, unless a training fetch does too.
    begin = loop.begin_ns[loop.fetches]
    step = np.searchsorted(loop.step_begin_ns, begin, side="right") - 1
    inside = (step >= 0) & (begin < loop.step_end_ns[step])
    trains, evaluates = (
        np.bincount(step[inside & each], minlength=len(loop.step_begin_ns)) > 0 for each in (is_training, ~is_training)
    )
    met, collectives = steps.meetings.cost_ns, np.flatnonzero(loop.kind == COLLECTIVE)
    lasted = loop.end_ns[collectives] - loop.begin_ns[collectives]
    return RankReads(
        rank=rank,
        model=model,
        spans=spans,
        reads=reads,
        is_training=is_training,
        training_steps=trains | ~evaluates,
        opens=np.concatenate(opens),
        other_ns=other_ns,
        saved=saved,
        cost_ns=met if len(met) == len(lasted) else lasted,
    )


def _training(loop: TrainingLoop, spans: pa.Table, paths: list[str], reads: np.ndarray) -> np.ndarray:
    """bool by batch fetch: those that begin inside a step and outside of every span whose name tells an evaluation, and
    that wait for more than reads of files in a folder for evaluations."""
    begin = loop.begin_ns[loop.fetches]
    inside = loop.step_at(begin) >= 0
    named = np.array([name.lower().startswith(("eval", "valid", "test")) for name in spans["name"].to_pylist()], bool)
    of_evaluation = spans.filter(named & (codes(spans, "kind") == SPAN_KINDS.index("other")))
    for start, end in zip(of_evaluation["start_ns"].to_numpy(), of_evaluation["end_ns"].to_numpy(), strict=True):
        inside &= (begin < start) | (begin >= end)
    matches = [_EVALUATED.match(path) for path in paths]
    marked = np.array([match is not None and match[1] is not None for match in matches], dtype=bool)[reads["file"]]
    has, others = (
        np.bincount(reads["fetch"][(reads["fetch"] >= 0) & mine], minlength=len(begin)) > 0
        for mine in (marked, ~marked)
    )
    return inside & ~(has & ~others)
