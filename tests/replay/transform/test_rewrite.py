from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay import compare, open_capture, run, stage, transform
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.measures.span_times import computed_in_loops
from dxt_replay.traces.schema import OPS, ORIGINS, READ, WRITE, codes
from tests import simulated_application, simulated_loader
from tests.capture_builder import File, Op, Span, build_capture, lanes_table, read, write
from tests.simulated_application import MS, READ_BYTES, US, Application, Storage
from tests.simulated_loader import Loader

FAST = Storage(latency_ns=300 * US)
FILES = ["/data/train", "/data/loaded", "/data/checkpoint"]
AHEAD = Application(depth=4, readers=2)


def recorded(folder, application=AHEAD):
    run = simulated_application.run(application, FAST)
    return build_capture(folder, files=FILES, ops=run.ops, spans=run.spans)


def changed(capture, **changes):
    output = capture.path.parent / "changed.capture"
    found = transform(capture, output, force=True, **changes)
    return found, open_capture(output)


def lasted(run):
    """From the first moment that a capture shows."""
    return run.elapsed_ns - min(each.start_ns for each in (*run.ops, *run.spans))


def rows(capture):
    return pa.Table.from_batches(list(capture.operations()))


def covered(capture):
    """By rank and file the bytes read."""
    table = rows(capture)
    reads = table.filter(pa.array(codes(table, "op") == READ))
    found: dict[tuple[int, int], int] = {}
    for rank, name, length in zip(*(reads[name].to_pylist() for name in ("rank", "file_id", "length")), strict=True):
        found[rank, name] = found.get((rank, name), 0) + length
    return found


@pytest.mark.parametrize(
    "changes", [{"transfer_size": READ_BYTES}, {"readers": 2}, {"readers": 2, "transfer_size": "256KiB"}]
)
def test_what_is_so_already_is_written_as_it_is(tmp_path, changes):
    source = recorded(tmp_path)
    found, capture = changed(source, **changes)
    assert found.same
    assert rows(capture).equals(rows(source))
    assert capture.spans.equals(source.spans)
    assert capture.files.equals(source.files)
    assert capture.info.dependencies == "inferred"
    assert found.after == found.before


def test_the_rows_say_what_became_of_them_and_what_they_wait_for(tmp_path):
    source = recorded(tmp_path, dataclasses.replace(AHEAD, checkpoint_every=20))
    found, capture = changed(source, transfer_size="512KiB")
    table = rows(capture)
    origin = [ORIGINS[code] for code in codes(table, "origin")]
    merged = np.array(origin) == "transformed"
    assert set(origin) == {"traced", "transformed"}
    assert set(table["length"].to_numpy()[merged].tolist()) == {2 * READ_BYTES}
    assert capture.info.dependencies == "known"
    assert table["feeds"].null_count < table.num_rows
    assert found.after.bytes_read == found.before.bytes_read
    assert covered(capture) == covered(source)
    begin, end = capture.time_span_ns
    assert found.after.elapsed_ns == end - begin
    assert capture.info.job.run_time_s == pytest.approx((end - begin) / 1e9)
    made_by = json.loads((capture.path / "capture.json").read_text())["made_by"]
    assert made_by["transforms"][0]["changes"] == {"transfer_bytes": 524288}
    assert made_by["transforms"][0]["assumptions"] == list(found.assumptions)


@pytest.mark.parametrize(
    "application",
    [
        dataclasses.replace(AHEAD, compute_ns=1 * MS, readers=1),
        dataclasses.replace(AHEAD, compute_ns=1 * MS, readers=2),
        dataclasses.replace(AHEAD, ranks=2, collective_ns=500 * US),
    ],
)
@pytest.mark.parametrize("readers", [1, 4])
def test_an_application_with_other_readers(tmp_path, application, readers):
    truth_ns = lasted(simulated_application.run(dataclasses.replace(application, readers=readers), FAST))
    found, _ = changed(recorded(tmp_path, application), readers=readers)
    assert found.after.elapsed_ns == pytest.approx(truth_ns, rel=0.1)


@pytest.mark.parametrize("speed", [0.5, 1000])
def test_an_application_with_another_accelerator(tmp_path, speed):
    application = dataclasses.replace(AHEAD, ranks=2, collective_ns=500 * US)
    faster = dataclasses.replace(application, compute_ns=round(application.compute_ns / speed))
    truth_ns = lasted(simulated_application.run(faster, FAST))
    found, _ = changed(recorded(tmp_path, application), compute_speed=speed)
    assert found.after.elapsed_ns == pytest.approx(truth_ns, rel=0.05)


@pytest.mark.parametrize("readers", [1, 2, 4])
def test_a_data_loader_with_another_number_of_workers(tmp_path, readers):
    loader = Loader(made=(25, 25), passes=1, compute_ns=1 * MS)
    made = tuple(50 // readers + (number < 50 % readers) for number in range(readers))
    truth_ns = lasted(simulated_loader.run(dataclasses.replace(loader, made=made), FAST))
    found, _ = changed(simulated_loader.capture_of(tmp_path, loader, FAST), readers=readers)
    assert found.after.elapsed_ns == pytest.approx(truth_ns, rel=0.1)


def test_a_loop_that_reads_by_itself_gets_readers(tmp_path):
    alone = Application(depth=0, compute_ns=2 * MS)
    found, capture = changed(recorded(tmp_path, alone), readers=2)
    assert found.after.elapsed_ns < 0.8 * found.before.elapsed_ns
    assert {lane for lane, feeds in _pairs(capture, "lane", "feeds") if feeds is not None} == {1, 2}


def test_readers_become_the_training_thread(tmp_path):
    found, capture = changed(recorded(tmp_path), readers=0)
    assert found.after.elapsed_ns > found.before.elapsed_ns
    waits = capture.spans.filter(pa.array(np.array(capture.spans["kind"].to_pylist()) == "input_wait"))
    assert set(waits["name"].to_pylist()) == {"next_batch"}


def test_weak_scaling_copies_ranks_with_files_of_their_own(tmp_path):
    """Copies have the roles of their sources and no machine, and look no busier: a rank that neither computes nor waits
    for a part of its steps is copied so."""
    ops = [read(name, length=100, rank=rank, start_ns=10 + rank) for rank, name in ((0, 0), (1, 1), (0, 2), (1, 2))]
    spans = [
        span
        for rank in (0, 1)
        for step, begin in enumerate((0, 1000, 5000))
        for span in (
            Span("step", begin, begin + 1000, step=step, rank=rank, thread=1),
            *(Span("compute", begin + 100, begin + 400, step=step, rank=rank, thread=each) for each in (1, 2)),
        )
    ]
    spans += [Span("other", 2000, 5000, name="evaluation", thread=1)]
    lanes = lanes_table([(rank, 0, "a", 5 + rank, "main") for rank in (0, 1)])
    source = build_capture(tmp_path, files=["/d/a.npz", "/d/b", "/d/shared"], ops=ops, spans=spans, lanes=lanes)
    found, capture = changed(source, ranks=5, weak=True)
    table = rows(capture)
    assert capture.ranks == (0, 1, 2, 3, 4)
    assert capture.paths()[3:] == ["/d/a.rank2.npz", "/d/b.rank3", "/d/a.rank4.npz"]
    own = {(0, 0), (1, 1), (2, 3), (3, 4), (4, 5)}
    assert _pairs(capture, "rank", "file_id") == own | {(rank, 2) for rank in range(5)}
    assert table.filter(pa.array(table["rank"].to_numpy() < 2)).equals(rows(source))
    assert (found.after.operations, found.after.bytes_read) == (10, 1000)
    assert len(set(capture.files["record_id"].to_pylist())) == 6
    assert computed_in_loops(source.spans) == (2 * 900, 3000 + 6000)
    assert computed_in_loops(capture.spans) == (5 * 900, 3 * 3000 + 2 * 6000)
    named = [(row["rank"], row["host"], row["pid"], row["role"]) for row in capture.lanes.to_pylist()]
    assert named == [(0, "a", 5, "main"), (1, "a", 6, "main"), *((rank, None, None, "main") for rank in (2, 3, 4))]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "nothing to change"),
        ({"chunk": "1MiB"}, "reads no HDF5 file"),
        ({"readers": 0, "prefetch": 4}, "leave one of them out"),
        ({"weak": True}, "give --ranks"),
        ({"compute_speed": 0}, "--compute-speed 0"),
        ({"prefetch": 0}, "--prefetch 0"),
        ({"transfer_size": "much"}, "is not a size"),
        *(({"compression": f"gzip{text}"}, "NAME:RATIO") for text in ("", ":0", ":1.5", ":nan", ":0.6:a", ":1:-1MB/s")),
        ({"compression": "brotli:0.6"}, "NAME:RATIO"),
    ],
)
def test_changes_without_a_meaning_are_refused(tmp_path, changes, reason):
    with pytest.raises(UsageError, match=reason):
        changed(recorded(tmp_path), **changes)
    assert not (tmp_path / "changed.capture").exists()


def test_changes_that_a_capture_does_not_allow_are_refused(tmp_path):
    with pytest.raises(UsageError, match="give --readers, too"):
        changed(recorded(tmp_path, Application(depth=0)), prefetch=4)
    with pytest.raises(Exception, match="no training steps"):
        changed(build_capture(tmp_path, files=["/d/a"], ops=[read(0, length=10)]), readers=2)
    run = simulated_application.run(AHEAD, FAST)
    hdf5 = build_capture(tmp_path, files=[File("/d/a.h5", format="hdf5"), *FILES[1:]], ops=run.ops, spans=run.spans)
    with pytest.raises(UsageError, match="changes reads of streams, and this capture has none"):
        changed(hdf5, transfer_size="1MiB")


def test_data_are_compressed_once(tmp_path):
    source = recorded(tmp_path)
    first = transform(source, tmp_path / "first.capture", compression="gzip:0.5")
    assert first.after.bytes_read == pytest.approx(first.before.bytes_read / 2, rel=0.01)
    with pytest.raises(UsageError, match="compressed already, by an earlier transform"):
        transform(tmp_path / "first.capture", tmp_path / "second.capture", compression="gzip:0.5")


def _pairs(capture, *names):
    table = rows(capture)
    return set(zip(*(table[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize(
    "changes",
    [{"transfer_size": "512KiB", "readers": 3}, {"readers": 0}, {"ranks": 3}, {"ranks": 3, "weak": True}],
    ids=lambda each: "-".join(each),
)
def test_the_result_is_staged_replayed_and_compared_like_any_capture(tmp_path, changes):
    application = dataclasses.replace(AHEAD, ranks=2, steps=12, compute_ns=1 * MS, collective_ns=100 * US)
    _, capture = changed(recorded(tmp_path, application), compute_speed=2, **changes)
    (tmp_path / "twin").mkdir(exist_ok=True)
    stage(capture, tmp_path / "twin")
    run(capture, tmp_path / "twin", tmp_path / "replay.capture", pace="steps")
    found = compare(capture, open_capture(tmp_path / "replay.capture"))
    workload = found.workload
    assert workload.operations["source"] == workload.operations["replay"] > 0
    assert workload.bytes["source"] == workload.bytes["replay"] > 0
    assert workload.failed == 0


def test_a_changed_capture_can_be_changed_again(tmp_path):
    once, capture = changed(recorded(tmp_path), readers=4, prefetch=4)
    twice = transform(capture, tmp_path / "twice.capture", compute_speed=4)
    both = transform(tmp_path / "test.capture", tmp_path / "both.capture", readers=4, prefetch=4, compute_speed=4)
    assert twice.after.elapsed_ns == pytest.approx(both.after.elapsed_ns, rel=0.01)
    again = transform(capture, tmp_path / "again.capture", readers=4)
    assert again.same
    assert again.after == once.after
    names = [set(each["changes"]) for each in open_capture(twice.path).info.made_by["transforms"]]
    assert names == [{"readers", "prefetch"}, {"compute_speed"}]


@pytest.mark.parametrize(
    "changes",
    [{"compute_speed": 4}, {"ranks": 2}],
    ids=lambda each: "-".join(each),
)
def test_what_is_written_after_training_waits_for_the_end_of_training(tmp_path, changes):
    """A model is written 3 ms after the last step; the last batch fetch ended a long time before that."""
    steps = 8
    ops, spans = [], []
    for rank in range(1 + ("ranks" in changes) * 3):
        ops += [read(0, offset=step * 100, length=100, rank=rank, start_ns=step * 10 * MS) for step in range(steps)]
        ops.append(write(1, length=100, rank=rank, start_ns=(10 * steps + 3) * MS))
        spans += [Span("step", step * 10 * MS, (step + 1) * 10 * MS, step=step, rank=rank) for step in range(steps)]
        spans += [Span("input_wait", step * 10 * MS, step * 10 * MS + 2 * US, rank=rank) for step in range(steps)]
    source = build_capture(tmp_path, files=["/d/train", "/d/model"], ops=ops, spans=spans)
    _, capture = changed(source, **changes)
    again = transform(capture, tmp_path / "again.capture", compute_speed=2).path
    for each in (capture, open_capture(again)):
        table = rows(each)
        written = table.filter(pa.array(codes(table, "op") == WRITE))["start_ns"].to_numpy()
        assert len(written)
        assert (written - each.spans["end_ns"].to_numpy().max() == 3 * MS).all()


@pytest.mark.parametrize(
    "changes", [{"compute_speed": 2.0}, {"ranks": 2, "weak": True, "compute_speed": 2.0}, {"ranks": 2, "weak": True}]
)
def test_opens_keep_their_flags(tmp_path, changes):
    run = simulated_application.run(AHEAD, FAST)
    begin_ns = min(each.start_ns for each in run.ops)
    opens = [Op("open", 0, offset=-1, start_ns=begin_ns, end_ns=begin_ns, open_flags=flags) for flags in (257, None, 1)]
    capture = build_capture(tmp_path, files=FILES, ops=[*opens, *run.ops], spans=run.spans)
    found = rows(changed(capture, **changes)[1])
    of_opens = found.filter(pa.array(codes(found, "op") == OPS.index("open")))["open_flags"].to_pylist()
    assert of_opens == [257, None, 1] * changes.get("ranks", 1)
