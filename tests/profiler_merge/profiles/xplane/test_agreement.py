"""The decoding cores against each other, on written and damaged profiles and on real captures."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.profiles.xplane import find_profiles, read_profile
from tests import xplane_writer as writer
from tests.examples import examples
from tests.places import SHARED
from tests.profiler_merge.profiles.xplane.profile_cores import (  # noqa: F401
    COMPILED,
    ORACLE,
    fingerprint,
    small_profile,
    write_fixture,
)
from tests.xplane_writer import START_NS, Event, Line

CAPTURES = SHARED / "captures"
QUICK = "cosmoflow_threads"


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
@example(edits=[(3, 0x80)])
def test_cores_agree_on_damaged_input(write, edits):
    data = bytearray(small_profile())
    for at, byte in edits:
        data[at % len(data)] = byte
    path = write(bytes(data))
    assert COMPILED.outcome(path) == ORACLE.outcome(path)


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
    stats=st.dictionaries(st.sampled_from(["id", "i", "tf_function_call", "shapes"]), _stat_value, max_size=3),
)
_line = st.builds(
    Line,
    id=st.integers(-(1 << 63), (1 << 63) - 1),
    name=st.sampled_from(["python", "tf_Compute/5"]),
    timestamp_ns=st.integers(0, 1 << 20),
    events=st.lists(_event, min_size=1, max_size=6).map(tuple),
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(_line, min_size=1, max_size=4))
def test_whatever_is_written_is_read_by_both_cores(write, lines):
    path = write(writer.profile(lines))
    profile = COMPILED.read(path)
    assert fingerprint(profile) == fingerprint(ORACLE.read(path))
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


def _captured() -> list:
    profiles = find_profiles(CAPTURES) if CAPTURES.is_dir() else []
    return [
        pytest.param(path, id="-".join(path.relative_to(CAPTURES).parts[:3:2]), marks=marks)
        for path in profiles
        for marks in [() if path.relative_to(CAPTURES).parts[0] == QUICK else (pytest.mark.slow,)]
    ] or [pytest.param(None, marks=pytest.mark.skip(reason="no captures beside the checkout"))]


@pytest.mark.parametrize("path", _captured())
def test_cores_agree_row_by_row_on_real_profiles(path):
    one, other = COMPILED.read(path), ORACLE.read(path)
    assert len(one) > 20_000
    for column in ("line", "name", "start_ns", "duration_ns"):
        assert np.array_equal(getattr(one, column), getattr(other, column)), column
    assert (one.lines, one.names) == (other.lines, other.names)
    assert (one.epoch_start_ns, one.hostnames) == (other.epoch_start_ns, other.hostnames)
    assert one.stats.keys() == other.stats.keys()
    for key, (rows, values) in one.stats.items():
        assert np.array_equal(rows, other.stats[key][0]), key
        assert np.array_equal(values, other.stats[key][1]), key


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures beside the checkout")
def test_a_real_profile():
    (path,) = find_profiles(CAPTURES / QUICK / "profile" / "rank0")
    profile = read_profile(path)
    assert profile.hostnames == ("vm",)
    assert profile.stat("step_num")[1].tolist() == list(range(64))
    (line,) = {profile.lines[row].name for row in profile.line[profile.stat("step_num")[0]]}
    assert line == "python"


@pytest.mark.slow
def test_a_profile_of_a_million_events_reads_alike(tmp_path):
    from benchmarks.decoders import write_profile

    path = tmp_path / "big.xplane.pb"
    count = write_profile(path, 1_000_000)
    profile = read_profile(path)
    assert len(profile) == count
    assert len(profile.stat("id")[0]) == count // 2
    assert struct.calcsize("q") == profile.start_ns.itemsize
