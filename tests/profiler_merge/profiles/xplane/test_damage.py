"""Both decoding cores on profiles that are damaged, impossible, or of a later version of the format."""

import gzip
import os

import pytest

from dxt_replay.profiler_merge.profiles.xplane import read_profile
from dxt_replay.traces.errors import ProfileError
from tests import xplane_writer as writer
from tests.profiler_merge.profiles.xplane.profile_cores import (  # noqa: F401
    COMPILED,
    both_cores,
    small_profile,
    write_fixture,
)
from tests.xplane_writer import Event, Line


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
        (writer.profile([Line(id=1, name="t", events=(Event(name="e"),))], start_ns=5), "not a time since 1970"),
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
        core.read(path)
    assert str(path) in str(caught.value)


@both_cores
def test_stats_must_be_named(core, write):
    data = small_profile()
    key = writer.part(5, writer.number(1, 1) + writer.part(2, writer.number(1, 1) + writer.part(2, b"step_num")))
    assert key in data
    path = write(data.replace(key, writer.part(5, writer.number(1, 99) + key[4:])))
    with pytest.raises(ProfileError):
        core.read(path)


@both_cores
def test_huge_ids_and_lengths_do_not_allocate(core, write):
    huge = writer.plane("/host:CPU", [Line(id=1, name="t", events=(Event(name="e"),))])
    huge += writer.part(5, writer.number(1, 1 << 40) + writer.part(2, writer.part(2, b"id")))
    with pytest.raises(ProfileError, match="out of range"):
        core.read(write(writer.space([huge])))
    with pytest.raises(ProfileError):
        core.read(write(writer.varint(1 << 3 | 2) + writer.varint((1 << 64) - 1) + b"abc"))


@both_cores
def test_a_stat_id_out_of_range_is_damage_in_every_plane(core, write):
    """Also in a plane whose events nobody asked for: its ids come from the same hand."""
    ids = writer.part(5, writer.number(1, 1 << 24) + writer.part(2, writer.part(2, b"profile_start_time")))
    data = small_profile() + writer.part(1, writer.part(2, b"/device:CUSTOM:0") + ids)
    with pytest.raises(ProfileError, match="out of range"):
        core.read(write(data))


@both_cores
def test_every_truncation_is_an_error(core, write):
    data = small_profile()
    assert core.outcome(write(data)) != "error"
    step = 1 if core.name == "compiled" else 7
    kept = [cut for cut in range(0, len(data), step) if core.outcome(write(data[:cut])) != "error"]
    assert kept == []


@pytest.mark.parametrize("bits", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_an_error_or_keeps_all_events(write, bits):
    data = small_profile()
    events = len(read_profile(write(data)))
    for at in range(len(data)):
        for bit in ((at + 3 * turn) % 8 for turn in range(bits)):
            found = COMPILED.outcome(write(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]))
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
    profile = core.read(write(writer.space([host, ignored]) + _NEWER))
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
        core.read(write(writer.space([host]) + at("space")))


@both_cores
def test_a_profile_without_foreign_fields_has_none_skipped(core, write):
    assert core.read(write(small_profile())).skipped_fields == {}


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
