"""What is reconstructed of real runs is what their counters say: numbers, bytes, windows, places."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, read_counters
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.profiles.xplane import find_profiles, read_profile
from dxt_replay.profiler_merge.rebuild.counted import is_application_file
from dxt_replay.traces.files import STREAM_RECORDS
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests.places import SHARED

LOGS = sorted((SHARED / "captures").glob("*/job.darshan"))
THETA = SHARED / "theta" / "cosmictagger_8ranks.darshan"
ALL = [*LOGS, *([THETA] if THETA.exists() else [])]
MANY_RANKS = ("skew-autobench-ior", "sample-badost", "example")
"""2048 ranks each, which take long; their like with fewer is there too."""
SOME = [log for log in sorted((SHARED / "darshan-logs").rglob("*.darshan")) if log.stem not in MANY_RANKS]
needs_captures = pytest.mark.skipif(not LOGS, reason="the captures are not beside the checkout")
CHECKPOINTED = [log for log in LOGS if log.parent.name in ("l2hmc", "cosmictagger")]


def name_of(log):
    return log.parent.name if log.name == "job.darshan" else log.stem


def merged(tmp_path, log, **options):
    profiles = find_profiles(log.parent / "profile") if log.name == "job.darshan" else []
    merge([log], profiles, tmp_path / "c.capture", MergeOptions(**options))
    return open_capture(tmp_path / "c.capture")


def rows_of(capture):
    """The op stream as a list of dictionaries, with the record id of each row's file."""
    table = pa.Table.from_batches(list(capture.operations()))
    ids = capture.files["record_id"].to_numpy()
    return [{**row, "record_id": int(ids[row["file_id"]])} for row in table.to_pylist()]


def counted(log, module):
    """(rank or SHARED_RANK, record id) -> counters of the application's files."""
    table = read_counters(log, module)
    found = {}
    for row in range(len(table.ranks)) if table is not None else ():
        record = int(table.record_ids[row])
        if record not in STREAM_RECORDS and is_application_file(log.names.get(record, b"")):
            values = {name.split("_", 1)[1]: max(int(column[row]), 0) for name, column in table.counters.items()}
            stamps = {name.split("_", 1)[1]: float(column[row]) for name, column in table.fcounters.items()}
            found[int(table.ranks[row]), record] = values | stamps
    return found


def made_counts(rows, api):
    """(rank, record id) -> op -> reconstructed rows, and the bytes of reads and writes."""
    counts = {}
    for row in rows:
        if row["origin"] == "reconstructed" and row["api"] == api:
            of_file = counts.setdefault((row["rank"], row["record_id"]), Counter())
            of_file[row["op"]] += 1
            of_file[row["op"] + "_bytes"] += row["length"]
    return counts


def total(counts, rank, record, what):
    if rank == SHARED_RANK:
        return sum(of_file[what] for (_, each), of_file in counts.items() if each == record)
    return counts.get((rank, record), Counter())[what]


@needs_captures
@pytest.mark.parametrize("log", ALL, ids=name_of)
def test_numbers_and_bytes_are_those_of_the_counters(tmp_path, log):
    rows = rows_of(merged(tmp_path, log))
    source = open_log(log)
    posix, stdio = made_counts(rows, "POSIX"), made_counts(rows, "STDIO")
    assert posix
    for (rank, record), counters in counted(source, "POSIX").items():
        opens = counters["OPENS"] - counters["FILENOS"] - counters["DUPS"]
        assert total(posix, rank, record, "open") == opens
        assert total(posix, rank, record, "stat") == counters["STATS"]
        assert total(posix, rank, record, "seek") == 0
        assert total(posix, rank, record, "sync") == counters["FSYNCS"] + counters["FDSYNCS"]
        assert total(posix, rank, record, "close") <= opens
        if counters["F_CLOSE_END_TIMESTAMP"] > counters["F_READ_END_TIMESTAMP"]:
            assert total(posix, rank, record, "close") == opens
    for (rank, record), counters in counted(source, "STDIO").items():
        assert total(stdio, rank, record, "open") == counters["OPENS"] - counters["FDOPENS"]
        assert total(stdio, rank, record, "seek") == 0
        assert total(stdio, rank, record, "sync") == counters["FLUSHES"]
        for op, number, moved in (("read", "READS", "BYTES_READ"), ("write", "WRITES", "BYTES_WRITTEN")):
            assert total(stdio, rank, record, op) == counters[number]
            assert total(stdio, rank, record, f"{op}_bytes") == counters[moved]
    known = counted(source, "POSIX").keys() | counted(source, "STDIO").keys()
    for rank, record in posix.keys() | stdio.keys():
        made = posix.get((rank, record), Counter()) + stdio.get((rank, record), Counter())
        assert (rank, record) in known or (SHARED_RANK, record) in known or set(made) <= {"rename"}


@needs_captures
@pytest.mark.parametrize("log", ALL, ids=name_of)
def test_windows_are_kept_and_lanes_do_not_overlap(tmp_path, log):
    capture = merged(tmp_path, log)
    assert not set(capture.files["offsets"].to_pylist()) & {"repaired", "suspect"}
    offset_ns = {clock.rank: clock.offset_ns for clock in capture.info.clock}
    rows = rows_of(capture)
    windows = {
        (api, rank, record): counters
        for api in ("POSIX", "STDIO")
        for (rank, record), counters in counted(open_log(log), api).items()
    }
    for row in rows:
        assert row["end_ns"] >= row["start_ns"]
        window = windows.get((row["api"], row["rank"], row["record_id"]))
        kind = {"open": "OPEN", "close": "CLOSE", "read": "READ", "write": "WRITE"}.get(row["op"])
        if row["origin"] == "traced" or window is None or kind is None:
            continue
        begin, end = (window.get(f"F_{kind}_{side}_TIMESTAMP", 0.0) for side in ("START", "END"))
        assert begin * 1e9 + offset_ns[row["rank"]] - 2 <= row["start_ns"]
        assert row["end_ns"] <= end * 1e9 + offset_ns[row["rank"]] + 2
    by_lane = {}
    for row in rows:
        by_lane.setdefault((row["rank"], row["lane"]), []).append((row["start_ns"], row["end_ns"]))
    for times in by_lane.values():
        starts, ends = np.array(times).T
        assert np.all(starts[1:] >= ends[:-1])
    for rank in capture.ranks:
        starts = [row["start_ns"] for row in rows if row["rank"] == rank]
        assert starts == sorted(starts)


@needs_captures
@pytest.mark.parametrize("log", LOGS, ids=name_of)
def test_a_file_is_opened_before_it_is_used_and_closed_after(tmp_path, log):
    first_use, last_use, first_open, last_close = {}, {}, {}, {}
    for row in rows_of(merged(tmp_path, log)):
        file = row["rank"], row["record_id"], row["api"]
        if row["op"] in ("read", "write"):
            first_use.setdefault(file, row["start_ns"])
            last_use[file] = max(last_use.get(file, 0), row["end_ns"])
        elif row["op"] == "open":
            first_open.setdefault(file, row["end_ns"])
        elif row["op"] == "close":
            last_close[file] = row["start_ns"]
    used = first_use.keys() & first_open.keys()
    assert len(used) > 4
    assert all(first_open[file] <= first_use[file] for file in used)
    assert all(last_close[file] >= last_use[file] for file in used & last_close.keys())


@needs_captures
@pytest.mark.parametrize("name", ["cosmoflow", "imagenet", "frnn"])
def test_each_pass_over_a_file_begins_with_an_open(tmp_path, name):
    """These applications open, read from the start and close, again and again."""
    opened, passes = {}, 0
    for row in rows_of(merged(tmp_path, SHARED / "captures" / name / "job.darshan")):
        file = row["rank"], row["record_id"]
        if row["op"] == "open":
            opened[file] = row["end_ns"]
        elif row["op"] == "close":
            opened.pop(file)
        elif row["op"] == "read":
            assert opened[file] <= row["start_ns"]
            passes += row["offset"] == 0
    assert passes > 10


@needs_captures
@pytest.mark.parametrize("log", CHECKPOINTED, ids=name_of)
def test_checkpoints_lie_in_their_spans(tmp_path, log):
    capture = merged(tmp_path, log)
    paths = capture.paths()
    spans = [
        span for span in capture.spans.to_pylist() if span["kind"] == "checkpoint" and span["name"] == "checkpoint"
    ]
    assert len(spans) == 3
    stream = [row for row in rows_of(capture) if row["origin"] == "reconstructed" and "/ckpt/" in paths[row["file_id"]]]
    written = [row for row in stream if row["op"] == "write"]
    counters = [
        values
        for (_, record), values in counted(open_log(log), "STDIO").items()
        if b"/ckpt/" in open_log(log).names[record]
    ]
    assert len(written) == sum(values["WRITES"] for values in counters) == 48
    assert sum(row["length"] for row in written) == sum(values["BYTES_WRITTEN"] for values in counters)
    assert len({row["file_id"] for row in written}) == len(counters) == 12
    for row in stream:
        assert any(span["start_ns"] <= row["start_ns"] and row["end_ns"] <= span["end_ns"] for span in spans)
        assert (row["rank"], row["lane"]) == (0, 0)


@needs_captures
@pytest.mark.parametrize("log", CHECKPOINTED, ids=name_of)
def test_temporary_files_of_checkpoints_get_their_names(tmp_path, log):
    capture = merged(tmp_path, log)
    paths = [path.rpartition("/ckpt/")[2] for path in capture.paths()]
    renames = [
        (paths[row["file_id"]], paths[row["other_file_id"]]) for row in rows_of(capture) if row["op"] == "rename"
    ]
    assert len(renames) == 12
    targets = Counter(new for _, new in renames)
    for number in (1, 2, 3):
        part = f"model-{number}_temp/part-00000-of-00001"
        assert (f"{part}.data-00000-of-00001", f"model-{number}.data-00000-of-00001") in renames
        assert targets[f"{part}.data-00000-of-00001"] == targets[f"{part}.index"] == 1
    assert targets["checkpoint"] == 3
    size = dict(zip(paths, capture.files["size"].to_pylist(), strict=True))
    assert all(size[old] == size[new] for old, new in renames if new != "checkpoint")
    assert len(set(capture.files["record_id"].to_pylist())) == len(paths)


@needs_captures
@pytest.mark.parametrize("log", CHECKPOINTED, ids=name_of)
def test_streams_are_written_inside_the_operations_that_save(tmp_path, log):
    """Independent evidence: in the profile, SaveV2 writes the parts, MergeV2Checkpoints renames them and merges."""
    capture = merged(tmp_path, log)
    paths, zero_ns = capture.paths(), capture.info.job.zero_ns
    profile = read_profile(next(path for path in find_profiles(log.parent / "profile") if "rank0" in str(path)))
    begin_ns = profile.start_ns - zero_ns
    seen = Counter()
    for row in rows_of(capture):
        place = paths[row["file_id"]].partition("/ckpt/model-")[2]
        if not place or row["origin"] == "traced":
            continue
        operation = "SaveV2" if ".tempstate" in place else "MergeV2Checkpoints"
        events = np.array([operation in name for name in profile.names])[profile.name]
        inside = events & (begin_ns <= row["start_ns"]) & (row["end_ns"] <= begin_ns + profile.duration_ns)
        assert inside.any(), (operation, row)
        seen[operation, row["op"]] += 1
    assert seen["SaveV2", "write"] == 3 * 8
    assert seen["MergeV2Checkpoints", "write"] == 3 * 7
    assert seen["SaveV2", "rename"] == 6
    assert seen["MergeV2Checkpoints", "rename"] == 3


def test_without_reconstruction_only_what_was_traced_is_left(tmp_path):
    files = sample("cosmictagger")
    full = merge([files.log], list(files.profiles), tmp_path / "full.capture")
    bare = merge([files.log], list(files.profiles), tmp_path / "bare.capture", MergeOptions(reconstruct=False))
    assert full.reconstructed > 0
    assert full.as_json()["operations"] == {"traced": full.operations, "reconstructed": full.reconstructed}
    assert bare.as_json()["operations"] == {"traced": full.operations, "reconstructed": 0}
    rows = rows_of(open_capture(tmp_path / "full.capture"))
    traced = [row for row in rows if row["origin"] == "traced"]
    assert {row["op"] for row in traced} == {"read", "write"}
    columns = ("rank", "lane", "op", "record_id", "offset", "length", "start_ns", "end_ns", "step")
    kept = [tuple(row[name] for name in columns) for row in rows_of(open_capture(tmp_path / "bare.capture"))]
    assert kept == [tuple(row[name] for name in columns) for row in traced]


@needs_captures
@pytest.mark.parametrize("log", SOME, ids=lambda log: log.stem[-40:])
def test_sums_over_the_ranks_are_exact_in_any_log(tmp_path, log):
    """Many versions, reduced and not, with and without DXT."""
    capture = merged(tmp_path, log, align="0")
    assert not set(capture.files["offsets"].to_pylist()) & {"repaired", "suspect"}
    counts = Counter()
    for batch in capture.operations():
        table = pa.table(batch).filter(pc.equal(batch.column("origin"), "reconstructed"))
        for api, op in zip(table["api"].to_pylist(), table["op"].to_pylist(), strict=True):
            counts[api, op] += 1
    source = open_log(log)
    posix, stdio = counted(source, "POSIX").values(), counted(source, "STDIO").values()
    opens = sum(max(each["OPENS"] - each["FILENOS"] - each["DUPS"], 0) for each in posix)
    assert counts["POSIX", "open"] == opens
    assert counts["POSIX", "stat"] == sum(each["STATS"] for each in posix)
    for module, records in (("POSIX", posix), ("STDIO", stdio)):
        assert counts[module, "seek"] == 0
        in_table = capture.files[f"{module.lower()}_seeks"].fill_null(0)
        assert in_table.to_numpy().sum() == sum(each["SEEKS"] for each in records)
    for op, name in (("read", "READS"), ("write", "WRITES"), ("sync", "FLUSHES")):
        assert counts["STDIO", op] == sum(each[name] for each in stdio)
