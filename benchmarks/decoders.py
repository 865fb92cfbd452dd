"""Speed and memory of the decoders, each against a peer on the same file: DXT against pydarshan (from a path to a
DataFrame), XPlane and PyTorch's profiles against the bare parse of protobuf (upb) and msgspec.

Each measurement is in a process of its own, the two sides in turn, and the best of the repetitions counts. Ratios are
of CPU time, which a busy machine disturbs least.

    python -m benchmarks.decoders [--json]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import finish, measured_call
from tests import xplane_writer as writer
from tests.darshan_writer import DxtRecord, ModuleSpec, encode_dxt, segment_dtype, write_log

REPEATS = 3
SEGMENTS, RECORDS, EVENTS = 1_000_000, 20_001, 500_000
EVENTS_PER_LINE = 2_000
MOST_BYTES_PER_SEGMENT = 150.0

_DXT = """
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.darshan.dxt import read_dxt
def run(path):
    blocks = list(read_dxt(open_log(path)))  # held together, as pydarshan holds its records
    return sum(len(block.record) for block in blocks)
"""
_PYDARSHAN = """
import warnings
warnings.simplefilter("ignore")
import darshan
def run(path):
    report = darshan.DarshanReport(path, read_all=False)
    report.mod_read_all_dxt_records("DXT_POSIX", dtype="pandas")
    parts = ("read_segments", "write_segments")
    return sum(len(record[part]) for record in report.records["DXT_POSIX"] for part in parts)
"""
_XPLANE = """
from pathlib import Path
from dxt_replay.profiler_merge.profiles.xplane import read_profile
def run(path):
    return len(read_profile(Path(path)))
"""
_PROTOBUF = """
from pathlib import Path
from benchmarks.decoders import space_class
cls = space_class()
def run(path):
    return sum(len(line.events) for plane in cls.FromString(Path(path).read_bytes()).planes for line in plane.lines)
"""
_KINETO = """
from pathlib import Path
from dxt_replay.profiler_merge.profiles.kineto import read_profile
def run(path):
    return len(read_profile([Path(path)]))
"""
_MSGSPEC = """
from pathlib import Path
import msgspec
from dxt_replay.profiler_merge.profiles.kineto import Event
class Document(msgspec.Struct, gc=False):
    traceEvents: list[Event]
decoder = msgspec.json.Decoder(Document)
def run(path):
    return len(decoder.decode(Path(path).read_bytes()).traceEvents)
"""

CASES = {
    "one record": (_DXT, _PYDARSHAN, lambda path, few: write_dxt(path, 2 if few else SEGMENTS, 1), 8.0),
    "many records": (_DXT, _PYDARSHAN, lambda path, few: write_dxt(path, 1, 2 if few else RECORDS), 40.0),
    "xplane": (_XPLANE, _PROTOBUF, lambda path, few: write_profile(path, 1 if few else EVENTS), 1.5),
    "kineto": (_KINETO, _MSGSPEC, lambda path, few: write_kineto(path, 9 if few else EVENTS), 0.5),
}
"""What is decoded -> the decoder, its peer, what writes its file (path, whether few), the least ratio."""
SUFFIXES = {"xplane": ".xplane.pb", "kineto": ".pt.trace.json"}


def measure() -> dict[str, Any]:
    """By case: `ratio` (times faster than the peer), CPU seconds of both, bytes of memory a row, the least ratio."""
    result: dict[str, Any] = {"passed": True}
    with tempfile.TemporaryDirectory() as folder:
        for case, (ours, peer, write, least) in CASES.items():
            files = [Path(folder, f"{name}{SUFFIXES.get(case, '.darshan')}") for name in ("warm", "large")]
            for file, few in zip(files, (True, False), strict=True):
                write(file, few)
            runs = [[measured_call(setup, files[1], files[0]) for setup in (ours, peer)] for _ in range(REPEATS)]
            rows = {run["rows"] for pair in runs for run in pair}
            if len(rows) != 1:
                raise RuntimeError(f"{case}: the decoders found {sorted(rows)} rows")
            cpu_s = [min(pair[side]["cpu_s"] for pair in runs) for side in (0, 1)]
            grown = [max(pair[side]["grown_bytes"] for pair in runs) / rows.pop() for side in (0,)]
            result[case] = {"ratio": cpu_s[1] / cpu_s[0], "cpu_s": cpu_s, "bytes_a_row": grown[0], "least": least}
            result["passed"] &= result[case]["ratio"] >= least
    result["passed"] &= result["one record"]["bytes_a_row"] <= MOST_BYTES_PER_SEGMENT
    return result


def write_dxt(path: Path, segments: int, records: int) -> None:
    """256 KiB reads, one after the other through each file.

    Times have the quantum of Darshan's clock, a double of about 1.8e9 s, so that the log compresses to what real ones
    do, some 7 bytes a segment.
    """
    generator, quantum_s = np.random.default_rng(20261121), 2.0**-22
    durations = generator.integers(120, 400, segments)
    ticks = np.cumsum(generator.integers(4, 40, segments) + durations)
    reads = np.zeros(segments, segment_dtype("DXT_POSIX", 1))
    reads["offset"], reads["length"] = np.arange(segments) * 262_144, 262_144
    reads["start_s"], reads["end_s"] = (ticks - durations) * quantum_s, ticks * quantum_s
    streams = [encode_dxt([DxtRecord(record_id=number + 1, reads=reads) for number in range(records)])]
    names = {number + 1: f"/data/part-{number:05}.tfrecord".encode() for number in range(records)}
    write_log(path, names=names, modules={"DXT_POSIX": ModuleSpec(version=1, streams=streams)})


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
    heads = (writer.Line(id=(i + 1) << 40, name=f"tf_Compute/{i}") for i in range(lines))
    threads = b"".join(writer.part(3, writer.line(head, event_names, stat_names) + body) for head in heads)
    stats = {"profile_start_time": writer.START_NS, "profile_stop_time": writer.START_NS + 10**11}
    environment = writer.plane("Task Environment", stats=stats)
    path.write_bytes(writer.space([writer.part(2, b"/host:CPU") + threads + tables, environment]))
    return lines * EVENTS_PER_LINE


def space_class() -> Any:
    """Protobuf's message class of XSpace, from the fields that the decoder reads."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    from dxt_replay.profiler_merge.profiles.xplane import FIELDS

    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="xplane.proto", package="x", syntax="proto3")
    for message, fields in FIELDS.items():
        described = file.message_type.add(name=message)
        for number, (name, kind, repeated) in fields.items():
            field = described.field.add(name=name, number=number)
            field.label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
            field.type = getattr(types, f"TYPE_{kind.upper()}", types.TYPE_MESSAGE)
            if field.type == types.TYPE_MESSAGE:
                field.type_name = f".x.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("x.XSpace"))


def _event(i: int) -> writer.Event:
    """A mix as in a real profile: kernels without stats, iterators with ids, allocations with many."""
    stats: dict[str, writer.Value] = {}
    if i % 4 == 0:
        stats = {"id": (1 << 63) + i, "parent_id": i, "name": "TFRecordDataset:9", "shapes": "[?]", "types": "string"}
    elif i % 4 == 1:
        stats = {"id": i, "iter_num": i // 7, "_ct": 7, "_c": i, "fragmentation": 0.25}
    name = f"Iterator::Root::Stage{i % 150}"
    return writer.Event(name=name, start_ns=i * 20_000, duration_ns=15_000 + i, stats=stats)


def write_kineto(path: Path, events: int) -> None:
    """A profile as PyTorch's profiler prints it, with a step every 250 events."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n')
        for i in range(events):
            category, name = "cpu_op", f"aten::operator_{i % 90}"
            if i % 250 == 0:
                category, name = "user_annotation", f"ProfilerStep#{i // 250}"
            elif i % 3 == 0:
                name = f"autograd::engine::evaluate_function: Backward{i % 40}"
            file.write(
                "," * (i > 0)
                + f'''
  {{
    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 4711, "tid": 4711,
    "ts": {4452070060216 + 20 * i}.{i % 1000:03}, "dur": {15 + i % 4}.250,
    "args": {{
      "External id": {i},"Record function id": 0, "Ev Idx": {i}
    }}
  }}'''
            )
        file.write('\n  ],"traceName": "/tmp/tmpabc.json" }')


def table(result: dict[str, Any]) -> str:
    """For a person."""
    lines = [f"{'':14}{'ours CPU':>11}{'peer CPU':>11}{'ratio':>8}{'least':>8}{'bytes a row':>13}"]
    for case in CASES:
        row = result[case]
        ours, peer = row["cpu_s"]
        lines.append(
            f"{case:14}{ours:9.3f} s{peer:9.3f} s{row['ratio']:8.1f}{row['least']:8.1f}{row['bytes_a_row']:13.0f}"
        )
    return "\n".join([*lines, "as required" if result["passed"] else "NOT as required"])


if __name__ == "__main__":
    sys.exit(finish(__doc__, measure, table))
