"""Speed of reading an XPlane file, stats included, against protobuf (upb) on the same file in the same run.

`python -m benchmarks.xplane_decode [--json] [--events N]`. Needs no TensorFlow.
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

from dxt_replay.profiler_merge.profiles import xplane
from tests import xplane_oracle
from tests import xplane_writer as writer

EVENTS_PER_LINE = 2_000


def write_profile(path: Path, events: int) -> int:
    """Writes about `events` events with 2.6 stats each, as a level-3 run has; returns how many.

    Every line holds the same events under another thread id: the bytes are made once.
    """
    event_names, stat_names = writer._Names(), writer._Names()
    body = b"".join(writer.part(4, writer.event(_event(i), event_names, stat_names)) for i in range(EVENTS_PER_LINE))
    lines = max(1, round(events / EVENTS_PER_LINE))
    tables = b"".join(
        writer.part(
            field, writer.number(1, key) + writer.part(2, writer.number(1, key) + writer.part(2, name.encode()))
        )
        for field, names in ((4, event_names), (5, stat_names))
        for name, key in names.ids.items()
    )
    threads = b"".join(
        writer.part(
            3, writer.line(writer.Line(id=(i + 1) << 40, name=f"tf_Compute/{i}"), event_names, stat_names) + body
        )
        for i in range(lines)
    )
    stats = {"profile_start_time": writer.START_NS, "profile_stop_time": writer.START_NS + 10**11}
    environment = writer.plane("Task Environment", stats=stats)
    path.write_bytes(writer.space([writer.part(2, b"/host:CPU") + threads + tables, environment]))
    return lines * EVENTS_PER_LINE


def _event(i: int) -> writer.Event:
    """A mix as in a real profile: kernels without stats, iterators with ids, allocations with many."""
    stats: dict[str, writer.Value] = {}
    if i % 4 == 0:
        stats = {"id": (1 << 63) + i, "parent_id": i, "name": "TFRecordDataset:9", "shapes": "[?]", "types": "string"}
    elif i % 4 == 1:
        stats = {"id": i, "iter_num": i // 7, "_ct": 7, "_c": i, "fragmentation": 0.25}
    return writer.Event(
        name=f"Iterator::Root::Stage{i % 150}", start_ns=i * 20_000, duration_ns=15_000 + i, stats=stats
    )


def measure(events: int = 1_000_000, repeats: int = 7) -> dict[str, float]:
    """events_per_s of `read_profile`; its ratios to the oracle over protobuf (columns and stats) and to upb's parse
    alone; peak_bytes_per_event that Python and NumPy allocate. Best of `repeats`, the peers once each.
    """
    with tempfile.TemporaryDirectory(prefix="dxt-replay-bench-") as directory:
        path = Path(directory) / "bench.xplane.pb"
        count = write_profile(path, events)
        size = path.stat().st_size
        seconds = min(_timed(lambda: xplane.read_profile(path)) for _ in range(repeats))
        parse = _timed(lambda: xplane_oracle.space_class()().ParseFromString(path.read_bytes()))
        protobuf = _timed(lambda: xplane.read_profile(path, decoder=xplane_oracle.decode))
        tracemalloc.start()
        profile = xplane.read_profile(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(profile) == count
    return {
        "events": count,
        "bytes_per_event": size / count,
        "events_per_s": count / seconds,
        "protobuf_events_per_s": count / protobuf,
        "upb_parse_events_per_s": count / parse,
        "ratio_to_protobuf": protobuf / seconds,
        "ratio_to_upb_parse": parse / seconds,
        "peak_bytes_per_event": peak / count,
    }


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(argv: list[str] | None = None) -> int:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=1_000_000)
    options = parser.parse_args(argv)
    figures = measure(options.events)
    if options.json:
        print(json.dumps(figures))
        return 0
    print(table(figures))
    return 0


def table(figures: dict[str, float]) -> str:
    """A line a figure, for a person."""
    return "\n".join(f"{key:24} {value:>16,.1f}" for key, value in figures.items())


if __name__ == "__main__":
    sys.exit(main())
