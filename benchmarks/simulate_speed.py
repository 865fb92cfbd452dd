"""Speed and memory of the simulation: `python -m benchmarks.simulate_speed [--ranks N] [--json]`.

The bundled run `imagenet` (2 ranks) is copied to many ranks, which meet at every step, on the shipped Lustre model:
stripes, links, a metadata queue, page caches. An item is an operation, a wait, an addition to a counter or a gap. The
peer is the least that any simulation in Python does for an item, with as many lanes: it replaces the first event of a
`heapq`. Each side runs in a child of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import dxt_replay
from benchmarks.measured_child import measured_child
from dxt_replay.traces.units import format_bytes, format_count

RANKS = 8192
REQUIRED = {"items_per_s": 1e6, "ratio_heapq": 2.0}
MOST_PEAK_BYTES = 1_500_000_000

_RUN = """
import dxt_replay
from dxt_replay.replay.causal.lane_events import run_lanes
from dxt_replay.replay.simulation._simulated_storage import SimulatedStorage
from dxt_replay.replay.simulation.model_file import read_storage_model
def run(path):
    lanes = job.lanes({ranks})
    storage = SimulatedStorage(read_storage_model("theta_lustre"), ranks={ranks}, file_bytes=job.file_bytes)
    run_lanes(lanes, storage, job.watch())
    return sum(len(lane.items) for lane in lanes)
"""
_PREPARE = "job = dxt_replay.simulate({path!r}, 'null').prediction.job"

_PEER = """
import heapq
def run(path):
    events = [(lane, lane) for lane in range({ranks})]
    for _ in range({items}):
        now, lane = events[0]
        heapq.heapreplace(events, (now + 1 + lane % 7, lane))
    return {items}
"""
_PEER_ITEMS = 2_000_000


def measure(ranks: int = RANKS) -> dict[str, float]:
    """Items per second of processor time and peak memory with many ranks, and the ratio to the peer."""
    with tempfile.TemporaryDirectory(prefix="simulate-speed-") as folder:
        capture = Path(folder) / "imagenet.capture"
        sample = dxt_replay.sample("imagenet")
        dxt_replay.merge(sample.log, capture, profiles=sample.profiles)
        found = measured_child(_RUN.format(ranks=ranks), capture, _PREPARE.format(path=str(capture)))
        peer = measured_child(_PEER.format(ranks=ranks, items=_PEER_ITEMS), capture)
    items_per_s, peer_items_per_s = (each["rows"] / each["cpu_s"] for each in (found, peer))
    return {
        "ranks": ranks,
        "items": found["rows"],
        "cpu_s": found["cpu_s"],
        "items_per_s": items_per_s,
        "peak_bytes": found["peak_bytes"],
        "heapq_items_per_s": peer_items_per_s,
        "ratio_heapq": items_per_s / peer_items_per_s,
    }


def table(result: dict[str, float]) -> str:
    """The figures of `measure`, and whether they are as required."""
    enough = all(result[name] >= least for name, least in REQUIRED.items()) and result["peak_bytes"] <= MOST_PEAK_BYTES
    return "\n".join(
        (
            f"{format_count(int(result['ranks']))} ranks: {format_count(int(result['items']))} items in "
            f"{result['cpu_s']:.1f} s of processor time, {format_count(round(result['items_per_s']))} a second, "
            f"{format_bytes(result['peak_bytes'])} at most",
            f"replacing the first event of a heapq: {format_count(round(result['heapq_items_per_s']))} a second, "
            f"the simulation is {result['ratio_heapq']:.1f} times as fast",
            f"required: {REQUIRED['items_per_s']:.0e} items a second, {REQUIRED['ratio_heapq']:.0f} times, "
            f"{format_bytes(MOST_PEAK_BYTES)}: {'met' if enough else 'MISSED'}",
        )
    )


def main(arguments: list[str]) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    result = measure(chosen.ranks)
    print(json.dumps(result, indent=2) if chosen.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
