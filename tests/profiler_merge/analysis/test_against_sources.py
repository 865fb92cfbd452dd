"""Shares of I/O, overlap and input wait of the real captures, against a second computation from the sources.

Nothing here uses the project's readers or its interval arithmetic: DXT segments come from pydarshan, XPlane events from
a few lines that read the wire format, and times are lists of pairs. Only the clocks' offsets are the capture's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.loop import Overlap, overlap
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.profiles.xplane import find_profiles
from dxt_replay.traces.store.reader import Capture, open_capture
from tests import darshan_oracle

CAPTURES = darshan_oracle.SHARED / "captures"
NAMES = ("candle", "climate", "cosmictagger", "cosmoflow", "ffn", "frnn", "imagenet", "l2hmc")
"""All but the one recorded with DXT version 2, of which pydarshan reads nothing."""

Times = list[tuple[int, int]]
"""Disjoint, ascending."""

WAIT = re.compile(r"IteratorGetNext\w*::DoCompute|next_batch")
COLLECTIVE = re.compile(r"allreduce|.*:(Collective|Horovod)\w*")
SAVE = re.compile(r"checkpoint|(.*:|EagerLocalExecute: )(SaveV2|SaveSlices|MergeV2Checkpoints|RestoreV2|RestoreSlice)")
OPERATION = re.compile(r"[^:$]+:_?[A-Z]\w*|EagerLocalExecute: .+")
NEXT = re.compile(r"(.*:|EagerLocalExecute: )(IteratorGetNext\w*|MultiDeviceIteratorGetNextFromShard)")


def varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
            continue
        size, at = varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
        yield tag >> 3, data[at : at + size]
        at += size


def parts(data: int | memoryview, number: int) -> list[memoryview]:
    assert isinstance(data, memoryview)
    return [value for found, value in fields(data) if found == number and isinstance(value, memoryview)]


def numbers(data: int | memoryview) -> dict[int, int]:
    assert isinstance(data, memoryview)
    return {found: value for found, value in fields(data) if isinstance(value, int)}


def text(data: memoryview, number: int) -> str:
    return b"".join(bytes(part) for part in parts(data, number)).decode("utf-8", "replace")


class Events:
    """(line name, event name, start, end) of one profile; ns of the wall clock."""

    def __init__(self, path: Path) -> None:
        planes = parts(memoryview(path.read_bytes()), 1)
        named = {text(plane, 2): plane for plane in planes}
        (environment,) = (plane for name, plane in named.items() if name == "Task Environment")
        kinds = {numbers(entry)[1]: text(parts(entry, 2)[0], 2) for entry in parts(environment, 5)}
        stats = {kinds[numbers(stat)[1]]: numbers(stat).get(3) for stat in parts(environment, 6)}
        epoch = stats["profile_start_time"]
        assert epoch is not None
        host = named["/host:CPU"]
        names = {numbers(entry)[1]: text(parts(entry, 2)[0], 2) for entry in parts(host, 4)}
        self.rows: list[tuple[str, str, int, int]] = []
        for line in parts(host, 3):
            zero = epoch + numbers(line).get(3, 0)
            thread = text(line, 2)
            for event in parts(line, 4):
                values = numbers(event)
                start_ps, length_ps = values.get(2, 0), values.get(3, 0)
                start = zero + start_ps // 1000
                self.rows.append((thread, names[values[1]], start, start + length_ps // 1000))

    def times(self, pattern: re.Pattern[str], *, without: str = "(?!)", but: tuple[re.Pattern[str], ...] = ()) -> Times:
        skip = re.compile(without)
        return merged(
            [
                (start, end)
                for thread, name, start, end in self.rows
                if not skip.match(thread) and pattern.fullmatch(name) and not any(p.fullmatch(name) for p in but)
            ]
        )


def merged(pairs: Times) -> Times:
    found: Times = []
    for start, end in sorted(pairs):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def common(one: Times, other: Times) -> Times:
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        i, j = (i + 1, j) if one[i][1] < other[j][1] else (i, j + 1)
    return found


def minus(one: Times, other: Times) -> Times:
    edges = [-(1 << 62), *(edge for pair in other for edge in pair), 1 << 62]
    return common(one, list(zip(edges[::2], edges[1::2], strict=True)))


def total(times: Times) -> int:
    return sum(end - start for start, end in times)


def shifted(times: Times, by: int) -> Times:
    return [(start + by, end + by) for start, end in times]


def segments(log: Path, capture: Capture) -> dict[int, Times]:
    """Union of the DXT_POSIX segments of each rank, on the capture's clock."""
    answer = darshan_oracle.answer(log)
    pairs: dict[int, Times] = {rank: [] for rank in capture.ranks}
    at = 0
    per_record = answer["DXT_POSIX reads"] + answer["DXT_POSIX writes"]
    for rank, count in zip(answer["DXT_POSIX ranks"].tolist(), per_record.tolist(), strict=True):
        times = answer["DXT_POSIX times"][at : at + count]
        pairs[rank] += [(round(start * 1e9), round(end * 1e9)) for start, end in times.tolist()]
        at += count
    assert at == len(answer["DXT_POSIX times"])
    offsets = {clock.rank: clock.offset_ns for clock in capture.info.clock}
    return {rank: shifted(merged(found), offsets[rank]) for rank, found in pairs.items()}


class Expected:
    """The times of one rank, from the sources alone."""

    def __init__(self, events: Events, io: Times, zero_ns: int) -> None:
        def on_capture(times: Times) -> Times:
            return shifted(times, -zero_ns)

        pipeline = "tf_data_(?!iterator_get_next)"
        wait = on_capture(events.times(WAIT, without=pipeline))
        collective = minus(on_capture(events.times(COLLECTIVE, without=pipeline)), wait)
        checkpoint = minus(minus(on_capture(events.times(SAVE, without=pipeline)), wait), collective)
        compute = on_capture(events.times(OPERATION, without="tf_data_", but=(NEXT, COLLECTIVE, SAVE)))
        for times in (wait, collective, checkpoint):
            compute = minus(compute, times)
        steps = on_capture(events.times(re.compile("train")))
        self.loop = [(steps[0][0], steps[-1][1])]
        self.wait, self.collective, self.checkpoint, self.compute, self.io = wait, collective, checkpoint, compute, io


@pytest.fixture(scope="module", params=NAMES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Capture, list[Expected]]:
    folder = CAPTURES / request.param
    if not (folder / "job.darshan").is_file():
        pytest.skip(f"{folder} is not on this machine")
    path = tmp_path_factory.mktemp(request.param) / "x.capture"
    merge([folder / "job.darshan"], find_profiles(folder / "profile"), path)
    capture = open_capture(path)
    io = segments(folder / "job.darshan", capture)
    expected = []
    for rank in capture.ranks:
        (profile,) = (folder / "profile" / f"rank{rank}").rglob("*.xplane.pb")
        expected.append(Expected(Events(profile), io[rank], capture.info.job.zero_ns))
    return capture, expected


def test_times_of_every_rank(both: tuple[Capture, list[Expected]]) -> None:
    capture, expected = both
    for found, rank in zip(overlap(capture).ranks.to_pylist(), expected, strict=True):
        # pydarshan gives seconds in floating point, and picoseconds are cut to nanoseconds: one for each edge.
        allowed = 4 * (len(rank.io) + 1)
        for name, times in (
            ("io", rank.io),
            ("io_hidden", common(rank.io, rank.compute)),
            ("io_in_wait", common(rank.io, rank.wait)),
            ("io_in_loop", common(rank.io, rank.loop)),
            ("compute_in_loop", common(rank.compute, rank.loop)),
            ("input_wait_in_loop", common(rank.wait, rank.loop)),
            ("collective_in_loop", common(rank.collective, rank.loop)),
            ("checkpoint_in_loop", common(rank.checkpoint, rank.loop)),
            ("loop", rank.loop),
        ):
            slack = allowed if name.startswith("io") else 0
            assert found[f"{name}_ns"] == pytest.approx(total(times), rel=1e-6, abs=slack + 1), name


def test_shares(both: tuple[Capture, list[Expected]]) -> None:
    capture, ranks = both
    found: Overlap = overlap(capture)
    io, loop = (sum(total(times) for times in column) for column in zip(*((r.io, r.loop) for r in ranks), strict=True))
    hidden = sum(total(common(rank.io, rank.compute)) for rank in ranks)
    wait = sum(total(common(rank.wait, rank.loop)) for rank in ranks)
    run_s = capture.info.job.run_time_s
    assert found.shares()["io_of_run_pct"] == pytest.approx(100 * io / 1e9 / len(ranks) / run_s, rel=1e-4)
    assert found.io_hidden_pct == pytest.approx(100 * hidden / io, rel=1e-4, abs=1e-4)
    assert found.shares()["input_wait_pct"] == pytest.approx(100 * wait / loop, rel=1e-6)
    assert summarise(capture).compute.io_hidden_pct == pytest.approx(100 * hidden / io, rel=1e-4, abs=1e-4)


def test_applications_overlap_as_they_were_written(both: tuple[Capture, list[Expected]]) -> None:
    """Those with a tf.data pipeline hide I/O behind compute, those that read in the training thread none."""
    capture, _ = both
    hidden = overlap(capture).io_hidden_pct
    assert hidden is not None
    pipelined = any(path.endswith(".tfrecord") for path in capture.paths())
    assert hidden > 15 if pipelined else hidden < 1


def test_ranks_add_up_to_the_shares(both: tuple[Capture, list[Expected]]) -> None:
    found = overlap(both[0])

    def mean(part: str, whole: str) -> float:
        return 100 * sum(found.ranks[part].to_pylist()) / sum(found.ranks[whole].to_pylist())

    assert found.shares()["collective_pct"] == pytest.approx(mean("collective_in_loop_ns", "loop_ns"))
    assert found.shares()["io_of_loop_pct"] == pytest.approx(mean("io_in_loop_ns", "loop_ns"))
