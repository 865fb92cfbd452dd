"""Models the time of a command with more workers, to 1,000 nodes: `python -m benchmarks.cost_model MEASURED.json`.

MEASURED.json is the file of `python -m benchmarks.scale_table --json`. The cost of a command is fitted to its runs at
several sizes. It is a constant, plus a cost per operation and per rank, for two kinds of work. Only the first process
opens the capture, cuts the pieces, and receives and adds up their sums; any worker can do the rest. The way "pickled"
of the table measures them apart.

Assumptions: the pieces of a command cost the same; each worker has a core as fast as the measured one; the first
process does its part before and after the workers, not meanwhile; all workers share the file system's bandwidth.

The start of many workers is simulated: each makes its requests (opens and looks, `benchmarks.worker_start` counts them)
one after the other, and one metadata server answers those of all in their order. Then workers take pieces, and the
first process receives the results in the order of the pieces.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale_table.captures import RANKS as RANKS_OF_JOB
from benchmarks.scale_table.inputs import READS_OF_RANK
from dxt_replay.traces.units import format_bytes, format_count
from dxt_replay.traces.workers import AHEAD, PIECE_OPERATIONS

OPERATIONS, RANKS, WORKERS = (10**9, 10**11), 10_000, (1, 2, 64, 1024)
"""Predicted cases: numbers of operations, of ranks, and of workers."""

NODES, WORKERS_OF_NODE = (1, 16, 125, 1_000), 64
OPERATIONS_OF_WORKER = PIECE_OPERATIONS
"""Simulated cases: each worker has a rank with a piece of operations."""

COMMANDS = {name: (name, f"{name}, many ranks") for name in ("merge", "summary", "compare")}
"""Command -> its rows in the table of `benchmarks.scale_table`."""

START_S = 0.27
"""CPU seconds of the imports of a worker (`benchmarks.worker_start`)."""

REQUESTS = {"processes": 1_830, "MPI": 2_260, "Dask": 6_434}
"""Opens and looks of the start of a worker, failed ones included, as of `benchmarks.worker_start`; and of a capture:"""
CAPTURE_REQUESTS = 33

SERVER_PER_S, LATENCY_S = 50_000.0, 0.2e-3
"""Assumed: opens and looks that a metadata server answers, and the way there and back."""

_GROUP = 64
"""Requests that a simulated worker makes at once."""

CAPTURES_READ = {"compare": 2}
"""Number of captures that a command reads, if it is not one."""

BANDWIDTH_GB_PER_S = 10.0
"""Bandwidth of a parallel file system for all workers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of CPU: once, for each operation, and for each rank."""

    once_s: float
    operation_s: float
    rank_s: float

    def seconds(self, operations: float, ranks: float) -> float:
        """CPU time of `operations` operations on `ranks` ranks."""
        return self.once_s + self.operation_s * operations + self.rank_s * ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a command costs.

    first: the work of the first process if there are workers.
    shared: the work that workers share; its constant is the start of a worker.
    alone: all work of a process without workers.
    returned: bytes, not seconds, of the results of all pieces.
    operation_bytes: bytes read from the disk per operation.
    """

    first: Work
    shared: Work
    alone: Work
    returned: Work
    operation_bytes: float


def fit_work(operations: Sequence[float], ranks: Sequence[float], seconds: Sequence[float]) -> Work:
    """The work that best fits measured seconds, by relative error, without negative costs.

    Raises: ValueError for fewer than three runs.
    """
    if len(seconds) < 3:
        raise ValueError("a fit needs three runs of different size: give more --operations or --ranks")
    matrix = np.column_stack([np.ones(len(seconds)), operations, ranks]) / np.asarray(seconds)[:, None]
    kept = [0, 1, 2]
    while True:
        scale = np.abs(matrix[:, kept]).max(axis=0)
        found = np.linalg.lstsq(matrix[:, kept] / scale, np.ones(len(seconds)), rcond=None)[0] / scale
        if (found >= 0).all():
            break
        kept.pop(int(np.argmin(found * scale)))
    costs = dict.fromkeys(range(3), 0.0) | dict(zip(kept, found.tolist(), strict=True))
    return Work(once_s=costs[0], operation_s=costs[1], rank_s=costs[2])


def fit(runs: Sequence[Mapping[str, Any]], start_s: float = START_S) -> dict[str, Cost]:
    """The cost of each command in runs of `benchmarks.scale_table`. Raises: ValueError if a command has too few."""
    costs = {}
    for command, rows in COMMANDS.items():
        own = [run for run in runs if run["row"] in rows]
        if not own:
            continue
        alone = [run for run in own if run["way"] == "one"]
        pieces = [run for run in own if run["way"] == "pickled" and run["pieces"]]
        shared = _fitted(pieces, [run["pieces_s"] for run in pieces])
        last = max(alone, key=lambda run: _size(run)[0])
        size = last["log_bytes"] if command == "merge" else last["capture_bytes"] * CAPTURES_READ.get(command, 1)
        costs[command] = Cost(
            first=_fitted(pieces, [run["cpu_s"] - run["pieces_s"] for run in pieces]),
            shared=Work(once_s=start_s + shared.once_s, operation_s=shared.operation_s, rank_s=shared.rank_s),
            alone=_fitted(alone, [run["cpu_s"] for run in alone]),
            returned=_fitted(pieces, [run["returned_bytes"] for run in pieces]),
            operation_bytes=size / _size(last)[0],
        )
    return costs


def _size(run: Mapping[str, Any]) -> tuple[int, int]:
    """Operations and ranks of the input of a run."""
    units = int(run["units"])
    return (units * READS_OF_RANK, units) if run["unit"] == "rank" else (units, RANKS_OF_JOB)


def _fitted(runs: Sequence[Mapping[str, Any]], seconds: Sequence[float]) -> Work:
    return fit_work([_size(run)[0] for run in runs], [_size(run)[1] for run in runs], seconds)


def predicted_s(cost: Cost, operations: float, ranks: float, workers: int, bytes_per_s: float) -> float:
    """Seconds that a command takes on `workers` workers, each with a processor, and a disk of `bytes_per_s`.

    A piece is whole ranks, some PIECE_OPERATIONS operations; more workers than pieces have nothing to do.
    """
    reading_s = operations * cost.operation_bytes / bytes_per_s
    pieces = min(math.ceil(operations / PIECE_OPERATIONS), int(ranks))
    if min(workers, pieces) <= 1:
        return max(cost.alone.seconds(operations, ranks), reading_s)
    share = math.ceil(pieces / min(workers, pieces)) / pieces
    shared_s = share * (cost.shared.seconds(operations, ranks) - cost.shared.once_s)
    return cost.first.seconds(operations, ranks) + cost.shared.once_s + max(shared_s, reading_s)


def started_s(
    workers: int, requests: int, own_s: float, server_per_s: float = SERVER_PER_S, latency_s: float = LATENCY_S
) -> np.ndarray:
    """Seconds (workers,), ascending, until each of `workers` workers has started, if all begin at once.

    Each makes `requests` requests one after the other, `own_s` of its own work between them. One server answers the
    requests of all in the order of their arrival; a worker sends some _GROUP at once.
    """
    if not requests:
        return np.full(workers, own_s)
    groups = math.ceil(requests / _GROUP)
    each = requests / groups
    busy_s, away_s = each / server_per_s, each * latency_s + own_s / groups
    arrivals = [(away_s, groups)] * workers
    server_s, done = 0.0, []
    while arrivals:
        arrival_s, left = arrivals[0]
        server_s = max(server_s, arrival_s) + busy_s
        if left > 1:
            heapq.heapreplace(arrivals, (server_s + away_s, left - 1))
        else:
            done.append(server_s)
            heapq.heappop(arrivals)
    return np.array(done)


def collected_s(started: np.ndarray, pieces: int, piece_s: float, receive_s: float) -> tuple[float, float]:
    """Seconds until all pieces are done, and until the first process has received them in their order.

    `started`: when each worker can take its first piece. AHEAD pieces for each worker are in work or not yet received.
    """
    free = sorted(started.tolist())
    received: list[float] = []
    last_s = done_s = 0.0
    for piece in range(pieces):
        begin_s = free[0] if piece < AHEAD * len(free) else max(free[0], received[piece - AHEAD * len(free)])
        heapq.heapreplace(free, begin_s + piece_s)
        done_s = max(done_s, begin_s + piece_s)
        last_s = max(last_s, begin_s + piece_s) + receive_s
        received.append(last_s)
    return done_s, last_s


def table(runs: Sequence[Mapping[str, Any]], bytes_per_s: float, start_s: float = START_S) -> str:
    """Constants, the model beside the measured runs, its predictions and simulations, as tables of Markdown."""
    costs = fit(runs, start_s)
    lines = ["| command | work of | once | an operation | a rank |", "|---|---|---|---|---|"]
    for command, cost in costs.items():
        works = {"one process": cost.alone, "first process": cost.first, "workers": cost.shared}
        for name, work in works.items():
            lines.append(
                f"| {command} | {name} | {work.once_s:.2f} s | {1e9 * work.operation_s:.0f} ns "
                f"| {1e3 * work.rank_s:.2f} ms |"
            )
    lines += ["", "| command | operations | ranks | measured, one process | model |", "|---|---|---|---|---|"]
    for command, cost in costs.items():
        for run in runs:
            if run["row"] in COMMANDS[command] and run["way"] == "one":
                model_s = cost.alone.seconds(*_size(run))
                counts = " | ".join(map(format_count, _size(run)))
                lines.append(f"| {command} | {counts} | {run['cpu_s']:.1f} s | {model_s:.1f} s |")
    heads = " | ".join(f"{workers:,} workers" for workers in WORKERS)
    lines += ["", f"| command | operations | ranks | {heads} |", "|---|---|---|" + "---|" * len(WORKERS)]
    for command, cost in costs.items():
        for operations in OPERATIONS:
            times = [predicted_s(cost, operations, RANKS, workers, bytes_per_s) for workers in WORKERS]
            cells = " | ".join(f"{seconds:,.0f} s" for seconds in times)
            lines.append(f"| {command} | {format_count(operations)} | {RANKS:,} | {cells} |")
    return "\n".join([*lines, "", *_start_lines(start_s), "", *_collected_lines(costs, start_s)])


def _start_lines(start_s: float) -> list[str]:
    """Time until the last worker has started, by the number of nodes."""
    lines = [
        f"| nodes | workers | {' | '.join(REQUESTS)} | once a node | capture alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for nodes in NODES:
        workers = nodes * WORKERS_OF_NODE
        cases = [*((workers, requests) for requests in REQUESTS.values()), (nodes, REQUESTS["MPI"]), (workers, 0)]
        times = [started_s(count, requests + CAPTURE_REQUESTS, start_s)[-1] for count, requests in cases]
        lines.append(f"| {nodes:,} | {workers:,} | {' | '.join(f'{seconds:,.1f} s' for seconds in times)} |")
    return lines


def _collected_lines(costs: Mapping[str, Cost], start_s: float) -> list[str]:
    """Commands of which each worker gets one piece."""
    lines = [
        "| command | nodes | operations | pieces done | all received | received a piece, time | bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    for command, cost in costs.items():
        for nodes in NODES:
            workers = nodes * WORKERS_OF_NODE
            operations = workers * OPERATIONS_OF_WORKER
            piece_s = (cost.shared.seconds(operations, workers) - cost.shared.once_s) / workers
            receive_s = (cost.first.seconds(operations, workers) - cost.first.once_s) / workers
            returned = cost.returned.seconds(operations, workers) / workers
            done_s, all_s = collected_s(started_s(workers, CAPTURE_REQUESTS, start_s), workers, piece_s, receive_s)
            lines.append(
                f"| {command} | {nodes:,} | {format_count(operations)} | {done_s:,.1f} s | {all_s:,.1f} s "
                f"| {1e3 * receive_s:.2f} ms | {format_bytes(returned)} |"
            )
    return lines


def main(argv: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, metavar="MEASURED.json")
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH_GB_PER_S, help="of the file system, in GB/s")
    arguments = parser.parse_args(argv)
    runs = json.loads(arguments.measured.read_text(encoding="utf-8"))["runs"]
    print(table(runs, arguments.bandwidth * 1e9))
    return 0


if __name__ == "__main__":
    sys.exit(main())
