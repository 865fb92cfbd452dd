"""Both decoding cores against profiles written by `tests.xplane_writer`, and which files are profiles."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.profiles.xplane import find_profiles
from dxt_replay.traces.errors import ProfileError
from tests import xplane_writer as writer
from tests.profiler_merge.profiles.xplane.profile_cores import (  # noqa: F401
    both_cores,
    small_profile,
    write_fixture,
)
from tests.xplane_writer import START_NS, Event, Line


@both_cores
def test_columns(core, write):
    lines = [
        Line(
            id=-8,
            name="python",
            timestamp_ns=10_000,
            events=(
                Event(name="train", start_ns=0, duration_ns=900, stats={"step_num": 4, "_r": 1}),
                Event(name="next_batch", start_ns=100, duration_ns=50),
            ),
        ),
        Line(id=9, name="tf_Compute/9", timestamp_ns=20_000, events=(Event(name="train", start_ns=5, duration_ns=6),)),
    ]
    profile = core.read(write(writer.profile(lines)))
    assert [profile.names[row] for row in profile.name] == ["train", "next_batch", "train"]
    assert profile.line.tolist() == [0, 0, 1]
    assert (profile.start_ns - START_NS).tolist() == [10_000, 10_100, 20_005]
    assert profile.end_ns.tolist() == (profile.start_ns + np.array([900, 50, 6])).tolist()
    assert [line.id for line in profile.lines] == [-8, 9]
    assert [line.thread_class for line in profile.lines] == ["python", "tf_Compute"]
    assert profile.hostnames == ("node1",)
    assert profile.epoch_start_ns == START_NS
    rows, values = profile.stat("step_num")
    assert (rows.tolist(), values.tolist()) == ([0], [4])
    assert profile.stat_column("step_num", missing=-1).tolist() == [4, -1, -1]
    assert profile.line.dtype == profile.name.dtype == np.int32
    assert profile.start_ns.dtype == profile.duration_ns.dtype == rows.dtype == values.dtype == np.int64


@both_cores
def test_stats_of_every_kind(core, write):
    stats = [
        {"id": 5},
        {"id": -5},
        {"id": (1 << 64) - 5},
        {"id": 1e5},
        {"id": 0.5},
        {"id": float("nan")},
        {"id": float("inf")},
        {"id": "text"},
        {"tf_function_call": "by reference"},
        {"tf_function_call": b"inline \xff"},
        {"tf_function_call": 7},
        {"unwanted": 1},
    ]
    events = tuple(Event(name="e", start_ns=i, stats=each) for i, each in enumerate(stats))
    profile = core.read(write(writer.profile([Line(id=1, name="python", events=events)])))
    rows, values = profile.stat("id")
    assert (rows.tolist(), values.tolist()) == ([0, 1, 2, 3], [5, -5, -5, 100_000])
    assert profile.stat("tf_function_call")[0].tolist() == [8, 9]
    assert [len(column) for column in profile.stat("element_id")] == [0, 0]
    with pytest.raises(KeyError):
        profile.stat("unwanted")


@both_cores
def test_names_that_are_not_utf8_are_kept_exactly(core, write):
    event = Event(name="Iterator::\udcff\udc80")
    profile = core.read(write(writer.profile([Line(id=1, name="python\udcfe", events=(event,))])))
    assert profile.names == ("Iterator::\udcff\udc80",)
    assert profile.lines[0].name == "python\udcfe"


@both_cores
def test_events_without_a_time_are_left_out_and_stats_follow_their_event(core, write):
    events = (
        Event(name="a", start_ns=1, stats={"i": 1}),
        Event(name="b", occurrences=3, stats={"i": 2}),
        Event(name="c", start_ns=2, stats={"i": 3}),
    )
    profile = core.read(write(writer.profile([Line(id=1, name="python", events=events)])))
    assert [profile.names[row] for row in profile.name] == ["a", "c"]
    assert [column.tolist() for column in profile.stat("i")] == [[0, 1], [1, 3]]


@both_cores
def test_unsorted_events_are_sorted_outer_first(core, write):
    events = (
        Event(name="late", start_ns=30, duration_ns=1, stats={"i": 30}),
        Event(name="inner", start_ns=10, duration_ns=1, stats={"i": 10}),
        Event(name="outer", start_ns=10, duration_ns=9, stats={"i": 11}),
    )
    profile = core.read(write(writer.profile([Line(id=1, name="python", events=events)])))
    assert [profile.names[row] for row in profile.name] == ["outer", "inner", "late"]
    assert [column.tolist() for column in profile.stat("i")] == [[0, 1, 2], [11, 10, 30]]


@both_cores
def test_the_last_of_a_repeated_stat_counts(core, write):
    names, stats = writer._Names(), writer._Names()
    body = writer.event(Event(name="e", stats={"i": 1}), names, stats) + writer.part(4, writer.stat(stats, "i", 2))
    data = writer.profile([Line(id=1, name="python", events=(Event(name="e", stats={"i": 1}),))])
    once = writer.part(4, writer.event(Event(name="e", stats={"i": 1}), names, stats))
    profile = core.read(write(_resized(data, once, writer.part(4, body))))
    assert [column.tolist() for column in profile.stat("i")] == [[0], [2]]


def _resized(data: bytes, old: bytes, new: bytes) -> bytes:
    """`data`, a profile of one line, with the event `old` replaced by one of another length."""
    fields = _fields(data)
    planes = []
    for number, payload in fields:
        inner = b"".join(
            writer.part(3, part.replace(old, new)) if field == 3 else writer.part(field, part)
            for field, part in _fields(payload)
        )
        planes.append(writer.part(number, inner if number == 1 and old in payload else payload))
    return b"".join(planes)


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """The length-delimited fields of a message."""
    fields, at = [], 0
    while at < len(data):
        number, length, at = data[at] >> 3, data[at + 1], at + 2
        if length >= 0x80:
            length, at = length & 0x7F | data[at] << 7, at + 1
        fields.append((number, data[at : at + length]))
        at += length
    return fields


@both_cores
def test_host_and_gpu_planes_are_read_and_others_are_not(core, write):
    gpu = Line(id=14, name="Stream #14(Compute)", events=(Event(name="gemm", start_ns=3, stats={"i": 8}),))
    planes = [
        writer.plane("/host:CPU", [Line(id=1, name="python", events=(Event(name="train", stats={"i": 7}),))]),
        writer.plane("/device:GPU:0", [gpu]),
        writer.plane("/device:CUSTOM:0", [Line(id=1, name="x", events=(Event(name="y", stats={"i": 9}),))]),
    ]
    profile = core.read(write(writer.space(planes)))
    assert profile.planes == ("/host:CPU", "/device:GPU:0")
    assert [(line.name, line.plane) for line in profile.lines] == [("python", 0), ("Stream #14(Compute)", 1)]
    assert [profile.names[row] for row in profile.name] == ["train", "gemm"]
    assert [column.tolist() for column in profile.stat("i")] == [[0, 1], [7, 8]]


@both_cores
def test_epoch_of_old_versions_comes_from_prefetch_produce(core, write):
    events = (
        Event(name="PrefetchProduce", start_ns=1_000, stats={"element_id": START_NS + 1_000 - 2_500}),
        Event(name="PrefetchProduce", start_ns=9_000, stats={"element_id": START_NS + 9_000 - 700}),
        Event(name="MapAndBatchProduce", start_ns=9_500, stats={"element_id": START_NS + 20_000}),
    )
    profile = core.read(write(writer.profile([Line(id=1, name="t", events=events)], start_ns=None)))
    assert profile.epoch_start_ns == START_NS - 700
    assert profile.start_ns.tolist() == [START_NS - 700 + at for at in (1_000, 9_000, 9_500)]


@both_cores
def test_without_any_epoch_times_are_relative(core, write):
    events = (Event(name="PrefetchProduce", start_ns=5, stats={"element_id": 17}),)
    profile = core.read(write(writer.profile([Line(id=1, name="t", events=events)], start_ns=None)))
    assert profile.epoch_start_ns is None
    assert profile.start_ns.tolist() == [5]


@both_cores
def test_a_compressed_profile_is_read_alike(core, write):
    data = small_profile()
    assert core.outcome(write(gzip.compress(data), "a.xplane.pb.gz")) == core.outcome(write(data))


def test_find_profiles(tmp_path):
    wanted = [
        "rank0/plugins/profile/run2/a.xplane.pb",
        "rank0/plugins/profile/run1/a.xplane.pb",
        "rank1/b.xplane.pb.gz",
    ]
    for name in (*wanted, "rank0/plugins/profile/run1/a.xplane.pb.gz", "rank0/a.trace.json.gz", "x.pb"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert find_profiles(tmp_path) == sorted(tmp_path / name for name in wanted)
    assert find_profiles(tmp_path / wanted[0]) == [tmp_path / wanted[0]]
    assert find_profiles(tmp_path / "rank0/plugins/profile/run1") == [tmp_path / wanted[1]]
    (tmp_path / "empty").mkdir()
    assert find_profiles(tmp_path / "empty") == []
    with pytest.raises(ProfileError, match="does not exist"):
        find_profiles(tmp_path / "missing")


def test_reading_imports_neither_tensorflow_nor_protobuf(write):
    path = write(small_profile())
    code = (
        "import sys; from pathlib import Path\n"
        "from dxt_replay.profiler_merge.profiles.xplane import read_profile\n"
        f"read_profile(Path({str(path)!r}))\n"
        "print(sorted({'tensorflow', 'google', 'jax', 'xprof'} & {name.split('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert result.stdout.strip() == "[]"


def test_without_the_compiled_core_a_profile_is_refused_with_the_way_to_install_it(write):
    code = (
        "import sys; from pathlib import Path\n"
        "sys.modules['dxt_replay.profiler_merge.profiles._xplane'] = None\n"
        "from dxt_replay.profiler_merge.profiles.xplane import read_profile\n"
        "from dxt_replay.traces.errors import MissingDependencyError\n"
        "try:\n"
        f"    read_profile(Path({str(write(small_profile()))!r}))\n"
        "except MissingDependencyError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert "C compiler" in result.stdout
    assert "build_ext --inplace" in result.stdout
