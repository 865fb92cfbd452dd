"""PyTorch's profiles as the event table: chunk borders, generations of the clock, cycles and damage."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.profiles.kineto import EventChunks, exact_ns, read_profile
from dxt_replay.profiler_merge.profiles.reading import profile_files
from dxt_replay.profiler_merge.profiles.reading import read_profile as read_any
from dxt_replay.traces.errors import ProfileError
from tests import kineto_writer as writer
from tests.examples import examples
from tests.kineto_writer import PID, START_NS, event

EVENTS = [event(f"aten::op{i % 7}", 1_000_000 * i, 1_000_000 * i + 750_001) for i in range(40)]


def rows_of(profile):
    """(name, start, duration) of each event, in order of time."""
    names = np.array(profile.names, dtype=object)[profile.name]
    return sorted(zip(profile.start_ns.tolist(), profile.duration_ns.tolist(), names.tolist(), strict=True))


def expected(events, start_ns=START_NS, rounded_ns=1):
    times = [(start_ns + each["start"], each["end"] - each["start"], each["name"]) for each in events]
    return sorted(
        (start // rounded_ns * rounded_ns, span // rounded_ns * rounded_ns, name) for start, span, name in times
    )


@given(
    names=st.lists(st.text(max_size=12) | st.sampled_from(['}, {"ph":', '"traceEvents": [', "a\\b", "]}"]), min_size=1),
    chunk=st.integers(1, 4000),
    indent=st.sampled_from([None, 2]),
)
@settings(max_examples=examples(25))
def test_chunk_borders_lose_and_add_nothing(tmp_path_factory, names, chunk, indent):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    events = [event(name, 1000 * i, 1000 * i + 900) for i, name in enumerate(names)]
    metadata = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "x"}}, {}]
    path.write_bytes(writer.trace([*events, *metadata, {"ph": "s", "id": 3, "name": "flow", "ts": 1}], indent=indent))
    profile = read_profile([path], chunk_bytes=chunk)
    assert rows_of(profile) == expected(events)
    assert profile.warnings == ()


def test_chunks_are_bounded(tmp_path):
    plain = writer.write(tmp_path / "t.json", EVENTS * 50)
    packed = writer.write(tmp_path / "t.json.gz", EVENTS * 50)
    sizes = [len(chunk) for chunk in EventChunks(plain, 4096)]
    assert sum(sizes) > 100 * 4096
    assert max(sizes) <= 2 * 4096
    ratio = plain.stat().st_size / packed.stat().st_size
    # A block of the compressed file is a 64th of a chunk.
    assert max(len(chunk) for chunk in EventChunks(packed, 16384)) <= 16384 + 4 * ratio * 256


@pytest.mark.parametrize(("generation", "base_last", "rounded_ns"), [(1, False, 1000), (4, False, 1), (4, True, 1)])
@pytest.mark.parametrize("name", ["t.json", "t.pt.trace.json.gz"])
def test_each_generation_of_the_clock_has_its_date(tmp_path, name, generation, base_last, rounded_ns):
    events = [event("aten::add", 1_000 * 7 * i, 1_000 * 7 * i + 5_000) for i in range(9)]
    start = START_NS // rounded_ns * rounded_ns
    path = writer.write(tmp_path / name, events, generation=generation, base_last=base_last, start_ns=start)
    profile = read_profile([path])
    assert profile.epoch_start_ns == start
    assert rows_of(profile) == expected(events, start)
    # Epoch microseconds with decimals are as exact as a double: half of 0.25 us.
    profile = read_profile([writer.write(tmp_path / name, EVENTS, generation=2)])
    errors = [abs(found[0] - wanted[0]) for found, wanted in zip(rows_of(profile), expected(EVENTS), strict=True)]
    assert max(errors) <= 125


def test_times_since_program_load_have_no_date(tmp_path):
    path = writer.write(tmp_path / "t.json", EVENTS, generation=3)
    profile = read_profile([path])
    assert profile.epoch_start_ns is None
    assert rows_of(profile) == expected(EVENTS, 10**12)
    with pytest.raises(ProfileError, match="no common clock"):
        read_profile([path, path])


@given(st.integers(0, 7_889_238 * 10**9 - 1))
def test_no_digit_of_a_time_is_lost(ns):
    text = f"{ns // 1000}.{ns % 1000:03}"
    assert exact_ns(np.array([float(text)])).tolist() == [ns]


def test_cycles_of_one_process_are_one_profile_whatever_their_base(tmp_path):
    first = writer.write(tmp_path / f"node7_{PID}.1795309101260993922.pt.trace.json", EVENTS)
    second = writer.write(
        tmp_path / f"node7_{PID}.1795309201260993922.pt.trace.json.gz", EVENTS, start_ns=START_NS + 10**11, generation=1
    )
    other = writer.write(tmp_path / f"node7_{PID + 1}.1795309101260993922.pt.trace.json", EVENTS)
    groups = profile_files([second, other, first])
    assert sorted(groups) == [(first, second), (other,)]
    profile = read_profile(groups[0])
    assert profile.hostnames == ("node7",)
    assert len(profile) == 2 * len(EVENTS)
    assert profile.end_ns.max() - profile.start_ns.min() > 10**11


def test_the_number_of_a_step_and_of_an_anchor_leave_the_name(tmp_path):
    on_gpu = writer.mark(0, 0, 9000, cat="gpu_user_annotation", pid=0, tid=7)
    events = [writer.mark(3, 0, 9000), on_gpu, writer.anchor(5, 1000, rank=2, pid=99)]
    profile = read_profile([writer.write(tmp_path / "t.json", events)])
    assert set(profile.names) == {"ProfilerStep", "dxt_anchor"}
    assert profile.stat("step_num")[1].tolist() == [3]
    assert [profile.stat(key)[1].tolist() for key in ("i", "rank", "pid")] == [[5], [2], [99]]


def test_what_stands_around_the_events(tmp_path):
    around = {"distributedInfo": {"backend": "gloo", "rank": 3, "pg_config": [{"ranks": [0, 3]}]}, "host_name": "n7"}
    profile = read_profile([writer.write(tmp_path / "t.json", EVENTS, around=around)])
    assert profile.hostnames == ("n7",)
    assert profile.torch.rank == 3
    assert profile.torch.pids == {PID}
    assert profile.torch.exports == ("/tmp/tmpabc.json", "/tmp/tmpabc.json.tmp")


def test_events_at_time_zero_and_python_functions_are_left_out(tmp_path):
    odd = [
        event("Trace", 0, 10**9, cat="Trace", pid="Spans", tid="PyTorch Profiler"),
        event("lost", -START_NS + writer.BASE_NS, -START_NS + writer.BASE_NS + 5),
        event("train.py(3): forward", 0, 1000, cat="python_function"),
        event("torch/serialization.py(943): save", 0, 1000, cat="python_function"),
    ]
    profile = read_profile([writer.write(tmp_path / "t.json", [*EVENTS, *odd])])
    assert {name for _, _, name in rows_of(profile)} - {each["name"] for each in EVENTS} == {odd[3]["name"]}
    assert "1 events left out" in profile.warnings[0]


BROKEN = {
    "a raw newline": (b"op5", b"op\n5", True),
    "a control character": (b"op5", b"op\x015", True),
    "bytes that are not UTF-8": (b"op5", b"op\xff5", True),
    "not a number": (b'"External id": 7', b'"External id": NaN', True),
    "infinity": (b'"External id": 7', b'"External id": inf', False),
    "a bare quote": (b"op5", b'op"5', False),
    "a bad escape": (b"op5", b"op\\5", False),
    "an empty member": (b'"External id": 7', b'"External id": ', False),
    "a time that is not a number": (b'"dur": ', b'"dur": NaN, "was": ', False),
    "a large integer": (b'"External id": 7', b'"External id": 18446744073709551617', True),
    "a comma too many": (b'"External id": 7', b'"External id": 7,', False),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("chunk_bytes", [500, 1 << 20])
def test_an_event_that_is_not_valid_json_costs_itself_alone(tmp_path, what, chunk_bytes):
    old, new, repairable = BROKEN[what]
    data = writer.trace(EVENTS)
    place = data.index(old, data.index(b"op5"))
    path = tmp_path / "t.json"
    path.write_bytes(data[:place] + new + data[place + len(old) :])
    profile = read_profile([path], chunk_bytes=chunk_bytes)
    assert len(profile) == len(EVENTS) - (not repairable)
    assert bool(profile.warnings) == (not repairable)
    if not repairable:
        assert "1 event left out" in profile.warnings[0]


@given(cut=st.floats(0.05, 0.98), chunk_bytes=st.sampled_from([300, 1 << 20]), packed=st.booleans())
@settings(max_examples=examples(25))
def test_a_cut_file_has_the_events_before_the_cut(tmp_path_factory, cut, chunk_bytes, packed):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    data = writer.trace(EVENTS * 3)
    end = data.index(b"traceName") - 20
    data = gzip.compress(data, 1) if packed else data
    path.write_bytes(data[: int(cut * (len(data) if packed else end))])
    try:
        profile = read_profile([path], chunk_bytes=chunk_bytes)
    except ProfileError:
        return
    whole = set(expected(EVENTS))
    assert set(rows_of(profile)) <= whole
    assert any("is damaged" in text for text in profile.warnings)


def test_ends_and_files_that_hold_no_profile_or_two(tmp_path):
    path = tmp_path / "t.json"
    data = writer.trace(EVENTS, indent=None)
    place = data.index(b"}], ") + 1
    path.write_bytes(data[:place] + b"," + data[place:])  # a comma too many
    assert len(read_profile([path])) == len(EVENTS)
    path.write_bytes(data[:place])
    assert "cut off" in read_profile([path]).warnings[0]
    path.write_bytes(b"\xef\xbb\xbf" + data)
    assert find_profiles(tmp_path) == [path]
    assert len(read_any([path])) == len(EVENTS)
    for content, said in (
        (data * 2, "several profiles one after the other"),
        *((each, r"t\.json") for each in (b"{}", b'{"traceEvents": []}', b'{"traceEvents": [', b'{"a": 1}')),
    ):
        path.write_bytes(content)
        with pytest.raises(ProfileError, match=said):
            read_profile([path])


def test_a_thread_is_one_whatever_else_is_in_its_chunk(tmp_path):
    """Kineto of January 2021 writes thread ids as texts of digits, and streams of a GPU as "stream 7"."""
    thread = {"pid": PID, "tid": "1890023232"}
    events = [event(f"aten::op{i}", 10_000 * i, 10_000 * i + 5_000, **thread) for i in range(60)]
    events.append(event("kernel", 610_000, 611_000, cat="kernel", pid=0, tid="stream 7"))
    named = {"ph": "M", "name": "thread_name", "ts": 0, **thread, "args": {"name": "main"}}
    path = writer.write(tmp_path / "t.json", [named, *events], generation=1)
    lines = read_profile([path], chunk_bytes=2000).lines
    assert [(line.id, line.name) for line in lines] == [(1890023232, "main"), (7, "Stream/7")]
