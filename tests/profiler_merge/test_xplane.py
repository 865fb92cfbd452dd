"""Both decoding cores against profiles written by `tests.xplane_writer`, against each other, and on real captures."""

import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from profiler_merge import xplane
from profiler_merge.profile import Profile
from profiler_merge.xplane import core_name, find_profiles, read_profile
from tests import xplane_writer as writer
from tests.xplane_writer import START_NS, Event, Line
from traces.errors import ProfileError

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
CAPTURES = SHARED / "captures"
QUICK = "cosmoflow_threads"

both_cores = pytest.mark.parametrize("core", ["compiled", "python"], indirect=True)


@pytest.fixture
def core(request, monkeypatch):
    use_core(monkeypatch, request.param)
    return request.param


def use_core(monkeypatch, name):
    monkeypatch.setenv("DXT_REPLAY_CORE", name)
    if core_name() != name:
        assert os.environ.get("DXT_REPLAY_REQUIRE_COMPILED") != "1", "the compiled core is missing"
        pytest.skip("the compiled core is not built")


@pytest.fixture
def write(tmp_path):
    def write(data: bytes, name: str = "node1.xplane.pb") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def fingerprint(profile: Profile) -> dict:
    """Everything a profile holds, in a form that `==` compares."""
    columns = {key: getattr(profile, key).tolist() for key in ("line", "name", "start_ns", "duration_ns")}
    fields = ("hostnames", "epoch_start_ns", "epoch_source", "options", "planes", "lines", "names", "display_names")
    fields += ("skipped_fields",)
    stats = {key: (rows.tolist(), values.tolist()) for key, (rows, values) in profile.stats.items()}
    return columns | {key: getattr(profile, key) for key in fields} | {"stats": stats, "texts": profile.texts}


def outcome(path: Path) -> dict | str:
    try:
        return fingerprint(read_profile(path))
    except ProfileError:
        return "error"


def small_profile() -> bytes:
    """Two threads, six kinds of stat, a name that is not UTF-8."""
    events = tuple(
        Event(
            name=f"op{i % 3}:MatMul",
            start_ns=1_000 * i,
            duration_ns=500,
            stats={"step_num": i, "id": (1 << 63) + i, "name": "ds", "filename": b"/x\xff", "cost": 0.5}
            if i % 2
            else {},
        )
        for i in range(6)
    )
    return writer.profile(
        [Line(id=-5, name="python", events=events), Line(id=7 << 40, name="tf_Compute/7", events=events)]
    )


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
    profile = read_profile(write(writer.profile(lines)))
    assert [profile.names[row] for row in profile.name] == ["train", "next_batch", "train"]
    assert profile.line.tolist() == [0, 0, 1]
    assert (profile.start_ns - START_NS).tolist() == [10_000, 10_100, 20_005]
    assert profile.end_ns.tolist() == (profile.start_ns + np.array([900, 50, 6])).tolist()
    assert [line.id for line in profile.lines] == [-8, 9]
    assert [line.thread_class for line in profile.lines] == ["python", "tf_Compute"]
    assert profile.hostnames == ("node1",)
    assert (profile.epoch_start_ns, profile.epoch_source) == (START_NS, "profile_start_time")
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
        {"filename": "/a/by/reference"},
        {"filename": b"/inline/\xff"},
        {"filename": 7},
        {"unwanted": 1},
    ]
    events = tuple(Event(name="e", start_ns=i, stats=each) for i, each in enumerate(stats))
    profile = read_profile(write(writer.profile([Line(id=1, name="python", events=events)])))
    rows, values = profile.stat("id")
    assert (rows.tolist(), values.tolist()) == ([0, 1, 2, 3], [5, -5, -5, 100_000])
    rows, values = profile.stat("filename")
    assert (rows.tolist(), values.tolist()) == ([8, 9], ["/a/by/reference", "/inline/\udcff"])
    assert [len(column) for column in profile.stat("element_id")] == [0, 0]
    assert [len(column) for column in profile.stat("name")] == [0, 0]
    with pytest.raises(KeyError):
        profile.stat("unwanted")


@both_cores
def test_names_that_are_not_utf8_are_kept_exactly(core, write):
    event = Event(name="Iterator::\udcff\udc80", stats={"filename": "/d\udce9j\u00e0"})
    profile = read_profile(write(writer.profile([Line(id=1, name="python\udcfe", events=(event,))])))
    assert profile.names == ("Iterator::\udcff\udc80",)
    assert profile.lines[0].name == "python\udcfe"
    assert profile.stat("filename")[1].tolist() == ["/d\udce9j\u00e0"]


@both_cores
def test_events_without_a_time_are_left_out_and_stats_follow_their_event(core, write):
    events = (
        Event(name="a", start_ns=1, stats={"i": 1}),
        Event(name="b", occurrences=3, stats={"i": 2}),
        Event(name="c", start_ns=2, stats={"i": 3}),
    )
    profile = read_profile(write(writer.profile([Line(id=1, name="python", events=events)])))
    assert [profile.names[row] for row in profile.name] == ["a", "c"]
    assert [column.tolist() for column in profile.stat("i")] == [[0, 1], [1, 3]]


@both_cores
def test_unsorted_events_are_sorted_outer_first(core, write):
    events = (
        Event(name="late", start_ns=30, duration_ns=1, stats={"i": 30}),
        Event(name="inner", start_ns=10, duration_ns=1, stats={"i": 10}),
        Event(name="outer", start_ns=10, duration_ns=9, stats={"i": 11}),
    )
    profile = read_profile(write(writer.profile([Line(id=1, name="python", events=events)])))
    assert [profile.names[row] for row in profile.name] == ["outer", "inner", "late"]
    assert [column.tolist() for column in profile.stat("i")] == [[0, 1, 2], [11, 10, 30]]


@both_cores
def test_the_last_of_a_repeated_stat_counts(core, write):
    names, stats = writer._Names(), writer._Names()
    body = writer.event(Event(name="e", stats={"i": 1}), names, stats) + writer.part(4, writer.stat(stats, "i", 2))
    data = writer.profile([Line(id=1, name="python", events=(Event(name="e", stats={"i": 1}),))])
    once = writer.part(4, writer.event(Event(name="e", stats={"i": 1}), names, stats))
    profile = read_profile(write(_resized(data, once, writer.part(4, body))))
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
    profile = read_profile(write(writer.space(planes)))
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
    profile = read_profile(write(writer.profile([Line(id=1, name="t", events=events)], start_ns=None)))
    assert (profile.epoch_start_ns, profile.epoch_source) == (START_NS - 700, "element_id")
    assert profile.start_ns.tolist() == [START_NS - 700 + at for at in (1_000, 9_000, 9_500)]


@both_cores
def test_without_any_epoch_times_are_relative(core, write):
    events = (Event(name="PrefetchProduce", start_ns=5, stats={"element_id": 17}),)
    profile = read_profile(write(writer.profile([Line(id=1, name="t", events=events)], start_ns=None)))
    assert (profile.epoch_start_ns, profile.epoch_source) == (None, "")
    assert profile.start_ns.tolist() == [5]


@both_cores
def test_profile_options(core, write):
    options = b"".join([writer.number(2, 3), writer.number(4, 1), writer.part(10, b"/log/rank3"), writer.number(99, 5)])
    stats = {"profile_start_time": START_NS, "profile_stop_time": START_NS + 1, "profile_options": b""}
    environment = writer.plane("Task Environment", stats=stats).replace(
        writer.part(6, writer.number(1, 3) + writer.part(5, b"")),
        writer.part(6, writer.number(1, 3) + writer.part(6, options)),
    )
    host = writer.plane("/host:CPU", [Line(id=1, name="t", events=(Event(name="e"),))])
    profile = read_profile(write(writer.space([host, environment])))
    assert profile.options == {"host_tracer_level": 3, "python_tracer_level": 1, "repository_path": "/log/rank3"}


@both_cores
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x0a", "damaged"),
        (b"not a protobuf at all", "damaged"),
        (writer.space([]), "no host events"),
        (writer.profile([]), "no host events"),
        (writer.profile([Line(id=1, name="python")]), "no host events"),
        (writer.profile([Line(id=1, name="t", events=(Event(name="e", duration_ns=-1),))]), "ends before it starts"),
        (writer.profile([Line(id=1, name="t", events=(Event(name="e", start_ns=1 << 52),))]), "far outside"),
        (writer.profile([Line(id=1, name="t", events=(Event(name="e", duration_ns=1 << 52),))]), "far outside"),
        (writer.profile([Line(id=1, name="t", timestamp_ns=1 << 62, events=(Event(name="e"),))]), "decades away"),
        (writer.profile([Line(id=1, name="t", events=(Event(name="e"),))], start_ns=5), "no time since 1970"),
        (writer.space([writer.part(2, b"/host:CPU") + writer.part(3, writer.part(4, b""))]), "name 0"),
        (writer.space([writer.part(2, b"/host:CPU") + writer.part(3, writer.part(4, writer.part(4, b"")))]), "damaged"),
        (writer.space([writer.plane("Task Environment")], hostnames=()), "before the host name"),
        (writer.space([], hostnames=()) + writer.number(4, 9), "lacks"),
        (writer.space([writer.part(2, b"/host:CPU") + writer.part(3, writer.part(7, b"reserved"))]), "lacks"),
        (writer.space([writer.part(2, b"/host:CPU") + writer.part(3, writer.part(4, b"\x0a\x00"))]), "lacks"),
    ],
)
def test_bad_input_is_an_error_that_names_the_file(core, write, data, message):
    path = write(data)
    with pytest.raises(ProfileError, match=message) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)


@both_cores
def test_stats_must_be_named(core, write):
    data = small_profile()
    key = writer.part(5, writer.number(1, 1) + writer.part(2, writer.number(1, 1) + writer.part(2, b"step_num")))
    assert key in data
    path = write(data.replace(key, writer.part(5, writer.number(1, 99) + key[4:])))
    with pytest.raises(ProfileError):
        read_profile(path)


@both_cores
def test_huge_ids_and_lengths_do_not_allocate(core, write):
    huge = writer.plane("/host:CPU", [Line(id=1, name="t", events=(Event(name="e"),))])
    huge += writer.part(5, writer.number(1, 1 << 40) + writer.part(2, writer.part(2, b"id")))
    with pytest.raises(ProfileError, match="out of range"):
        read_profile(write(writer.space([huge])))
    with pytest.raises(ProfileError):
        read_profile(write(writer.varint(1 << 3 | 2) + writer.varint((1 << 64) - 1) + b"abc"))


@both_cores
def test_every_truncation_is_an_error(core, write):
    data = small_profile()
    assert outcome(write(data)) != "error"
    step = 1 if core == "compiled" else 7
    kept = [cut for cut in range(0, len(data), step) if outcome(write(data[:cut])) != "error"]
    assert kept == []


@pytest.mark.parametrize("bits", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_an_error_or_keeps_all_events(monkeypatch, write, bits):
    use_core(monkeypatch, "compiled")
    data = small_profile()
    events = len(read_profile(write(data)))
    for at in range(len(data)):
        for bit in ((at + 3 * turn) % 8 for turn in range(bits)):
            found = outcome(write(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]))
            assert found == "error" or found["skipped_fields"] or len(found["line"]) == events, (at, bit)


_NEWER = b"".join(
    [
        writer.number(60, 5),
        writer.part(61, b"new"),
        writer.varint(62 << 3 | 1) + bytes(8),
        writer.varint(12 << 3 | 5) + bytes(4),
        writer.varint(((1 << 29) - 1) << 3) + b"\x07",
    ]
)
"""Five fields that no message of the format has, of each wire type of proto3."""


@both_cores
def test_fields_of_a_later_version_are_skipped_and_counted(core, write):
    names, stats = writer._Names(), writer._Names()
    event = writer.event(Event(name="train", start_ns=7, duration_ns=2), names, stats)
    stat = writer.stat(stats, "step_num", 3) + _NEWER
    line = writer.number(1, 5) + _NEWER + writer.part(2, b"python")
    line += writer.part(4, _NEWER + event + writer.part(4, stat)) + _NEWER
    metadata = writer.number(1, 1) + writer.part(2, b"train") + _NEWER
    host = _NEWER + writer.part(2, b"/host:CPU") + writer.part(3, line)
    host += writer.part(4, writer.number(1, 1) + writer.part(2, metadata) + _NEWER)
    host += writer.part(5, writer.number(1, 1) + writer.part(2, writer.part(2, b"step_num") + _NEWER) + _NEWER)
    host += writer.part(6, stat)
    ignored = writer.part(2, b"/device:CUSTOM:0") + writer.part(3, writer.part(4, _NEWER))
    profile = read_profile(write(writer.space([host, ignored]) + _NEWER))
    assert [profile.names[row] for row in profile.name] == ["train"]
    assert (profile.start_ns.tolist(), profile.duration_ns.tolist()) == ([7], [2])
    assert [column.tolist() for column in profile.stat("step_num")] == [[0], [3]]
    once = ("XSpace", "XPlane", "XEvent", "XEventEntry", "XEventMetadata", "XStatEntry", "XStatMetadata")
    assert profile.skipped_fields == dict.fromkeys(once, 5) | {"XLine": 10, "XStat": 10}


@both_cores
@pytest.mark.parametrize(
    "field",
    [
        writer.varint(61 << 3 | 3) + writer.varint(61 << 3 | 4),  # a group
        writer.varint(61 << 3 | 5) + b"abc",  # cut off
        writer.part(61, b"name")[:-1],
        writer.varint(61 << 3) + b"\xff" * 9 + b"\xff",
        writer.varint((1 << 29) << 3) + b"\0",
    ],
)
@pytest.mark.parametrize("place", ["space", "line", "event", "stat"])
def test_damage_is_not_taken_for_a_later_version(core, write, field, place):
    def at(here: str) -> bytes:
        return field if here == place else b""

    names, stats = writer._Names(), writer._Names()
    event = writer.event(Event(name="train"), names, stats) + writer.part(4, writer.stat(stats, "i", 3) + at("stat"))
    line = writer.part(2, b"python") + writer.part(4, event + at("event")) + at("line")
    host = writer.part(2, b"/host:CPU") + writer.part(3, line)
    host += writer.part(4, writer.number(1, 1) + writer.part(2, writer.part(2, b"train")))
    host += writer.part(5, writer.number(1, 1) + writer.part(2, writer.part(2, b"i")))
    with pytest.raises(ProfileError, match="damaged"):
        read_profile(write(writer.space([host]) + at("space")))


@both_cores
def test_a_profile_without_foreign_fields_has_none_skipped(core, write):
    assert read_profile(write(small_profile())).skipped_fields == {}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
@example(edits=[(3, 0x80)])
def test_cores_agree_on_damaged_input(monkeypatch, write, edits):
    data = bytearray(small_profile())
    for at, byte in edits:
        data[at % len(data)] = byte
    path = write(bytes(data))
    found = []
    for name in ("compiled", "python"):
        use_core(monkeypatch, name)
        found.append(outcome(path))
    assert found[0] == found[1]


_stat_value = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
_event = st.builds(
    Event,
    name=st.sampled_from(["train", "Iterator::Root", "op:MatMul", ""]),
    start_ns=st.integers(0, 1 << 30),
    duration_ns=st.integers(0, 1 << 20),
    stats=st.dictionaries(st.sampled_from(["id", "i", "name", "filename", "shapes"]), _stat_value, max_size=3),
)
_line = st.builds(
    Line,
    id=st.integers(-(1 << 63), (1 << 63) - 1),
    name=st.sampled_from(["python", "tf_Compute/5"]),
    timestamp_ns=st.integers(0, 1 << 20),
    events=st.lists(_event, min_size=1, max_size=6).map(tuple),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(_line, min_size=1, max_size=4))
def test_whatever_is_written_is_read_by_both_cores(monkeypatch, write, lines):
    path = write(writer.profile(lines))
    found = []
    for name in ("compiled", "python"):
        use_core(monkeypatch, name)
        profile = read_profile(path)
        found.append(fingerprint(profile))
    assert found[0] == found[1]
    expected = sorted(
        (row, START_NS + line.timestamp_ns + event.start_ns, -event.duration_ns, event.name)
        for row, line in enumerate(lines)
        for event in line.events
    )
    names = [profile.names[name] for name in profile.name]
    assert sorted(zip(profile.line, profile.start_ns, -profile.duration_ns, names, strict=True)) == expected
    written = sorted(
        (event.start_ns, (value + (1 << 63)) % (1 << 64) - (1 << 63))
        for line in lines
        for event in line.events
        if isinstance(value := event.stats.get("id"), int)
    )
    rows, values = profile.stat("id")
    whole = [
        (event.start_ns, int(value))
        for line in lines
        for event in line.events
        if isinstance(value := event.stats.get("id"), float) and abs(value) < 2**53 and value == int(value)
    ]
    stamps = np.array([line.timestamp_ns for line in lines])[profile.line[rows]]
    starts = (profile.start_ns[rows] - START_NS - stamps).tolist()
    assert sorted(zip(starts, values.tolist(), strict=True)) == sorted(written + whole)


@both_cores
def test_a_compressed_profile_is_read_alike(core, write):
    data = small_profile()
    assert outcome(write(gzip.compress(data), "a.xplane.pb.gz")) == outcome(write(data))


def test_damaged_gzip(write):
    packed = gzip.compress(small_profile())
    for bad in (packed[:-9], packed[:20], packed[:-6] + b"\0" * 6, packed + b"rest"):
        with pytest.raises(ProfileError, match="gzip"):
            read_profile(write(bad, "a.xplane.pb.gz"))


def test_paths_that_are_no_profiles(tmp_path):
    fifo = tmp_path / "pipe.xplane.pb"
    os.mkfifo(fifo)
    for path in (tmp_path, tmp_path / "missing", fifo):
        with pytest.raises(ProfileError, match=str(path)):
            read_profile(path)


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
    if xplane._compiled is None:
        pytest.skip("the compiled core is not built")
    path = write(small_profile())
    code = (
        "import sys; from pathlib import Path; from profiler_merge.xplane import read_profile\n"
        f"read_profile(Path({str(path)!r}))\n"
        "print(sorted({'tensorflow', 'google', 'jax', 'xprof'} & {name.split('.')[0] for name in sys.modules}))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "DXT_REPLAY_CORE"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=Path.cwd()
    )
    assert result.stdout.strip() == "[]"


def _captured() -> list:
    profiles = find_profiles(CAPTURES) if CAPTURES.is_dir() else []
    return [
        pytest.param(path, id="-".join(path.relative_to(CAPTURES).parts[:3:2]), marks=marks)
        for path in profiles
        for marks in [() if path.relative_to(CAPTURES).parts[0] == QUICK else (pytest.mark.slow,)]
    ] or [pytest.param(None, marks=pytest.mark.skip(reason="no captures beside the checkout"))]


@pytest.mark.parametrize("path", _captured())
def test_cores_agree_row_by_row_on_real_profiles(monkeypatch, path):
    found = []
    for name in ("compiled", "python"):
        use_core(monkeypatch, name)
        found.append(read_profile(path))
    one, other = found
    assert len(one) > 20_000
    for column in ("line", "name", "start_ns", "duration_ns"):
        assert np.array_equal(getattr(one, column), getattr(other, column)), column
    assert (one.lines, one.names, one.display_names) == (other.lines, other.names, other.display_names)
    assert (one.options, one.epoch_start_ns, one.hostnames) == (other.options, other.epoch_start_ns, other.hostnames)
    assert one.stats.keys() == other.stats.keys()
    assert one.texts == other.texts
    for key, (rows, values) in one.stats.items():
        assert np.array_equal(rows, other.stats[key][0]), key
        assert np.array_equal(values, other.stats[key][1]), key


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures beside the checkout")
def test_a_real_profile():
    (path,) = find_profiles(CAPTURES / QUICK / "profile" / "rank0")
    profile = read_profile(path)
    assert profile.hostnames == ("vm",)
    assert profile.options["host_tracer_level"] == 2
    assert str(profile.options["repository_path"]).endswith("rank0")
    assert profile.stat("step_num")[1].tolist() == list(range(64))
    assert len(set(profile.stat("filename")[1])) == 4
    (line,) = {profile.lines[row].name for row in profile.line[profile.stat("step_num")[0]]}
    assert line == "python"


@pytest.mark.slow
def test_a_profile_of_a_million_events_reads_alike(monkeypatch, tmp_path):
    from benchmarks.xplane_decode import write_profile

    use_core(monkeypatch, "compiled")
    path = tmp_path / "big.xplane.pb"
    count = write_profile(path, 1_000_000)
    profile = read_profile(path)
    assert len(profile) == count
    assert len(profile.stat("id")[0]) == count // 2
    assert struct.calcsize("q") == profile.start_ns.itemsize
