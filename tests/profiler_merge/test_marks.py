"""What a merge makes of marks, from recordings of real jobs (tests/data/marks/jobs.py says what each of them does)."""

import dataclasses
import gzip
import shutil
from collections import Counter
from functools import cache
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dxt_replay
from dxt_replay.profiler_merge import recording as made
from dxt_replay.profiler_merge.given_files import find_profiles, find_recordings
from dxt_replay.profiler_merge.job_spans import _with_meetings
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.profiles.marks import (
    MARK,
    RankMarks,
    RankOperations,
    batches_of,
    by_loop,
    own_io,
    processor_times,
    read_process,
    summed,
    training_loop,
)
from dxt_replay.replay.causal.storage_limit import storage_limit
from dxt_replay.replay.commands.predicting import simulate
from dxt_replay.replay.show.summary import headline
from dxt_replay.replay.simulation.model import RequestTime, StorageModel
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.schema import READ, RECONSTRUCTED, SPAN_KINDS, TRACED, WRITE
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import Span, spans_table
from tests.places import SMALL

MARKS = SMALL / "marks"
ITEM, BATCH, MS = 4096, 4, 1_000_000
NO_BATCH = "own I/O", "end of pass"
TRAIN, VALIDATION = tuple(range(12)), tuple(range(12, 16))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truth:
    """What a job did. batches: which it fetched, one after the other, by their first item / BATCH. ahead: those that a
    worker may have made, and that nobody took."""

    steps: int = 12
    batches: tuple[int, ...] = TRAIN
    evaluations: int = 0
    checkpoints: int = 0
    without_reads: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()


TRUTHS = {
    **dict.fromkeys(("fork", "forkserver", "accumulate", "threads", "grain", "prefetched"), Truth()),
    "persistent": Truth(steps=24, batches=(TRAIN + VALIDATION) * 2, evaluations=2, checkpoints=1),
    "none": Truth(batches=TRAIN + VALIDATION, evaluations=1),
    "left": Truth(steps=10, batches=TRAIN[:6] * 2, ahead=TRAIN[6:10]),
    "own": Truth(steps=16, batches=TRAIN + VALIDATION),  # no optimizer: nothing tells the validation
    "stateful": Truth(steps=24, batches=TRAIN * 2),
    "stream": Truth(batches=(0, 5, 1, 6, 2, 7, 3, 8, 4, 9, 10, 11)),
    "ahead": Truth(batches=(0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11)),
    # Of each of three saves: the save itself, and where the loop starts its thread and waits for it.
    "background": Truth(checkpoints=9),
    "saved": Truth(steps=24, batches=TRAIN * 2, checkpoints=1),
    "quiet": Truth(without_reads=TRAIN[1::2]),
    "kill": Truth(steps=8, batches=TRAIN[:8], ahead=TRAIN[8:12]),
    # 10 optimizer steps of 2 batches; Accelerate takes one batch ahead, before an evaluation and at the end.
    "hf": Truth(
        steps=20, batches=TRAIN[:11] + VALIDATION + TRAIN[11:] + TRAIN[:9] + VALIDATION, evaluations=2, checkpoints=2
    ),
}
# `keras`: of the time when each fetch called Python, in a thread of TensorFlow's.
KERAS = dict.fromkeys(("keras", "keras-read"), Truth(steps=24, batches=tuple(range(32)), evaluations=2, checkpoints=1))


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    """Merges a recording once."""

    @cache
    def of(name):
        output = tmp_path_factory.mktemp(name) / "a.capture"
        return merge(find_recordings(MARKS / name / "logs"), find_profiles(MARKS / name / "profile"), output)

    return of


def spans_of(result, rank=0):
    spans = open_capture(result.capture).spans.filter(pc.field("rank") == rank)
    return Counter(
        name if name in ("evaluation", *NO_BATCH) else kind
        for kind, name in zip(spans["kind"].to_pylist(), spans["name"].to_pylist(), strict=True)
    )


def batches_by_wait(result):
    """The number of the batch that each wait for input fetched, None for one that fetched none."""
    waits, numbers = open_capture(result.capture).spans.filter(pc.field("kind") == "input_wait"), count()
    ordered = waits.sort_by([("start_ns", "ascending"), ("end_ns", "ascending")])["name"].to_pylist()
    return [None if name in NO_BATCH else next(numbers) for name in ordered]


def rows_of(result, ending, **wanted):
    """The rows of the file whose path ends so."""
    capture = open_capture(result.capture)
    (file,) = (number for number, path in enumerate(capture.paths()) if path.endswith(ending))
    rows = pa.Table.from_batches(list(capture.operations())).filter(pc.field("file_id") == file)
    for name, value in wanted.items():
        rows = rows.filter(pc.field(name) == value)
    return rows


def reads_of(result, rank=0):
    return rows_of(result, "data.bin", rank=rank, op="read")


@pytest.mark.parametrize("name", [*TRUTHS, *KERAS])
def test_steps_waits_evaluations_and_checkpoints_are_those_of_the_job(merged, name):
    truth, found = (TRUTHS | KERAS)[name], spans_of(merged(name))
    assert set(found) - {"evaluation", *NO_BATCH} <= set(SPAN_KINDS)
    assert (found["step"], found["input_wait"]) == (truth.steps, len(truth.batches))
    assert (found["evaluation"], found["checkpoint"]) == (truth.evaluations, truth.checkpoints)


@pytest.mark.parametrize("name", TRUTHS)
def test_each_read_feeds_the_batch_that_its_offset_proves(merged, name):
    truth, reads, by_wait = TRUTHS[name], reads_of(merged(name)), batches_by_wait(merged(name))
    fed = Counter()
    for offset, wait in zip(reads["offset"].to_pylist(), reads["feeds"].to_pylist(), strict=True):
        batch = offset // ITEM // BATCH
        fetch = None if wait is None else by_wait[wait]
        if fetch is None:
            assert batch in truth.ahead
        else:
            assert truth.batches[fetch] == batch
            fed[fetch] += 1
    expected = {number for number, batch in enumerate(truth.batches) if batch not in truth.without_reads}
    assert fed == dict.fromkeys(expected, BATCH)


def test_a_loop_that_reads_within_its_steps_waits_for_each_read(merged):
    capture = open_capture(merged("inside").capture)
    spans, reads = capture.spans.to_pylist(), reads_of(merged("inside")).to_pylist()
    steps = [each for each in spans if each["kind"] == "step"]
    assert len(steps) == 11  # from one of 12 steps of the first optimizer to the next
    waits = sorted((each for each in spans if each["kind"] == "input_wait"), key=lambda each: each["start_ns"])
    inside = [each for each in reads if steps[0]["start_ns"] <= each["start_ns"] < steps[-1]["end_ns"]]
    assert len(inside) == 11 * BATCH
    for each in inside:
        wait = waits[each["feeds"]]
        assert each["feeds"] == each["follows"]
        assert wait["start_ns"] <= each["start_ns"] <= each["end_ns"] <= wait["end_ns"]
    read_ns = sum(each["end_ns"] - each["start_ns"] for each in inside)
    assert storage_limit(capture).saved_ns >= 0.99 * read_ns


def test_calls_on_a_descriptor_that_was_closed_are_not_of_its_file(merged):
    """Darshan has 24 reads of saved.pt, which nobody reads: messages of the second pass's workers."""
    assert set(rows_of(merged("saved"), "saved.pt")["op"].to_pylist()) == {"open", "write", "close"}


def test_reads_of_a_thread_that_no_trace_tells_are_not_the_loops(merged):
    result = merged("streams")
    assert set(reads_of(result)["origin"].to_pylist()) == {"reconstructed"}
    assert (spans_of(result)["own I/O"], result.info.dependencies) == (0, "inferred")


@pytest.mark.parametrize(("name", "processes"), [("ahead", 2), ("grain", 1)])
def test_each_thread_that_reads_ahead_takes_as_much(merged, name, processes):
    threads = reads_of(merged("threads"))["lane"].to_pylist()
    assert len(set(threads)) == 2  # of two workers, with three threads each that never overlap
    lanes = Counter(reads_of(merged(name))["lane"].to_pylist())
    assert len(lanes) == 3 * processes
    assert max(lanes.values()) - min(lanes.values()) <= 2
    follows, feeds = (reads_of(merged(name))[column].fill_null(-1).to_numpy() for column in ("follows", "feeds"))
    assert (follows < feeds).all()
    assert follows.max() > 0


@pytest.mark.parametrize("name", [*TRUTHS, *KERAS, "ranks", "profiled"])
def test_clocks_are_known_and_there_is_an_answer(merged, name):
    result = merged(name)
    assert max(clock.residual_ns for clock in result.info.clock) < 100_000
    assert (result.info.dependencies, result.info.coverage.operations) == ("known", 1)
    assert not any(".marks" in text for text in result.info.warnings)
    summary = dxt_replay.summary(open_capture(result.capture))
    assert (summary.steps.count, summary.not_judged) == (spans_of(result)["step"], None)
    assert simulate(result.capture, "nvme", runs=1).prediction.elapsed_ns > 0


def test_a_save_waits_for_the_thread_of_the_one_before(merged):
    capture = open_capture(merged("background").capture)
    saved = sorted(path for path in capture.paths() if "saved." in path)
    writes = [rows_of(merged("background"), path, op="write").num_rows for path in saved]
    slow = StorageModel(name="slow", operations={"write": RequestTime(time_ns=((1e8,),))})
    waited = [each.checkpoints for each in simulate(capture, slow, runs=1).prediction.steps()]
    first, second = (100.0 * count for path, count in zip(saved, writes, strict=True) if "11" not in path)
    assert waited[7] == pytest.approx(first, rel=0.1)  # less what the loop did meanwhile
    assert waited[11] == pytest.approx(second, rel=0.1)
    assert sum(waited) - waited[7] - waited[11] < 5  # the first save has none to wait for


def test_an_operation_follows_the_fetch_that_let_its_worker_have_the_batch(merged):
    reads = reads_of(merged("fork"))  # 2 workers with 2 batches each
    for feeds, follows in zip(reads["feeds"].to_pylist(), reads["follows"].to_pylist(), strict=True):
        assert follows == (feeds - 4 if feeds >= 4 else None)
    reads = reads_of(merged("saved")).to_pylist()  # a checkpoint between two passes, of which the first ends with 12
    found = {row["feeds"]: (row["follows"], row["follows_end"]) for row in reads if 12 < (row["feeds"] or 0) < 18}
    assert found == {13: (13, False), 14: (13, False), 15: (13, False), 16: (13, False), 17: (13, True)}


def test_new_workers_of_each_pass_and_those_of_a_validation_are_no_more_readers(merged, tmp_path):
    for name in ("stateful", "persistent"):  # num_workers=2
        found = dxt_replay.transform(merged(name).capture, tmp_path / name, readers=4)
        assert any(each.startswith("readers: 2 -> 4, ") for each in found.assumptions)


def test_ranks_of_torchrun(merged):
    result = merged("ranks")
    assert result.info.ranks == (0, 1)
    for rank in (0, 1):
        reads = reads_of(result, rank)
        assert spans_of(result, rank)["step"] == spans_of(result, rank)["input_wait"] == 6
        assert reads["feeds"].to_pylist() == [o // ITEM // BATCH - 6 * rank for o in reads["offset"].to_pylist()]


def test_ranks_that_end_each_step_together_meet_in_it():
    """Rank 0 waits 90 ms for input in every other step, and rank 1, which has its input, waits for rank 0."""

    def tables(later_ms=0):
        found, end = {0: [], 1: []}, 0
        for step in range(10):
            begin, end = end, end + (120 if step % 2 == 0 else 30)
            for rank, waited in ((0, end - begin - 30), (1, 1)):
                own = {"rank": rank, "thread": 1, "step": step}
                last_ns = (end + later_ms * rank) * MS + rank
                found[rank].append(Span("step", begin * MS, last_ns, "step", **own))
                found[rank].append(Span("input_wait", begin * MS, (begin + waited) * MS + rank, "fetch", **own))
        return {rank: spans_table(spans) for rank, spans in found.items()}

    met = {rank: spans.filter(pc.field("kind") == "collective") for rank, spans in _with_meetings(tables()).items()}
    assert all(set(each["origin"].to_pylist()) == {"reconstructed"} for each in met.values())
    waits = [(met[rank]["end_ns"].to_numpy() - met[rank]["start_ns"].to_numpy()) / MS for rank in (0, 1)]
    assert np.stack(waits) == pytest.approx(np.stack(([0] * 10, [89, 0] * 5)), abs=2)
    apart = tables(later_ms=20)
    assert _with_meetings(apart) == apart


def test_a_profile_of_some_steps_says_nothing_of_the_others(merged, tmp_path):
    """The job profiled 6 of its 12 steps: their work is shown, and is no share of the whole loop."""
    alone = merge([], find_profiles(MARKS / "profiled" / "profile"), tmp_path / "a.capture")  # needs no log
    assert (alone.info.ranks, spans_of(alone)["step"], spans_of(alone)["input_wait"]) == ((0,), 12, 12)
    result = merged("profiled")
    spans = open_capture(result.capture).spans
    assert spans_of(result)["step"] == spans_of(result)["input_wait"] == 12
    assert "compute" not in spans["kind"].to_pylist()
    work = spans.filter(pc.field("name") == "compute")
    assert set(work["kind"].to_pylist()) == {"other"}
    pieces = Counter(work["step"].to_pylist())
    assert {0, 1, 10, 11}.isdisjoint(pieces)
    assert min(pieces[step] for step in (4, 5, 6, 7)) > 3
    (text,) = [text for text in result.info.warnings if "the profile shows compute in" in text]
    assert "the marks of the other steps do not show it" in text
    for name in ("profiled", "fork"):  # marks claim no compute
        summary = dxt_replay.summary(open_capture(merged(name).capture))
        assert summary.loop.compute_pct is None
        assert not any("compute" in line for line in headline(summary))


# Marks alone


def files_of(name, folder):
    shutil.copytree(MARKS / name / "profile", folder)
    return sorted(folder.glob("*.marks"))


def shifted(path, host, shift_ns):
    """Rewrite a file as that of another host, whose wall clock is ahead."""
    data = path.read_bytes()
    head = list(made.HEADER.unpack_from(data))
    head[6] += shift_ns
    names = data[made.HEADER.size : made.HEADER_BYTES].split(b"\0")
    text = made.HEADER.pack(*head) + b"\0".join((host.encode(), *names[1:]))
    path.write_bytes(text[: made.HEADER_BYTES].ljust(made.HEADER_BYTES, b"\0") + data[made.HEADER_BYTES :])
    path.rename(path.with_name(path.name.replace(names[0].decode(), host, 1)))


def test_hosts_are_joined_by_their_wall_clocks_and_the_doubt_is_said(tmp_path):
    files = files_of("ranks", tmp_path / "p")
    second = next(each for each in map(read_process, files) if each.loops and each.rank == 1)
    for path in files:
        if second.pid in (read_process(path).pid, read_process(path).parent):
            shifted(path, "other", 5_000_000_000)
    result = merge([], find_profiles(tmp_path / "p"), tmp_path / "a.capture")
    spans = open_capture(result.capture).spans
    begins = [pc.min(spans.filter(pc.field("rank") == rank)["start_ns"]).as_py() for rank in (0, 1)]
    assert abs(begins[1] - begins[0] - 5_000_000_000) < 2_000_000_000
    assert any("how far they differ is not known" in text for text in result.info.warnings)


def test_a_script_that_trains_twice_has_the_longer_training_and_says_so(merged):
    """`bash -c "python jobs.py left; python jobs.py fork"`: 10 steps, then 12."""
    result = merged("script")
    assert spans_of(result)["step"] == 12
    assert any("trained more than once: the 10 steps of process 14204" in text for text in result.info.warnings)
    fed = reads_of(result).filter(pc.greater_equal(pc.field("feeds"), 0))
    assert sorted(fed["offset"].to_pylist()) == [ITEM * item for item in range(48)]
    assert next(each for each in result.info.clock if not each.worker).method == "anchors"


@pytest.mark.parametrize("later_s", [3600, -3600, 0])
def test_of_programs_that_train_one_after_the_other_the_longest_counts(later_s, tmp_path):
    """`left` has 10 steps, `fork` 12. The clock of `left` is set so that it begins so much later."""
    files = {name: files_of(name, tmp_path / "p" / name) for name in ("left", "fork")}
    own = {name: next(each for each in map(read_process, files[name]) if each.loops) for name in files}
    begin_ns = {name: int(training_loop(own[name]).steps.min()) for name in own}
    for path in files["left"]:
        shifted(path, own["left"].host, begin_ns["fork"] - begin_ns["left"] + later_s * 1_000_000_000)
    found = find_profiles(tmp_path / "p")
    if not later_s:
        with pytest.raises(ProfileError, match=r"both are of rank 0.*two programs each by itself"):
            merge([], found, tmp_path / "a.capture")
        return
    result = merge([], found, tmp_path / "a.capture")
    assert pc.sum(pc.equal(open_capture(result.capture).spans["kind"], "step")).as_py() == 12
    assert any("trained more than once: the 10 steps" in text for text in result.info.warnings)


def test_packed_and_cut_files_and_steps_up_to_the_last_record(tmp_path):
    (path,) = files_of("none", tmp_path / "p")
    whole, data = training_loop(read_process(path)), path.read_bytes()
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(data))
    assert np.array_equal(training_loop(read_process(packed)).steps, whole.steps)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ProfileError, match="cannot be read"):
        read_process(packed)
    steps = []
    for end in range(made.HEADER_BYTES, len(data), 16):  # a record has 32 bytes
        path.write_bytes(data[:end])
        steps.append(len(training_loop(read_process(path)).steps))
    assert steps == sorted(steps)
    assert steps[-1] == 12
    workers = [path for path in find_profiles(MARKS / "fork" / "profile") if ".567." not in path.name]
    with pytest.raises(ProfileError, match="show no training loop: give those of all processes"):
        merge(workers, [], tmp_path / "a.capture")


@pytest.fixture
def process_of(tmp_path):
    """Marks of a process, one a millisecond: kind, number, group."""

    def of(*kinds):
        rows = np.zeros(len(kinds), dtype=MARK)
        rows["t"], rows["thread"] = np.arange(1, len(kinds) + 1) * MS, 7
        rows["kind"], rows["number"], rows["group"] = np.array(kinds).T
        path = tmp_path / "h.7.1.marks"
        head = made.HEADER.pack(made.MAGIC, 7, 1, -1, made.RECORD.size, 0, 0, 0) + b"h\0job\0"
        path.write_bytes(head.ljust(made.HEADER_BYTES, b"\0") + rows.tobytes())
        return RankMarks(own=read_process(path))

    return of


def take(number):
    return [(made.TAKE, number, 1), (made.TAKE_END, number, 1)]


def batches(count, *, every=1):
    found = [(made.PASS, 0, 1)]
    for number in range(count):
        found += take(number) + [(made.OPTIMIZER, number, 0)] * ((number + 1) % every == 0)
    return found


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_pass_that_was_left_has_no_step_for_an_untrained_batch(process_of, every):
    for more, steps in (([], 6), (take(6), 6), ([*take(6), (made.PASS_END, 7, 1)], 7)):
        assert len(training_loop(process_of(*batches(6, every=every), *more).own).steps) == steps


def test_the_loop_waits_for_a_read_that_took_no_time(process_of):
    marks = process_of(*((made.OPTIMIZER, number, 0) for number in range(3)))
    start = np.array([1_300_000, 1_310_000, 2_500_000])
    nothing = np.zeros(3, dtype=np.int64)
    mapped = RankOperations(
        pid=nothing + marks.own.pid, lane=nothing, start_ns=start, end_ns=np.array([1_309_000, *start[1:]]),
        op=nothing + READ, origin=nothing, file_id=nothing, threads={0: 7},
    )  # fmt: skip
    of_loop = training_loop(marks.own), mapped, np.ones(3, dtype=bool)
    found = batches_of(dataclasses.replace(marks, own_io=own_io(marks, *of_loop)), *of_loop)
    assert found["feeds"].tolist() == found["follows"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("op", "end_ns", "file_id", "other_lane", "mine"),
    [(READ, 1_900_000, 0, 0, True), (WRITE, 1_900_000, 0, 0, True), (READ, 2_500_000, 0, 0, False),
     (READ, 1_900_000, 1, 0, False), (READ, 1_900_000, 0, 2, False)],
    ids=["np.load", "np.save", "a mark in its middle", "a file that the loop is not seen to read",
         "another thread is traced"],
)  # fmt: skip
def test_the_loop_reads_a_stream_of_a_file_that_it_is_seen_to_read(process_of, op, end_ns, file_id, other_lane, mine):
    marks = process_of((made.OPTIMIZER, 0, 0), (made.OPTIMIZER, 1, 0), (made.OPTIMIZER, 2, 0))
    operations = RankOperations(
        pid=np.full(3, marks.own.pid), lane=np.array([0, 1, other_lane]), file_id=np.array([0, file_id, 7]),
        start_ns=np.array([1_300_000, 1_310_000, 2_700_000]), end_ns=np.array([1_309_000, end_ns, 2_800_000]),
        op=np.full(3, op), origin=np.array([TRACED, RECONSTRUCTED, TRACED]), threads={0: 7},
    )  # fmt: skip
    assert by_loop(marks, training_loop(marks.own), operations).tolist() == [True, mine, other_lane == 0]


@pytest.mark.parametrize(("group", "steps"), [(0, 5), (1, 3)], ids=["asyncio", "another thread trains too"])
def test_the_steps_of_one_optimizer_are_one_loop_whatever_thread_makes_them(process_of, group, steps):
    process = process_of(*[(made.OPTIMIZER, number, group * (number % 3 == 1)) for number in range(6)]).own
    process.rows["thread"][1::3] = 8
    assert len(training_loop(process).steps) == steps


def test_a_loop_takes_its_batches_from_the_queue_for_which_it_waits(process_of):
    gets = [(made.GET, 0, 3), (made.GET_END, 0, 3), (made.GET, 1, 2), (made.GET_END, 1, 2), (made.OPTIMIZER, 0, 0)]
    process = process_of(*gets * 4, *gets[2:4]).own  # queue 2 has the books, and is asked once more
    process.rows["t"] += np.cumsum((process.rows["kind"] == made.GET_END) & (process.rows["group"] == 3)) * 50 * MS
    loop = training_loop(process)
    assert (len(loop.steps), (loop.end - loop.begin).tolist()) == (4, [51 * MS] * 4)


def test_what_a_loop_gets_one_right_after_the_other_is_one_batch(process_of):
    gets = [(made.GET, 0, 3), (made.GET_END, 0, 3)] * 4
    process = process_of(*[*gets, (made.OPTIMIZER, 0, 0)] * 5).own
    of_batch, place = np.divmod(np.arange(len(process.rows)), 9)
    process.rows["t"] = MS * (1 + 30 * of_batch) + place * MS // 50
    loop = training_loop(process)
    assert (len(loop.steps), (loop.end - loop.begin).tolist()) == (5, [7 * MS // 50] * 5)


@pytest.mark.parametrize(("late", "group", "ahead", "first"), [(False, 1, [5], 0), (True, 0, [], 10)])
def test_a_loop_gets_from_a_queue_what_another_thread_takes_from_a_loader(process_of, late, group, ahead, first):
    """The thread has two batches before the loop gets one. `late`: it takes the third only after the loop got it."""
    take = [[(made.TAKE, number, 1), (made.TAKE_END, number, 1)] for number in range(6)]
    get = [[(made.GET, 10 + n, 9), (made.GET_END, 10 + n, 9), (made.OPTIMIZER, n, 0)] for n in range(4)]
    order = [*take[:2], *get, *take[2:]] if late else [take[0], take[1], get[0], take[2], get[1], take[3], *get[2:]]
    process = process_of((made.PASS, 2 << 32 | 2, 1), *(mark for each in order for mark in each)).own
    process.rows["thread"][np.isin(process.rows["kind"], (made.PASS, made.TAKE, made.TAKE_END))] = 8
    loop = training_loop(process)
    assert (set(loop.group.tolist()), loop.passes[:, 3].tolist(), len(loop.steps)) == ({group}, ahead, 4)
    assert loop.number.tolist() == list(range(first, first + 4))


def test_processor_time_is_that_between_the_first_and_last_record_that_took_it(process_of):
    marks = process_of(*batches(4))
    marks.own.rows["cpu"] = np.array([5, 5, 5, 9, 9, 9, 9, 30, 30, 31, 31, 31, 31])
    assert processor_times(marks)["cpu_ns"] == 31 - 5
    marks.own.rows["cpu"][0] = 4  # so the first record of the loop took it
    assert processor_times(marks)["cpu_ns"] == 31 - 4


def test_batches_beyond_the_bound_are_sums_and_no_step_is_made_up_of_them(process_of):
    sums = [*batches(2), (made.SUM, 126, made.TAKE), *take(128), *take(129), (made.OPTIMIZER, 9, 0)]
    marks = process_of(*sums)
    assert "126 batches more are known as sums by the minute" in summed(marks)
    steps = training_loop(marks.own).steps
    assert len(steps) == 3  # 0, 128 and 129: that of 1 would reach over the sum
    assert (np.diff(steps) < 10 * MS).all()


def test_programs_that_strace_saw_train_one_after_the_other_are_of_one_rank(tmp_path):
    """The marks of `script`; the calls are made: each program reads a file while it trains."""
    shutil.copytree(MARKS / "script", tmp_path / "r", ignore=shutil.ignore_patterns("*.darshan"))
    own = [each for each in map(read_process, sorted((tmp_path / "r/profile").glob("*.marks"))) if each.loops]
    lines = [
        f"{pid} {training_loop(each).steps.min() / 1e9:.6f} {call} <0.000100>\n"
        for each in sorted(own, key=lambda each: each.rows["t"].min())
        for pid, call in (
            (9, f"fork() = {each.pid}"),
            (each.pid, 'openat(AT_FDCWD, "/d/a", O_RDONLY) = 3</d/a>'),
            (each.pid, 'read(3</d/a>, ""..., 9) = 9'),
        )
    ]
    (tmp_path / "r/logs/job.strace").write_text("".join(lines))
    result = merge([tmp_path / "r/logs/job.strace"], find_profiles(tmp_path / "r/profile"), tmp_path / "a.capture")
    assert (result.info.ranks, spans_of(result)["step"]) == ((0,), 12)
    assert any("trained more than once: the 10 steps" in text for text in result.info.warnings)
