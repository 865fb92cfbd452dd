"""XPlane files: what was written is read, whatever is damaged is refused, and which files are profiles."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.xplane import read_profile
from dxt_replay.traces.errors import ProfileError
from tests import xplane_writer as writer
from tests.examples import examples
from tests.xplane_writer import START_NS, Event, Line, small_profile

Write = Callable[..., Path]


@pytest.fixture(name="write")
def write_fixture(tmp_path: Path) -> Write:
    def write(data: bytes, name: str = "node1.xplane.pb") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def outcome(path: Path) -> Profile | None:
    try:
        return read_profile(path)
    except ProfileError:
        return None


def of_events(*events: Event) -> bytes:
    return writer.profile([Line(id=1, name="python", events=events)])


def stat(profile: Profile, key: str) -> list[list[int]]:
    return [column.tolist() for column in profile.stat(key)]


def names_of(profile: Profile) -> list[str]:
    return [profile.names[row] for row in profile.name]


def test_columns(write: Write) -> None:
    train = Event(name="train", start_ns=0, duration_ns=900, stats={"step_num": 4, "_r": 1})
    lines = [
        Line(id=-8, name="python", timestamp_ns=10_000,
             events=(train, Event(name="next_batch", start_ns=100, duration_ns=50))),
        Line(id=9, name="tf_Compute/9", timestamp_ns=20_000, events=(Event(name="train", start_ns=5, duration_ns=6),)),
    ]  # fmt: skip
    profile = read_profile(write(writer.profile(lines)))
    assert names_of(profile) == ["train", "next_batch", "train"]
    assert profile.line.tolist() == [0, 0, 1]
    assert (profile.start_ns - START_NS).tolist() == [10_000, 10_100, 20_005]
    assert profile.end_ns.tolist() == (profile.start_ns + np.array([900, 50, 6])).tolist()
    assert [(line.id, line.thread_class) for line in profile.lines] == [(-8, "python"), (9, "tf_Compute")]
    assert (profile.hostnames, profile.epoch_start_ns, profile.skipped_fields) == (("node1",), START_NS, {})
    assert stat(profile, "step_num") == [[0], [4]]
    assert profile.stat_column("step_num", missing=-1).tolist() == [4, -1, -1]
    assert profile.line.dtype == profile.name.dtype == np.int32
    assert profile.start_ns.dtype == profile.duration_ns.dtype == np.int64


def test_stats_of_every_kind(write: Write) -> None:
    stats: list[dict[str, writer.Value]] = [
        *({"id": each} for each in (5, -5, (1 << 64) - 5, 1e5, 0.5, float("nan"), float("inf"), "text")),
        *({"tf_function_call": each} for each in ("by reference", b"inline \xff", 7)),
        {"unwanted": 1},
    ]
    profile = read_profile(write(of_events(*(Event(name="e", start_ns=i, stats=each) for i, each in enumerate(stats)))))
    assert stat(profile, "id") == [[0, 1, 2, 3], [5, -5, -5, 100_000]]
    assert stat(profile, "tf_function_call")[0] == [8, 9]
    assert stat(profile, "element_id") == [[], []]


@pytest.mark.parametrize(
    ("events", "names", "stats"),
    [
        # Names that are not UTF-8 are kept exactly.
        ([Event(name="Iterator::\udcff\udc80")], ["Iterator::\udcff\udc80"], [[], []]),
        (  # Events without a time are left out, and stats follow their event.
            [
                *(Event(name="a", start_ns=1, stats={"i": 1}), Event(name="b", occurrences=3, stats={"i": 2})),
                Event(name="c", start_ns=2, stats={"i": 3}),
            ],
            ["a", "c"],
            [[0, 1], [1, 3]],
        ),
        (  # Unsorted events are sorted, the outer one first.
            [
                Event(name="late", start_ns=30, duration_ns=1, stats={"i": 30}),
                Event(name="inner", start_ns=10, duration_ns=1, stats={"i": 10}),
                Event(name="outer", start_ns=10, duration_ns=9, stats={"i": 11}),
            ],
            ["outer", "inner", "late"],
            [[0, 1, 2], [11, 10, 30]],
        ),
        (
            [Event(name="inner", start_ns=10, duration_ns=1), Event(name="outer", start_ns=10, duration_ns=9)],
            ["outer", "inner"],
            [[], []],
        ),
    ],
)
def test_events(write: Write, events: list[Event], names: list[str], stats: list[list[int]]) -> None:
    profile = read_profile(write(of_events(*events)))
    assert (names_of(profile), stat(profile, "i")) == (names, stats)


def test_the_last_of_a_repeated_stat_counts(write: Write) -> None:
    names, stats = writer._Names(), writer._Names()
    event = writer.event(Event(name="e", stats={"i": 1}), names, stats) + writer.part(4, writer.stat(stats, "i", 2))
    host = writer.part(2, b"/host:CPU") + writer.part(3, writer.part(2, b"python") + writer.part(4, event))
    for field, name in ((4, b"e"), (5, b"i")):
        host += writer.part(field, writer.number(1, 1) + writer.part(2, writer.part(2, name)))
    assert stat(read_profile(write(writer.space([host]))), "i") == [[0], [2]]


def test_host_and_gpu_planes_are_read_and_others_are_not(write: Write) -> None:
    planes = [
        writer.plane(name, [Line(id=1, name=line, events=(Event(name=event, start_ns=number, stats={"i": number}),))])
        for number, (name, line, event) in enumerate(
            [("/host:CPU", "python", "train"), ("/device:GPU:0", "Stream #14", "gemm"), ("/device:CUSTOM:0", "x", "y")]
        )
    ]
    profile = read_profile(write(writer.space(planes)))
    assert profile.planes == ("/host:CPU", "/device:GPU:0")
    assert [(line.name, line.plane) for line in profile.lines] == [("python", 0), ("Stream #14", 1)]
    assert (names_of(profile), stat(profile, "i")) == (["train", "gemm"], [[0, 1], [0, 1]])


def test_the_epoch_of_old_versions_comes_from_prefetch_produce_or_is_not_known(write: Write) -> None:
    events = [
        Event(name="PrefetchProduce", start_ns=1_000, stats={"element_id": START_NS + 1_000 - 2_500}),
        Event(name="PrefetchProduce", start_ns=9_000, stats={"element_id": START_NS + 9_000 - 700}),
        Event(name="MapAndBatchProduce", start_ns=9_500, stats={"element_id": START_NS + 20_000}),
    ]
    profile = read_profile(write(writer.profile([Line(id=1, name="t", events=tuple(events))], start_ns=None)))
    assert profile.epoch_start_ns == START_NS - 700
    assert profile.start_ns.tolist() == [START_NS - 700 + at for at in (1_000, 9_000, 9_500)]
    counted = (Event(name="PrefetchProduce", start_ns=5, stats={"element_id": 17}),)
    profile = read_profile(write(writer.profile([Line(id=1, name="t", events=counted)], start_ns=None)))
    assert (profile.epoch_start_ns, profile.start_ns.tolist()) == (None, [5])


_stat_value = st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5))
_event = st.builds(
    Event,
    name=st.sampled_from(["train", "Iterator::Root", "op:MatMul", ""]),
    start_ns=st.integers(0, 1 << 30),
    duration_ns=st.integers(0, 1 << 20),
    stats=st.dictionaries(st.sampled_from(["id", "i", "tf_function_call", "shapes"]), _stat_value, max_size=3),
)
_line = st.builds(
    Line,
    id=st.integers(-(1 << 63), (1 << 63) - 1),
    name=st.sampled_from(["python", "tf_Compute/5"]),
    timestamp_ns=st.integers(0, 1 << 20),
    events=st.lists(_event, min_size=1, max_size=6).map(tuple),
)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(_line, min_size=1, max_size=4))
def test_whatever_is_written_is_read(write: Write, lines: list[Line]) -> None:
    profile = read_profile(write(writer.profile(lines)))
    events = [(row, line, event) for row, line in enumerate(lines) for event in line.events]
    assert sorted(zip(profile.line, profile.start_ns, -profile.duration_ns, names_of(profile), strict=True)) == sorted(
        (row, START_NS + line.timestamp_ns + event.start_ns, -event.duration_ns, event.name)
        for row, line, event in events
    )
    expected = []
    for _, _, event in events:
        value = event.stats.get("id")
        if isinstance(value, int):
            expected.append((event.start_ns, (value + (1 << 63)) % (1 << 64) - (1 << 63)))
        elif isinstance(value, float) and abs(value) < 2**53 and value == int(value):
            expected.append((event.start_ns, int(value)))
    rows, values = profile.stat("id")
    stamps = np.array([line.timestamp_ns for line in lines])[profile.line[rows]]
    starts = (profile.start_ns[rows] - START_NS - stamps).tolist()
    assert sorted(zip(starts, values.tolist(), strict=True)) == sorted(expected)


# Damage.

HOST = writer.part(2, b"/host:CPU")
E = (Event(name="e"),)
NAMED = writer.number(1, 1) + writer.part(2, writer.number(1, 1) + writer.part(2, b"step_num"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x0a", "damaged"),
        (b"not a protobuf at all", "damaged"),
        *((data, "no host events") for data in (writer.space([]), writer.profile([]), of_events())),
        (of_events(Event(name="e", duration_ns=-1)), "ends before it starts"),
        (of_events(Event(name="e", start_ns=1 << 52)), "far outside"),
        (of_events(Event(name="e", duration_ns=1 << 52)), "far outside"),
        (writer.profile([Line(id=1, name="t", timestamp_ns=1 << 62, events=E)]), "decades away"),
        (writer.profile([Line(id=1, name="t", events=E)], start_ns=5), "not a time since 1970"),
        (writer.profile([Line(id=1, name="t\n", events=E)]), "control characters"),
        (writer.space([HOST + writer.part(3, writer.part(4, b""))]), "name 0"),
        (writer.space([HOST + writer.part(3, writer.part(4, writer.part(4, b"")))]), "damaged"),
        (writer.space([HOST + HOST]), "more than one name"),
        (writer.space([writer.plane("Task Environment")], hostnames=()), "before the host name"),
        (writer.space([], hostnames=()) + writer.number(4, 9), "lacks"),
        (writer.space([HOST + writer.part(3, writer.part(7, b"reserved"))]), "lacks"),
        (writer.space([HOST + writer.part(3, writer.part(4, b"\x0a\x00"))]), "lacks"),
        # Huge ids and lengths do not allocate; an id out of range is damage in every plane.
        (
            writer.space([
                writer.plane("/host:CPU", [Line(id=1, name="t", events=E)])
                + writer.part(5, writer.number(1, 1 << 40) + writer.part(2, writer.part(2, b"id")))
            ]),
            "out of range",
        ),
        (
            small_profile()
            + writer.part(1, writer.part(2, b"/device:CUSTOM:0")
                          + writer.part(5, writer.number(1, 1 << 24) + writer.part(2, writer.part(2, b"x")))),
            "out of range",
        ),
        (writer.varint(1 << 3 | 2) + writer.varint((1 << 64) - 1) + b"abc", "damaged"),
        (small_profile().replace(NAMED, b"\x08\x63" + NAMED[2:]), "a stat whose name is not in its plane"),
    ],
)  # fmt: skip
def test_bad_input_is_an_error_that_names_the_file(write: Write, data: bytes, message: str) -> None:
    path = write(data)
    with pytest.raises(ProfileError, match=message) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)


def test_every_truncation_is_an_error_and_every_flipped_bit_too_or_keeps_all_events(write: Write) -> None:
    data = small_profile()
    whole = outcome(write(data))
    assert whole is not None
    assert [cut for cut in range(len(data)) if outcome(write(data[:cut])) is not None] == []
    for at in range(len(data)):
        found = outcome(write(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]))
        assert found is None or found.skipped_fields or len(found) == len(whole), at


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


def test_fields_of_a_later_version_are_skipped_and_counted(write: Write) -> None:
    names, stats = writer._Names(), writer._Names()
    event = writer.event(Event(name="train", start_ns=7, duration_ns=2), names, stats)
    value = writer.stat(stats, "step_num", 3) + _NEWER
    line = writer.number(1, 5) + _NEWER + writer.part(2, b"python")
    line += writer.part(4, _NEWER + event + writer.part(4, value)) + _NEWER
    metadata = writer.number(1, 1) + writer.part(2, b"train") + _NEWER
    host = _NEWER + HOST + writer.part(3, line)
    host += writer.part(4, writer.number(1, 1) + writer.part(2, metadata) + _NEWER)
    host += writer.part(5, writer.number(1, 1) + writer.part(2, writer.part(2, b"step_num") + _NEWER) + _NEWER)
    host += writer.part(6, value)
    ignored = writer.part(2, b"/device:CUSTOM:0") + writer.part(3, writer.part(4, _NEWER))
    profile = read_profile(write(writer.space([host, ignored]) + _NEWER))
    assert (names_of(profile), profile.start_ns.tolist(), profile.duration_ns.tolist()) == (["train"], [7], [2])
    assert stat(profile, "step_num") == [[0], [3]]
    once = ("XSpace", "XPlane", "XEvent", "XEventEntry", "XEventMetadata", "XStatEntry", "XStatMetadata")
    assert profile.skipped_fields == dict.fromkeys(once, 5) | {"XLine": 10, "XStat": 10}


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
def test_damage_is_not_taken_for_a_later_version(write: Write, field: bytes, place: str) -> None:
    at = {place: field}
    names, stats = writer._Names(), writer._Names()
    value = writer.part(4, writer.stat(stats, "i", 3) + at.get("stat", b""))
    event = writer.event(Event(name="train"), names, stats) + value + at.get("event", b"")
    host = HOST + writer.part(3, writer.part(2, b"python") + writer.part(4, event) + at.get("line", b""))
    host += writer.part(4, writer.number(1, 1) + writer.part(2, writer.part(2, b"train")))
    host += writer.part(5, writer.number(1, 1) + writer.part(2, writer.part(2, b"i")))
    with pytest.raises(ProfileError, match="damaged"):
        read_profile(write(writer.space([host]) + at.get("space", b"")))


def test_a_compressed_profile_is_read_alike_or_damaged(write: Write) -> None:
    data = small_profile()
    packed = gzip.compress(data)
    one, other = read_profile(write(packed, "a.xplane.pb.gz")), read_profile(write(data))
    assert (one.start_ns.tolist(), one.names, one.lines) == (other.start_ns.tolist(), other.names, other.lines)
    for bad in (packed[:-9], packed[:20], packed[:-6] + b"\0" * 6, packed + b"rest"):
        with pytest.raises(ProfileError, match="gzip"):
            read_profile(write(bad, "a.xplane.pb.gz"))


# Files.


def test_paths_that_are_no_profiles(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.xplane.pb"
    os.mkfifo(fifo)
    for path in (tmp_path, tmp_path / "missing", fifo):
        with pytest.raises(ProfileError, match=str(path)):
            read_profile(path)


def test_find_profiles(tmp_path: Path) -> None:
    run, other = "rank0/plugins/profile/run1/a.xplane.pb", "rank0/plugins/profile/run2/a.xplane.pb"
    wanted = [run, other, "rank1/b.xplane.pb.gz"]
    for name in (*wanted, f"{run}.gz", "rank0/a.trace.json.gz", "x.pb", "empty/x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert find_profiles(tmp_path) == [tmp_path / name for name in wanted]
    assert find_profiles(tmp_path / run) == find_profiles((tmp_path / run).parent) == [tmp_path / run]
    assert find_profiles(tmp_path / "empty") == []
    with pytest.raises(ProfileError, match="does not exist"):
        find_profiles(tmp_path / "missing")
