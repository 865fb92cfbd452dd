"""Darshan logs to a capture: bundled and recorded jobs, ranks in files and in memory, names, and how much is traced."""

import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.darshan.jobs import open_job
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.darshan_recording import log_writing
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.rows import Spool, blocks, in_file, in_order, number_lanes, rows_of
from dxt_replay.replay.commands.making import _cost_warnings
from dxt_replay.replay.show.make import merge_sections
from dxt_replay.traces.errors import AlignmentError, LogError, TargetError, UsageError
from dxt_replay.traces.files import record_id
from dxt_replay.traces.output import RECORDING_MARK
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import Coverage, Unseen
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.unseen import why_not_judged, with_unseen
from tests.darshan_writer import (
    DxtRecord,
    JobSpec,
    ModuleSpec,
    encode_counters,
    encode_dxt,
    posix_rows,
    write_dxt_log,
    write_log,
)
from tests.log_of_ranks import RANKS, rank_of_log, rows_by_rank, write_ranks
from tests.places import ROOT, recorded

MS = 10**6


def table_of(capture, rank=None):
    return pa.Table.from_batches(list(capture.operations(rank)))


def merged(tmp_path, name, profiles=None, output="c.capture", **options):
    """The result of a bundled recording, its capture and its rows."""
    files = sample(name)
    profiles = list(files.profiles) if profiles is None else profiles
    result = merge([files.log], profiles, tmp_path / output, MergeOptions(**options))
    capture = open_capture(result.capture)
    return result, capture, table_of(capture)


def test_excluded_files_leave_nothing(tmp_path):
    _, capture, _ = merged(tmp_path, "imagenet", [], exclude=("*.tfrecord",))
    assert not any(path.endswith(".tfrecord") for path in capture.paths())
    assert capture.operation_count() == 16 + 8  # 16 writes; an open and a close of four files
    assert capture.info.coverage.traceable == (1.0, 1.0)


def test_one_profile_stands_for_all_ranks_and_that_is_said(tmp_path):
    _, capture, _ = merged(tmp_path, "cosmictagger", list(sample("cosmictagger").profiles[:1]))
    by_rank = [capture.spans.filter(pc.field("rank") == rank).drop_columns("rank") for rank in (0, 1)]
    assert by_rank[0].equals(by_rank[1])
    assert any("copies" in warning for warning in capture.info.warnings)
    assert [clock.method for clock in capture.info.clock] == ["anchors", "wall"]
    inside = []
    for place, profiles in enumerate((sample("imagenet").profiles, sample("imagenet").profiles[1:])):
        _, capture, _ = merged(tmp_path, "imagenet", list(profiles), f"{place}.capture", reconstruct=False)
        inside.append(int((table_of(capture, 0)["step"].to_numpy() >= 0).sum()))
    assert inside == [290, pytest.approx(290, abs=9)]


def test_seconds_move_the_operations(tmp_path):
    tables = [merged(tmp_path, "imagenet", None, f"{align}.capture", align=align)[2] for align in ("wall", "-0.5")]
    wall, moved = (np.sort(table["start_ns"].to_numpy()) for table in tables)
    assert np.array_equal(wall - moved, np.full(len(wall), 500_000_000))


@pytest.mark.parametrize(
    ("align", "error"),
    [*((align, UsageError) for align in ("sideways", "nan", "1e30")),
     ("anchors", AlignmentError), ("nesting", AlignmentError)],
)  # fmt: skip
def test_a_failed_merge_leaves_an_older_capture_alone(tmp_path, align, error):
    before, _, _ = merged(tmp_path, "imagenet", [])
    with pytest.raises(error):
        merged(tmp_path, "imagenet", [], align=align, force=True)
    assert open_capture(tmp_path / "c.capture").operation_count() == 596 + before.reconstructed
    assert [path.name for path in tmp_path.iterdir()] == ["c.capture"]
    with pytest.raises(LogError, match="of 2 jobs"):
        merge([sample("imagenet").log, sample("cosmictagger").log], [], tmp_path / "d.capture")


def test_a_merge_of_logs_imports_no_reader_of_other_traces(tmp_path):
    program = "import sys, pathlib; from dxt_replay.profiler_merge.merge import merge\n"
    program += "merge([pathlib.Path(sys.argv[1])], [*map(pathlib.Path, sys.argv[3:])], pathlib.Path(sys.argv[2]))\n"
    program += "print(*(name for name in sys.modules if name.startswith('dxt_replay.profiler_merge.tracers.')))"
    files = sample("imagenet")
    command = [sys.executable, "-c", program, *map(str, (files.log, tmp_path / "c.capture", *files.profiles))]
    assert not subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


# Rows in any order and number come out in order, and have the lanes of their threads.

TIMES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 4)), max_size=80)


def rows(times, **columns):
    rank, start, width = np.array(times, dtype=np.int64).reshape(-1, 3).T
    columns |= {"rank": rank, "start_ns": start, "end_ns": start + width, "length": np.arange(len(rank))}
    return rows_of(columns, len(rank))


@given(TIMES, st.integers(1, 9))
def test_rows_through_files_are_those_of_memory(times, most):
    given_rows, spool = rows(times), Spool(None, most)
    for begin in range(0, len(times), 7):
        part = given_rows[begin : begin + 7]
        spool.room(len(part))[:] = part
    found = spool.rows()
    assert found.tolist() == in_order(given_rows).tolist()
    assert in_file(found) or len(times) <= most
    parts = list(blocks(found, most))
    assert [row for part in parts for row in found[part].tolist()] == found.tolist()
    assert len({(found["rank"][part][-1], found["start_ns"][part][-1]) for part in parts}) == len(parts)


@given(TIMES, st.integers(1, 9), st.booleans())
def test_lanes_are_threads_in_order_of_appearance_or_the_fewest_without_overlap(times, most, threaded):
    threads = np.array([7 + start % 3 for _, start, _ in times], dtype=np.uint64)
    found = in_order(rows(times, thread=threads))
    number_lanes(found, threaded=threaded, most=most)
    for rank in range(3):
        own = found[found["rank"] == rank]
        if threaded:
            seen = list(dict.fromkeys(own["thread"].tolist()))
            assert own["lane"].tolist() == [seen.index(thread) for thread in own["thread"].tolist()]
        for lane in np.unique(own["lane"]).tolist() if not threaded else ():
            mine = own[own["lane"] == lane]
            assert (mine["start_ns"][1:] >= mine["end_ns"][:-1]).all()


def test_lanes_of_layers_and_a_disk_that_refuses(tmp_path):
    """The lanes of a layer come after those of the layer below."""
    found = rows([(0, 0, 9), (0, 1, 2), (0, 2, 3), (0, 5, 1)], api=np.array([1, 0, 0, 1]))
    number_lanes(found, threaded=False, most=2)
    assert found["lane"].tolist() == [2, 0, 1, 3]
    spool = Spool(tmp_path / "none", most=1)
    spool.room(2)[:] = found[:2]
    with pytest.raises(TargetError, match=r"cannot keep the operations of a large rank .*: No such file.*free space"):
        spool.rows()


# A log of many small ranks, which are worked on together.


def ranks_of(log, **options):
    """The rows of each rank, with paths in the place of files, and the number of reads and writes that were rebuilt."""
    result = merge([log], [], log.with_suffix(".capture"), MergeOptions(force=True, **options))
    parts = {"capture.json", "files.parquet", "index.parquet", "lanes.parquet", "ops", "spans.parquet"}
    assert {path.name for path in result.capture.iterdir()} == parts
    return rows_by_rank(open_capture(result.capture)), result.as_json()["rebuilt"]["operations"]


def parts_of(seed, threads, **options):
    rng = np.random.default_rng(seed)
    return [rank_of_log(rank, rng, threads=threads, **options) for rank in range(RANKS)]


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_ranks_in_files_are_those_in_memory(tmp_path, threads, seed):
    log = write_ranks(tmp_path / "a.darshan", parts_of(seed, threads, most=60), threads=threads)
    options = {"exclude": ("*-0.bin",)} if seed else {}
    assert ranks_of(log, **options) == ranks_of(log, memory_rows=20, block_rows=13, **options)


@pytest.mark.parametrize("threads", [True, False])
def test_ranks_together_are_what_each_is_alone_in_any_order(tmp_path, threads):
    parts = parts_of(12, threads)
    together, rebuilt = ranks_of(write_ranks(tmp_path / "all.darshan", parts, threads=threads))
    assert all(together.values())
    assert {"rename", "open", "write"} <= {row["op"] for of_rank in together.values() for row in of_rank}
    alone = [
        ranks_of(write_ranks(tmp_path / f"{rank}.darshan", [part], threads=threads)) for rank, part in enumerate(parts)
    ]
    assert together == {rank: of_rank[rank] for rank, (of_rank, _) in enumerate(alone)}
    assert rebuilt == sum(count for _, count in alone) > 0
    turned = write_ranks(tmp_path / "b.darshan", [*parts[3:], *parts[:3]], threads=threads)
    assert ranks_of(turned) == (together, rebuilt)


def test_what_the_trace_lacks_behind_damage_is_rebuilt(tmp_path):
    parts = parts_of(12, True)
    dxt = [zlib.compress(encode_dxt(part[1], "DXT_POSIX", 2)) for part in parts]
    log = write_ranks(tmp_path / "a.darshan", parts, threads=True, dxt=[*dxt[:5], dxt[5][:-20]])
    result = merge([log], [], log.with_suffix(".capture"))
    assert any(text.startswith("a.darshan is damaged") for text in result.info.warnings)
    assert 0 < result.info.coverage.traceable[0] < 1
    found = table_of(open_capture(result.capture))
    reads = found.filter((pc.field("op") == "read") & (pc.field("api") == "POSIX"))
    assert reads.num_rows == result.counted["POSIX"]["reads"]


# Names that differ in `..` are of one file: it is staged once, and an output that is read back is no input.


def named(tmp_path, paths, known_ids=True):
    """A job whose n-th operation writes, or else reads, 100 bytes of the n-th of (path, is_write)."""
    ids = [record_id(path) if known_ids else 1 + place for place, (path, _) in enumerate(paths)]
    records = [
        DxtRecord(record_id=own, **{"writes" if is_write else "reads": [(0, 100, 1.0 + place, 1.5 + place)]})
        for place, (own, (_, is_write)) in enumerate(zip(ids, paths, strict=True))
    ]
    names = {own: path for own, (path, _) in zip(ids, paths, strict=True)}
    log = write_dxt_log(tmp_path / "x.darshan", records, names=names, job=JobSpec(nprocs=1))
    capture = open_capture(merge([log], [], tmp_path / "c.capture").capture)
    found = [row for row in table_of(capture).to_pylist() if row["op"] in ("read", "write")]
    return capture, [(capture.paths()[row["file_id"]], row["op"]) for row in found]


@pytest.mark.parametrize("known_ids", [True, False])
def test_both_names_are_one_file(tmp_path, known_ids):
    paths = [(b"/d/big", False), (b"/d/wd/../big", False), (b"/d/wd/./x/../../out", True), (b"/d/out", False)]
    capture, found = named(tmp_path, paths, known_ids)
    assert found == [("/d/big", "read"), ("/d/big", "read"), ("/d/out", "write"), ("/d/out", "read")]
    assert capture.info.coverage.operations == 1.0
    counted = dict(zip(capture.paths(), capture.files["posix_reads"].to_pylist(), strict=True))
    assert counted == {"/d/big": 2, "/d/out": 1}


def test_a_name_without_its_plain_form_gets_it_unless_a_folder_is_a_link(tmp_path):
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "wd").symlink_to(tmp_path / "elsewhere" / "deep")
    path = f"{tmp_path}/wd/../big"
    _, found = named(tmp_path, [(b"/d/wd/../only", False), (path.encode(), False)])
    assert found == [("/d/only", "read"), (path, "read")]


# How much of a job's I/O a log traces: C streams are counted and never traced, standard streams are no storage, and a
# log without traced reads and writes is no tracing, or a job that moved nothing.

OF_JOB = {
    1: b"/data/part", 2: b"/data/model.ckpt", 3: b"<STDOUT>", 4: b"<STDIN>", 5: b"/r/profile/node.10.77.marks",
    6: b"/r/profile/10.88.not_data",
}  # fmt: skip


def counting(folder, traced, counted, stdio):
    """A job's trace, and the counters that its log has."""
    modules = {
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", posix_rows(counted), 4)]),
        "STDIO": ModuleSpec(version=2, streams=[encode_counters("STDIO", stdio, 2)]),
    }
    job = JobSpec(nprocs=1, start_s=1000, start_ns=0, end_s=1005, end_ns=0)
    log = write_dxt_log(folder / "job.darshan", traced, names=OF_JOB, job=job, extra_modules=modules)
    result = merge([log], [], folder / "c.capture")
    return result, open_capture(result.capture)


@pytest.mark.parametrize("lost", [0, 100])
def test_bytes_of_c_streams_are_counted_and_not_traced_and_a_partial_trace_is_told_from_them(tmp_path, lost):
    """Traced are 100 bytes in 1 read, `lost` reads of a byte are not. A stream has 300 bytes in 3 writes."""
    data = DxtRecord(record_id=1, reads=[(0, 100, 0.5, 0.6)])
    counted = DxtRecord(record_id=1, reads=[*data.reads, *((100 + i, 1, 0.7, 0.8) for i in range(lost))])
    stdio = [
        {"record_id": 2, "STDIO_OPENS": 1, "STDIO_WRITES": 3, "STDIO_BYTES_WRITTEN": 300},
        {"record_id": 3, "STDIO_WRITES": 50, "STDIO_BYTES_WRITTEN": 5000},
    ]
    result, capture = counting(tmp_path, [data], [counted], stdio)
    coverage, found = result.info.coverage, {each.code: each.evidence for each in findings(capture)}
    said = [text for text in result.info.warnings if "partial" in text]
    if lost:
        assert (coverage.bytes, coverage.traceable[0]) == (0.2, 0.5)
        assert "50.0 % of the bytes" in found["partial-trace"]
        assert found["partial-trace"].endswith("that Darshan counted, C streams aside.")
        assert "partial: it holds 50.0% of the bytes" in said[0]
        return
    assert (coverage.bytes, coverage.operations, coverage.traceable) == (0.25, 0.25, (1.0, 1.0))
    assert (coverage.ranks, why_not_judged(coverage, ())) == ({0: (0.25, 0.25)}, None)
    of_files = dict(zip(capture.paths(), capture.files["coverage"].to_pylist(), strict=True))
    assert of_files == {"/data/part": 1.0, "/data/model.ckpt": 0.0}
    assert ("partial-trace" in found, said) == (False, [])
    text = "trace coverage 25.00 %, the rest went through C streams, which DXT does not trace"
    assert text in str(merge_sections(result))
    info = replace(result.info, coverage=Coverage(bytes=None, operations=1.0))
    assert "100 % of the operations (of the bytes it is not known)" in str(merge_sections(replace(result, info=info)))
    # Traced 100 bytes, through streams 300, mapped 100.
    mapped = Unseen(kind="mapped", name="/a", bytes=100)
    both = with_unseen(Coverage(bytes=0.25, operations=0.5, without_streams=(1.0, 1.0)), 400, (mapped,))
    assert (both.bytes, both.traceable) == (0.2, (0.5, 1.0))


@pytest.mark.parametrize("prints", [3, 2_000])
def test_standard_streams_are_in_no_row_no_total_and_no_finding(tmp_path, prints):
    """A job that waits 4 s for its input, prints line by line, and reads one file."""
    records = [
        DxtRecord(record_id=4, reads=[(0, 300_000, 0.5, 4.5)]),
        DxtRecord(record_id=3, writes=[(800 * i, 800, 4.5 + i * 1e-4, 4.5 + (i + 1) * 1e-4) for i in range(prints)]),
        DxtRecord(record_id=1, reads=[(0, 1000, 4.8, 4.81)]),
    ]
    stdio = [{"record_id": 3, "STDIO_WRITES": 7, "STDIO_BYTES_WRITTEN": 70}]
    result, capture = counting(tmp_path, records, records, stdio)
    assert (capture.paths(), summarise(capture).bytes.read) == (["/data/part"], 1000)
    assert (result.operations, result.info.coverage.bytes, result.counted["POSIX"]["reads"]) == (1, 1.0, 1)
    assert not result.counted.get("STDIO", {}).get("writes")
    assert not [each for each in findings(capture) if each.severity == "high"]
    said = [text for text in result.info.warnings if "standard input" in text]
    assert len(said) == (prints > 3)  # a few lines of output are not worth a warning
    assert all("2,008 operations on standard input, output and error (1.81 MiB)" in text for text in said)


NOTHING = "the job read and wrote no file through calls: a replay has nothing to read or write"
NO_DXT = "no DXT in this log"


@pytest.mark.parametrize(
    ("by_record", "moved", "said"), [(True, 0, NOTHING), (False, 0, NO_DXT), (True, 100, NO_DXT), (False, 100, NO_DXT)]
)
def test_a_recording_without_reads_and_writes_is_not_told_to_turn_tracing_on(tmp_path, by_record, moved, said):
    """`record` tries DXT before the job starts. What was counted and not traced contradicts that."""
    if by_record:
        (tmp_path / RECORDING_MARK).write_text("python train.py")
    counters = [{"record_id": 1, "POSIX_OPENS": 1, "POSIX_READS": bool(moved), "POSIX_BYTES_READ": moved}]
    posix = ModuleSpec(version=4, streams=[encode_counters("POSIX", counters, 4)])
    log = write_log(tmp_path / "job.darshan", modules={"POSIX": posix}, names={1: b"/data/mapped.bin"})
    warnings = merge([log], [], tmp_path / "a.capture").info.warnings
    assert [text for text in (NOTHING, NO_DXT) if any(each.startswith(text) for each in warnings)] == [said]


def test_what_record_itself_writes_is_no_write_of_the_job(tmp_path):
    """Its marks, of which a write is traced, and its count of what Python reads of its own."""
    data, marks, count = (
        DxtRecord(record_id=record, writes=[(0, size, 0.5, 0.6)]) for record, size in ((1, 100), (5, 65536), (6, 8))
    )
    result, capture = counting(tmp_path, [data, marks, count], [data, marks, count], [])
    assert capture.paths() == ["/data/part"]
    assert result.counted == {"POSIX": {"reads": 0, "writes": 1, "bytes_read": 0, "bytes_written": 100}}
    assert pc.sum(table_of(capture)["length"]).as_py() == 100
    assert (result.info.coverage.bytes, result.info.coverage.operations) == (1.0, 1.0)


# How long Darshan took to write logs: real ones of a PyTorch job with workers, with times of files of their own.


def test_a_log_took_from_its_end_to_the_last_change_of_its_file(tmp_path):
    """Copies, the end of the job itself, and a file system with another clock say nothing."""
    logs = [shutil.copy(path, tmp_path) for path in recorded("captures/torch_eval").rglob("*.darshan")]
    ends = {open_log(tmp_path / log).job.end_ns: log for log in logs}
    first, second, *_, last = sorted(ends)  # in the order in which their processes ended
    os.chmod(ends[first], 0o600)

    def taking(end_ns, ms):
        os.utime(ends[end_ns], ns=(end_ns + ms * MS, end_ns + ms * MS))
        return log_writing(open_job([tmp_path / log for log in logs]))

    assert log_writing(open_job([tmp_path / log for log in logs])) == taking(last, 900) == []
    start_ns = open_job([tmp_path / log for log in logs]).start_ns
    assert taking(first, 25) == [[0, first - start_ns, first + 25 * MS - start_ns]]
    assert taking(second, -40) == []


@pytest.mark.parametrize(
    ("logs", "run_s", "said"), [(0, 10, None), (2, 100, None), (2, 10, "250 ms to write the logs of 2 processes")]
)
def test_what_is_much_of_the_run_is_said_once(logs, run_s, said):
    written = [[0, 0, 200 * MS], [0, 50 * MS, 250 * MS]][:logs]
    info = SimpleNamespace(made_by={"log_writing": written}, job=SimpleNamespace(run_time_s=run_s))
    warnings = _cost_warnings(SimpleNamespace(merged=SimpleNamespace(info=info)))
    assert len(warnings) == (said is not None)
    assert all(f"Darshan took {said}" in text for text in warnings)
