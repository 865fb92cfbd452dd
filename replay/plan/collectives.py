"""Finds the files whose collective operations can be collective again.

A collective call waits until all processes of the run make it. So each process must replay one rank, the ranks must
have the same number of collective operations on the file, and, because calls on different files wait for each other
too, all ranks must make all of them in the same order, on one thread. Then the k-th call of every process is the same,
and no call waits for a later one. Otherwise the operations are replayed as independent ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dxt_replay.replay.plan.chosen_layers import MPIIO, LayerChoice
from dxt_replay.replay.plan.survey import RankSurvey
from dxt_replay.replay.ranks.comm import Communicator
from dxt_replay.traces.schema import APIS, READ, WRITE, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count

_COLLECTIVE = APIS.index("MPIIO_COLL")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collectives:
    """`files`: bool by file, to be collective; `written`: those that some rank writes. `warnings`: what is not, why."""

    files: np.ndarray
    written: np.ndarray
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """The share of one process: number of ranks, their collective operations by file, and the files that they write."""

    ranks: int
    counts: dict[int, int] = field(default_factory=dict)
    writes: frozenset[int] = frozenset()


def choose_collectives(
    capture: Capture, surveys: Sequence[RankSurvey], layers: LayerChoice, comm: Communicator
) -> Collectives:
    """Agree on the files, on all processes together. Reads the op stream only where a rank has collective operations.

    Raises: CaptureError when a part is damaged.
    """
    shares = comm.gather(_share(capture, surveys, layers))
    candidates = comm.broadcast(None if shares is None else _candidates(shares, capture.files.num_rows))
    if candidates.files.any():
        orders = comm.gather([_order(capture, survey, layers, candidates.files) for survey in surveys])
        candidates = comm.broadcast(None if orders is None else _same_order(candidates, orders))
    found: Collectives = candidates
    return found


def _share(capture: Capture, surveys: Sequence[RankSurvey], layers: LayerChoice) -> _Share:
    counts: dict[int, int] = {}
    for survey in surveys:
        used = capture.usage(survey.rank)
        mask = _collective_rows(used, layers)
        for file, count in zip(used["file_id"].to_numpy()[mask], used["operations"].to_numpy()[mask], strict=True):
            counts[int(file)] = counts.get(int(file), 0) + int(count)
    writes = frozenset(file for survey in surveys for file in survey.writes.tolist())
    return _Share(ranks=len(surveys), counts=counts, writes=writes & counts.keys())


def _collective_rows(rows: pa.RecordBatch | pa.Table, layers: LayerChoice) -> np.ndarray:
    """Mask of the rows that were collective and are replayed through MPI-IO."""
    api, op = codes(rows, "api"), codes(rows, "op")
    mask: np.ndarray = layers.replayed(rows) & (api == _COLLECTIVE) & ((op == READ) | (op == WRITE))
    return mask & (layers.backends(api, rows.column("file_id").to_numpy()) == MPIIO)


def _candidates(shares: Sequence[_Share], files: int) -> Collectives:
    """Files of which all ranks have the same number of collective operations."""
    used = sorted({file for share in shares for file in share.counts})
    chosen, written = np.zeros((2, files), dtype=bool)
    if not used:
        return Collectives(files=chosen, written=written)
    if any(share.ranks != 1 for share in shares):
        why = "not each process replays one rank"
        return Collectives(files=chosen, written=written, warnings=(_independent(len(used), why),))
    for file in used:
        chosen[file] = len({share.counts.get(file, 0) for share in shares}) == 1
        written[file] = any(file in share.writes for share in shares)
    incomplete = len(used) - int(chosen.sum())
    why = "the ranks have different numbers of them"
    return Collectives(files=chosen, written=written, warnings=(_independent(incomplete, why),) if incomplete else ())


def _order(capture: Capture, survey: RankSurvey, layers: LayerChoice, files: np.ndarray) -> tuple[int, bytes]:
    """The number of lanes with collective calls of a rank on `files`, and a digest of the order of the calls."""
    lanes: set[int] = set()
    digest = hashlib.sha256()
    for batch in capture.operations(survey.rank, columns=["lane", "op", "api", "origin", "file_id"]):
        file_id = batch.column("file_id").to_numpy()
        mask = _collective_rows(batch, layers) & files[file_id]
        lanes.update(np.unique(batch.column("lane").to_numpy()[mask]).tolist())
        digest.update(np.stack((file_id[mask], codes(batch, "op")[mask]), axis=1).astype(np.int64).tobytes())
    return len(lanes), digest.digest()


def _same_order(candidates: Collectives, orders: Sequence[Sequence[tuple[int, bytes]]]) -> Collectives:
    every = [order for process in orders for order in process]
    if all(lanes <= 1 for lanes, _ in every) and len({digest for _, digest in every}) == 1:
        return candidates
    why = "the ranks make them in different orders or on several threads"
    return Collectives(
        files=np.zeros_like(candidates.files),
        written=candidates.written,
        warnings=(*candidates.warnings, _independent(int(candidates.files.sum()), why)),
    )


def _independent(files: int, why: str) -> str:
    return f"collective operations on {format_count(files)} files are replayed as independent ones: {why}"
