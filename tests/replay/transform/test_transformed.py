"""Transformed captures, held against the application, loader or pipeline with that change; and their rows."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay import compare, merge, open_capture, run, stage, transform
from dxt_replay.replay.causal.ranks import expected_elapsed_ns, steps_of
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.measures.span_times import computed_in_loops
from dxt_replay.traces.schema import OPS, READ, WRITE, codes
from tests import simulated_application, simulated_loader
from tests import simulated_input_pipeline as pipelines
from tests.capture_builder import File, Op, Span, build_capture, lanes_table, read, write
from tests.examples import examples
from tests.places import CAPTURES
from tests.replay.causal.test_production import FAST as FAST_NS
from tests.replay.causal.test_production import PIPELINES, SLOW, predicted_ns
from tests.replay.causal.test_production import recorded as recorded_pipeline
from tests.simulated_application import MS, READ_BYTES, US, Application, Storage
from tests.simulated_input_pipeline import InputPipeline
from tests.simulated_loader import Loader

FAST = Storage(latency_ns=300 * US)
FILES = ["/data/train", "/data/loaded", "/data/checkpoint"]
AHEAD = Application(depth=4, readers=2)
MEETING = dataclasses.replace(AHEAD, ranks=2, collective_ns=500 * US)


def recorded(folder, application=AHEAD, **changes):
    run = simulated_application.run(application, FAST)
    return build_capture(folder, **{"files": FILES, "ops": run.ops, "spans": run.spans, **changes})


def changed(capture, output=None, **changes):
    output = output or capture.path.parent / "changed.capture"
    found = transform(capture, output, force=True, **changes)
    return found, open_capture(output)


def lasted(run):
    """From the first moment that a capture shows."""
    each = (*run.spans, *run.ops)
    return max(one.end_ns for one in each) - min(one.start_ns for one in each)


def application_lasts(application):
    run = simulated_application.run(application, FAST)
    return run.elapsed_ns - min(each.start_ns for each in (*run.ops, *run.spans))


def rows(capture, op=None):
    table = pa.Table.from_batches(list(capture.operations()))
    return table if op is None else table.filter(pa.array(codes(table, "op") == op))


def broken_rules(capture):
    """The rules for `feeds` and `follows` in docs/capture-format.md that a capture with known dependencies breaks."""
    found = []
    for rank in capture.ranks:
        table = pa.Table.from_batches(list(capture.operations(rank)))
        lane, feeds = table["lane"].to_numpy(), table["feeds"].fill_null(-1).to_numpy()
        moment = 2 * table["follows"].fill_null(-1).to_numpy() + table["follows_end"].fill_null(False).to_numpy()
        by_lane = {each: feeds[(lane == each) & (feeds >= 0)] for each in set(lane.tolist())}
        found += [
            f"rank {rank}: feeds falls in lane {each}" for each, fed in by_lane.items() if (np.diff(fed) < 0).any()
        ]
        if ((feeds >= 0) & (moment > 2 * feeds)).any():
            found.append(f"rank {rank}: an operation follows the end of the fetch that it feeds, or a later one")
    return found


def leads_to_its_times(found, capture):
    """Whether the times of a result are those that its own dependencies lead to."""
    return expected_elapsed_ns(capture, steps_of(capture)) == pytest.approx(found.after.elapsed_ns, rel=0.001)


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


APPLICATIONS = [*(dataclasses.replace(AHEAD, compute_ns=1 * MS, readers=readers) for readers in (1, 2)), MEETING]


@pytest.mark.parametrize(
    ("application", "changes", "other", "within"),
    [
        *((each, {"readers": n}, {"readers": n}, 0.1) for each in APPLICATIONS for n in (1, 4)),
        (MEETING, {"compute_speed": 0.5}, {"compute_ns": 2 * MEETING.compute_ns}, 0.05),
        (MEETING, {"compute_speed": 1000}, {"compute_ns": MEETING.compute_ns // 1000}, 0.05),
        # Half the steps on twice as many ranks.
        (MEETING, {"ranks": 4}, {"ranks": 4, "steps": MEETING.steps // 2}, 0.05),
    ],
)
def test_an_application_with_other_readers_or_another_accelerator(tmp_path, application, changes, other, within):
    found, _ = changed(recorded(tmp_path, application), **changes)
    truth_ns = application_lasts(dataclasses.replace(application, **other))
    assert found.after.elapsed_ns == pytest.approx(truth_ns, rel=within)


@pytest.mark.parametrize("readers", [1, 2, 4])
def test_a_data_loader_with_another_number_of_workers(tmp_path, readers):
    loader = Loader(made=(25, 25), passes=1, compute_ns=1 * MS)
    made = tuple(50 // readers + (number < 50 % readers) for number in range(readers))
    run = simulated_loader.run(dataclasses.replace(loader, made=made), FAST)
    truth_ns = run.elapsed_ns - min(each.start_ns for each in (*run.ops, *run.spans))
    found, _ = changed(simulated_loader.capture_of(tmp_path, loader, FAST), readers=readers)
    assert found.after.elapsed_ns == pytest.approx(truth_ns, rel=0.1)


def test_a_loop_that_reads_by_itself_gets_readers_and_readers_become_the_training_thread(tmp_path):
    found, capture = changed(recorded(tmp_path, Application(depth=0, compute_ns=2 * MS)), readers=2)
    assert found.after.elapsed_ns < 0.8 * found.before.elapsed_ns
    assert {row["lane"] for row in rows(capture).to_pylist() if row["feeds"] is not None} == {1, 2}
    (tmp_path / "other").mkdir()
    found, capture = changed(recorded(tmp_path / "other"), readers=0)
    assert found.after.elapsed_ns > found.before.elapsed_ns
    waits = capture.spans.filter(pc.equal(capture.spans["kind"], "input_wait"))
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
    pairs = set(zip(*(table[name].to_pylist() for name in ("rank", "file_id")), strict=True))
    assert pairs == own | {(rank, 2) for rank in range(5)}
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
        ({"chunk": "1MiB"}, "reads no HDF5 file"),
        ({"readers": 0, "prefetch": 4}, "leave one of them out"),
        ({"prefetch": 0}, "--prefetch 0"),
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
    hdf5 = recorded(tmp_path, files=[File("/d/a.h5", format="hdf5"), *FILES[1:]])
    with pytest.raises(UsageError, match="changes reads of streams, and this capture has none"):
        changed(hdf5, transfer_size="1MiB")
    _, compressed = changed(recorded(tmp_path), compression="gzip:0.5")
    assert np.median(rows(compressed, READ)["length"].to_numpy()) == READ_BYTES, "fewer requests of the same size"
    with pytest.raises(UsageError, match="compressed already, by an earlier transform"):
        changed(compressed, tmp_path / "second.capture", compression="gzip:0.5")


@pytest.mark.parametrize("changes", [{"transfer_size": "512KiB", "readers": 3}, {"ranks": 3}])
def test_the_result_is_staged_replayed_and_compared_like_any_capture(tmp_path, changes):
    application = dataclasses.replace(AHEAD, ranks=2, steps=12, compute_ns=1 * MS, collective_ns=100 * US)
    _, capture = changed(recorded(tmp_path, application), compute_speed=2, **changes)
    (tmp_path / "twin").mkdir(exist_ok=True)
    stage(capture, tmp_path / "twin")
    run(capture, tmp_path / "twin", tmp_path / "replay.capture", pace="steps")
    workload = compare(capture, open_capture(tmp_path / "replay.capture")).workload
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


@pytest.mark.parametrize("changes", [{"compute_speed": 4}, {"ranks": 2}])
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
    _, again = changed(capture, tmp_path / "again.capture", compute_speed=2)
    for each in (capture, again):
        written = rows(each, WRITE)["start_ns"].to_numpy()
        assert len(written)
        assert (written - each.spans["end_ns"].to_numpy().max() == 3 * MS).all()


@pytest.mark.parametrize("changes", [{"compute_speed": 2.0}, {"ranks": 2, "weak": True}])
def test_opens_keep_their_flags(tmp_path, changes):
    run = simulated_application.run(AHEAD, FAST)
    begin_ns = min(each.start_ns for each in run.ops)
    opens = [Op("open", 0, offset=-1, start_ns=begin_ns, end_ns=begin_ns, open_flags=flags) for flags in (257, None, 1)]
    _, capture = changed(recorded(tmp_path, ops=[*opens, *run.ops]), **changes)
    assert rows(capture, OPS.index("open"))["open_flags"].to_pylist() == [257, None, 1] * changes.get("ranks", 1)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The recording of a pipeline whose reads last so long, ns; each is made once, since all changes only read it."""
    return functools.cache(
        lambda pipeline, read_ns: recorded_pipeline(
            tmp_path_factory.mktemp("source"), pipelines.run(pipeline, read_ns), pipeline
        )
    )


def with_compute(pipeline, speed):
    compute_ns, between_ns = round(pipeline.compute_ns / speed), round(pipeline.between_ns / speed)
    return dataclasses.replace(pipeline, compute_ns=compute_ns, between_ns=between_ns)


def changed_pipeline(folder, source, **changes):
    found, capture = changed(source, folder / "changed.capture", **changes)
    assert leads_to_its_times(found, capture)
    return found, capture


@settings(max_examples=examples(8), deadline=None)
@given(
    shuffle=st.integers(0, 200),
    batch=st.sampled_from([4, 16, 48]),
    prefetch=st.integers(1, 6),
    readers=st.sampled_from([1, 2]),
    record_us=st.integers(20, 400),
    read_us=st.integers(50, 12_000),
    speed=st.sampled_from([0.5, 3.0, 100.0]),
)
def test_any_pipeline_with_another_accelerator(
    tmp_path_factory, shuffle, batch, prefetch, readers, record_us, read_us, speed
):
    pipeline = InputPipeline(
        shuffle=shuffle, batch=batch, prefetch=prefetch, readers=readers, record_ns=record_us * pipelines.US
    )
    folder = tmp_path_factory.mktemp("c")
    source, _ = recorded_pipeline(folder, pipelines.run(pipeline, read_us * pipelines.US), pipeline)
    found, _ = changed_pipeline(folder, source, compute_speed=speed)
    truth = lasted(pipelines.run(with_compute(pipeline, speed), read_us * pipelines.US))
    assert found.after.elapsed_ns == pytest.approx(truth, rel=0.06)


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(("read_ns", "prefetch"), [(SLOW, 1), (FAST_NS, 16)])
def test_another_buffer_here_and_on_other_storage(name, read_ns, prefetch, tmp_path, sources):
    pipeline = PIPELINES[name]
    source, _ = sources(pipeline, read_ns)
    found, capture = changed_pipeline(tmp_path, source, prefetch=prefetch)
    other = dataclasses.replace(pipeline, prefetch=prefetch)
    assert found.after.elapsed_ns == pytest.approx(lasted(pipelines.run(other, read_ns)), rel=0.005)
    elsewhere = SLOW if read_ns == FAST_NS else FAST_NS
    if not found.same:
        truth = pipelines.run(other, elsewhere).loop_ns
        assert predicted_ns(capture, steps_of(capture), elsewhere) == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("read_ns", [FAST_NS, SLOW])
@pytest.mark.parametrize(
    ("name", "readers"),
    [("plain", 3), ("shuffle", 2), ("a deep buffer", 4), ("interleave of two", 3), ("interleave and shuffle", 1)],
)
def test_other_readers(name, readers, read_ns, tmp_path, sources):
    pipeline = PIPELINES[name]
    found, _ = changed_pipeline(tmp_path, sources(pipeline, read_ns)[0], readers=readers)
    truth = lasted(pipelines.run(dataclasses.replace(pipeline, readers=readers), read_ns))
    assert found.after.elapsed_ns == pytest.approx(truth, rel=0.05)
    for words in ("mix their records", "a processor of its own"):
        assert any(words in each for each in found.assumptions) == (readers > pipeline.readers)


def test_a_training_thread_that_makes_its_batches_waits_for_all_of_it(tmp_path, sources):
    pipeline = PIPELINES["plain"]
    source, _ = sources(pipeline, SLOW)
    found, _ = changed_pipeline(tmp_path, source, readers=0)
    # Without reads ahead the making of the batches and compute follow each other.
    made = pipelines.run(dataclasses.replace(pipeline, compute_ns=0, between_ns=0), SLOW)
    computed = len([span for span in made.spans if span.kind == "step"]) * pipeline.compute_ns + pipeline.between_ns
    assert found.after.elapsed_ns == pytest.approx(lasted(made) + computed, rel=0.01)


def test_a_changed_capture_is_changed_again(tmp_path, sources):
    pipeline = PIPELINES["interleave and shuffle"]
    source, _ = sources(pipeline, SLOW)
    _, once = changed(source, tmp_path / "once.capture", compute_speed=2)
    found, capture = changed_pipeline(tmp_path, once, compute_speed=2, prefetch=4)
    other = dataclasses.replace(with_compute(pipeline, 4), prefetch=4)
    assert found.after.elapsed_ns == pytest.approx(lasted(pipelines.run(other, SLOW)), rel=0.005)
    assert capture.spans["name"].to_pylist().count("make batch") == steps_of(capture).models[0].loop.fetches.size


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A recorded job, merged once."""

    @functools.cache
    def merged(name):
        source, capture = CAPTURES / name, tmp_path_factory.mktemp("jobs") / f"{name}.capture"
        log = source / "job.darshan"
        merge(log if log.exists() else source / "logs", capture, profiles=source / "profile")
        return open_capture(capture)

    if not CAPTURES.is_dir():
        pytest.skip("the recorded captures are not on this machine")
    return merged


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("imagenet", {"readers": 8, "prefetch": 4}),
        ("cosmictagger", {"chunk": "1MiB", "compression": "gzip:0.6", "readers": 4}),
        ("cosmoflow_threads", {"readers": 2, "compute_speed": 4}),
        ("torch_hdf5", {"readers": 2, "ranks": 4}),
        ("frnn", {"readers": 0, "compute_speed": 2}),
    ],
)
def test_a_replay_of_a_recorded_job_by_steps_would_take_the_predicted_time(tmp_path, jobs, name, changes):
    found, capture = changed(jobs(name), tmp_path / "changed.capture", **changes)
    assert leads_to_its_times(found, capture)
    assert capture.info.dependencies == "known"
    assert not broken_rules(capture)


@pytest.mark.parametrize(
    ("name", "changes"), [("imagenet", {"prefetch": 1}), ("torch_eval", {"readers": 1}), ("imagenet", {"ranks": 3})]
)
def test_a_copied_rank_changes_as_the_rank_that_it_copies(tmp_path, jobs, name, changes):
    """A copy has the dependencies of its source. Ranks that do the same take as long as one, whatever changes in each;
    with another number of ranks the work of the copies counts."""
    one, _ = changed(jobs(name), tmp_path / "one.capture", **changes)
    _, copied = changed(jobs(name), tmp_path / "copied.capture", ranks=4, weak=True)
    found, capture = changed(copied, tmp_path / "more.capture", **changes)
    assert not broken_rules(capture)
    assert found.after.bytes_read == found.before.bytes_read
    if "ranks" not in changes:
        assert found.after.elapsed_ns == one.after.elapsed_ns
