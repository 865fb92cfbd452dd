"""Speed and memory of reading a PyTorch profile, against json.load and ijson on the same file in the same run.

`python -m benchmarks.kineto_decode [--json] [--megabytes N]`. Needs no PyTorch; ijson is compared where it is
installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from dxt_replay.profiler_merge.profiles.kineto.decode import read_profile

SMALL_BYTES, LARGE_BYTES = 1_000_000, 50_000_000
_STEP = 250
"""Events of one step, as in a small model on a CPU."""


def write_profile(path: Path, size_bytes: int) -> int:
    """Writes about `size_bytes` bytes as the profiler prints them; returns the number of events."""
    events = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n')
        while file.tell() < size_bytes:
            file.write(",\n".join(_event(events + i) for i in range(_STEP)) + ",\n")
            events += _STEP
        file.write(_event(events) + '\n  ],"traceName": "/tmp/tmpabc.json" }')
    return events + 1


def _event(i: int) -> str:
    category, name = ("user_annotation", f"ProfilerStep#{i // _STEP}") if i % _STEP == 0 else ("cpu_op", _name(i))
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 4711, "tid": 4711,\n'
        f'    "ts": {4452070060216 + 20 * i}.{i % 1000:03}, "dur": {15 + i % 4}.250,\n'
        f'    "args": {{\n      "External id": {i},"Record function id": 0, "Ev Idx": {i}\n    }}\n  }}'
    )


def _name(i: int) -> str:
    return f"autograd::engine::evaluate_function: Backward{i % 40}" if i % 3 == 0 else f"aten::operator_{i % 90}"


def measure(megabytes: float = LARGE_BYTES / 1e6, repeats: int = 5) -> dict[str, float]:
    """For a file of 1 MB and one of `megabytes`: events_per_s of `read_profile` (of CPU time), its ratios to json.load
    and to ijson (0 where that is absent), and peak_bytes_per_event that Python and NumPy allocate. Best of `repeats`.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="dxt-replay-bench-") as directory:
        for label, size in (("small", SMALL_BYTES), ("large", round(megabytes * 1e6))):
            path = Path(directory) / f"{label}.pt.trace.json"
            events = write_profile(path, size)
            seconds = min(_timed(lambda path=path: read_profile([path])) for _ in range(repeats))  # type: ignore[misc]
            tracemalloc.start()
            profile = read_profile([path])
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert len(profile) == events
            with_json = _timed(lambda path=path: json.loads(path.read_bytes()))  # type: ignore[misc]
            figures |= {
                f"{label}_events": events,
                f"{label}_events_per_s": events / seconds,
                f"{label}_ratio_to_json": with_json / seconds,
                f"{label}_ratio_to_ijson": _with_ijson(path) / seconds,
                f"{label}_peak_bytes_per_event": peak / events,
            }
    return figures


def _with_ijson(path: Path) -> float:
    """CPU seconds that ijson takes to pass over the events; 0 where it is not installed."""
    try:
        import ijson
    except ImportError:
        return 0.0

    def run() -> None:
        with path.open("rb") as file:
            for _ in ijson.items(file, "traceEvents.item", use_float=True):
                pass

    return _timed(run)


def _timed(work: Callable[[], object]) -> float:
    """CPU seconds: reading has one thread, and the machine may be busy."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(argv: list[str] | None = None) -> int:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--megabytes", type=float, default=LARGE_BYTES / 1e6)
    options = parser.parse_args(argv)
    figures = measure(options.megabytes)
    print(json.dumps(figures) if options.json else table(figures))
    return 0


def table(figures: dict[str, float]) -> str:
    """A line a figure, for a person."""
    return "\n".join(f"{key:32} {value:>16,.2f}" for key, value in figures.items())


if __name__ == "__main__":
    sys.exit(main())
