"""Random streams -> Darshan's counters -> rebuilt rows -> the same counters, by a model of Darshan."""

import numpy as np
import pytest

from dxt_replay.profiler_merge.darshan.counters import CounterTable
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.untraced import data_rows as module
from dxt_replay.profiler_merge.untraced.data_rows import CountedBatch, CountedData, data_rows, with_rebuilt
from dxt_replay.profiler_merge.untraced.file_operations import FileOperations
from dxt_replay.profiler_merge.untraced.metadata_rows import metadata_rows
from dxt_replay.profiler_merge.untraced.rank_counters import NOT_SEEN, joined
from dxt_replay.profiler_merge.untraced.transfers import transfers_of
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE
from tests.darshan_model import ROW, expected
from tests.places import SHARED
from tests.profiler_merge.untraced.counted import counted

OPEN, CLOSE = OPS.index("open"), OPS.index("close")
SECOND = 1_000_000_000
EXACT = ("READS", "WRITES", "BYTES_READ", "BYTES_WRITTEN", "MAX_BYTE_READ", "MAX_BYTE_WRITTEN", "OPENS",
         "SEQ_READS", "SEQ_WRITES", "CONSEC_READS", "CONSEC_WRITES")  # fmt: skip


def whole_reads(chance, size, passes, buffer):
    """A file read to its end, again and again, each time to the end that a read of 0 bytes finds."""
    accesses = []
    for _ in range(passes):
        offsets = np.arange(0, size, buffer)
        accesses.append(None)
        accesses += [(READ, int(at), int(min(buffer, size - at))) for at in offsets] + [(READ, size, 0)]
    return accesses


def random_chunks(chance, size, count, sizes):
    """Chunks anywhere in a file that stays open; the last byte is read too."""
    length = chance.choice(sizes, count)
    offset = [int(chance.integers(0, size - each)) for each in length]
    accesses = [None, (READ, 0, 8), *((READ, at, int(each)) for at, each in zip(offset, length, strict=True))]
    return [*accesses, (READ, size - int(length[0]), int(length[0]))]


def strided(chance, count, block, stride):
    return [None, *((WRITE, number * (block + stride), block) for number in range(count))]


def appended(chance, count):
    """Writes of many sizes, one after the other."""
    lengths = chance.integers(1, 5000, count)
    ends = np.cumsum(lengths)
    return [None, *((WRITE, int(end - each), int(each)) for end, each in zip(ends, lengths, strict=True))]


def streams(seed):
    chance = np.random.default_rng(seed)
    return [
        whole_reads(chance, int(chance.integers(1, 3_000_000)), int(chance.integers(1, 6)), 262144),
        random_chunks(chance, 50_000_000, int(chance.integers(20, 300)), [4096, 65536, 1 << 20]),
        strided(chance, int(chance.integers(2, 200)), 4096, int(chance.integers(1, 100_000))),
        appended(chance, int(chance.integers(1, 300))),
        appended(chance, 5) + whole_reads(chance, 20_000, 2, 4096),
    ]


def rows_of(files):
    """ROW of all files; each access takes 1 ms, 2 ms after the one before it began."""
    rows = []
    for file_id, accesses in enumerate(files):
        for number, access in enumerate([*accesses, "closed"]):
            start = SECOND * (1 + file_id) + number * 2_000_000
            op, offset, length = access if isinstance(access, tuple) else ({None: OPEN}.get(access, CLOSE), -1, 0)
            row = (file_id, op, APIS.index("POSIX"), offset, length, start, start + 1_000_000)
            rows.append(row)
    return np.array(rows, dtype=ROW)


def counters_of(rows, files):
    """The model's POSIX counters by name, each (files,)."""
    found = [expected("POSIX", list(rows[rows["file_id"] == file])) for file in range(files)]
    names = set().union(*found)
    return {name.removeprefix("POSIX_"): np.array([each.get(name, 0) for each in found]) for name in names}


def counted_files(values, files):
    def ns(name):
        seconds = values[f"F_{name}_TIMESTAMP"]
        return np.where(seconds > 0, np.rint(seconds * SECOND), NOT_SEEN).astype(np.int64)

    names = {"open_start": ns("OPEN_START"), "open_end": ns("OPEN_END"), "close_start": ns("CLOSE_START"),
             "close_end": ns("CLOSE_END"), "read_start": ns("READ_START"), "read_end": ns("READ_END"),
             "write_start": ns("WRITE_START"), "write_end": ns("WRITE_END"), "opens": values["OPENS"],
             "meta_ns": np.rint(values["F_META_TIME"] * SECOND), "reads": values["READS"], "writes": values["WRITES"],
             "read_ns": np.rint(values["F_READ_TIME"] * SECOND), "write_ns": np.rint(values["F_WRITE_TIME"] * SECOND),
             }  # fmt: skip
    return counted([{name: int(column[file]) for name, column in names.items()} for file in range(files)])


def table_of(values, files):
    whole = {f"POSIX_{name}": np.asarray(column) for name, column in values.items() if not name.startswith("F_")}
    ids = np.arange(files, dtype=np.uint64)
    return CounterTable(module="POSIX", ranks=np.zeros(files, int), record_ids=ids, counters=whole, fcounters={})


def none_traced():
    none = np.empty(0, dtype=np.int64)
    return FileOperations(file=none, start=none, end=none, offset=none, length=none, is_write=none.astype(bool))


def rebuilt(values, files, traced=None):
    known = counted_files(values, files)
    transfers = transfers_of(table_of(values, files), "POSIX", np.ones(files, bool))
    operations = none_traced() if traced is None else traced
    undated = np.zeros(files, dtype=np.int64)
    data = CountedData(own=transfers, shared=None, patterns=None)
    made = data_rows(known, CountedBatch.of([data]), operations, undated)
    together = with_rebuilt(operations, made)
    metadata = metadata_rows(known, together, undated)
    rows = np.zeros(len(together) + len(metadata), dtype=ROW)
    rows["api"] = APIS.index("POSIX")
    data = {"op": np.where(together.is_write, WRITE, READ), "file_id": together.file, "offset": together.offset,
            "length": together.length, "start_ns": together.start, "end_ns": together.end}  # fmt: skip
    others = {"op": metadata.op, "file_id": metadata.file, "offset": metadata.offset, "length": metadata.length,
              "start_ns": metadata.start, "end_ns": metadata.end}  # fmt: skip
    for name, column in data.items():
        rows[name] = np.concatenate((column, others[name]))
    return rows


def parts_of(seeds):
    """Counted files and transfers of a process for each seed."""
    sources = [(counters_of(rows_of(files), len(files)), len(files)) for files in map(streams, seeds)]
    return [
        (counted_files(values, files), transfers_of(table_of(values, files), "POSIX", np.ones(files, bool)))
        for values, files in sources
    ]


def test_what_is_made_for_a_process_does_not_depend_on_those_beside_it():
    parts = parts_of(range(6))
    data = [CountedData(own=transfers, shared=None, patterns=None) for _, transfers in parts]
    together = data_rows(
        joined([files for files, _ in parts]),
        CountedBatch.of(data),
        none_traced(),
        np.zeros(sum(part.files for part in data), dtype=np.int64),
    ).rows
    process = np.repeat(np.arange(len(parts)), [part.files for part in data])
    for number, (files, _) in enumerate(parts):
        undated = np.zeros(len(files), dtype=np.int64)
        alone = data_rows(files, CountedBatch.of(data[number : number + 1]), none_traced(), undated).rows
        beside = together.of_files(process == number)
        assert len(alone) > 10
        for name in ("op", "file", "length", "start", "end"):
            assert getattr(alone, name).tolist() == getattr(beside, name).tolist(), name
        # Sums of random numbers are rounded.
        assert np.abs(alone.offset - beside.offset).max() <= 1


def test_the_limit_is_that_of_one_process(monkeypatch):
    (files, transfers), other = parts_of([0, 1])
    data = [CountedData(own=each, shared=None, patterns=None) for each in (transfers, other[1])]
    counts = [int(each.own.count.sum()) for each in data]
    arguments = (
        joined([files, other[0]]),
        CountedBatch.of(data),
        none_traced(),
        np.zeros(len(files) + len(other[0]), int),
    )
    monkeypatch.setattr(module, "RECONSTRUCT_LIMIT", max(counts))
    assert len(data_rows(*arguments).rows) == sum(counts)
    monkeypatch.setattr(module, "RECONSTRUCT_LIMIT", max(counts) - 1)
    with pytest.raises(LogError, match=f"one process have {max(counts):,} reads and writes"):
        data_rows(*arguments)


@pytest.mark.parametrize("seed", range(12))
def test_rebuilt_rows_have_the_counters_of_the_source(seed):
    files = streams(seed)
    source = counters_of(rows_of(files), len(files))
    again = counters_of(rebuilt(source, len(files)), len(files))
    bins = [name for name in source if name.startswith("SIZE_")]
    for name in (*EXACT, *bins):
        assert again[name].tolist() == source[name].tolist(), name
    for name in ("F_READ_TIME", "F_WRITE_TIME", "F_READ_START_TIMESTAMP", "F_READ_END_TIMESTAMP",
                 "F_WRITE_START_TIMESTAMP", "F_WRITE_END_TIMESTAMP", "F_OPEN_START_TIMESTAMP"):  # fmt: skip
        assert again[name] == pytest.approx(source[name], abs=1e-6), name


@pytest.mark.parametrize("seed", range(6))
def test_common_sizes_and_strides_are_met_where_they_tell_all(seed):
    files = streams(seed)[:3]
    source = counters_of(rows_of(files), len(files))
    again = counters_of(rebuilt(source, len(files)), len(files))
    for place in "1234":
        for name in (f"ACCESS{place}_ACCESS", f"ACCESS{place}_COUNT"):
            assert again[name].tolist() == source[name].tolist(), name
    assert again["STRIDE1_STRIDE"][2] == source["STRIDE1_STRIDE"][2]
    assert again["STRIDE1_COUNT"][2] == source["STRIDE1_COUNT"][2]


@pytest.mark.parametrize("seed", range(6))
def test_what_a_partial_trace_lacks_is_added_to_it(seed):
    files = streams(seed)
    rows = rows_of(files)
    source = counters_of(rows, len(files))
    data = rows[(rows["op"] == READ) | (rows["op"] == WRITE)]
    number = np.arange(len(data)) - np.searchsorted(data["file_id"], data["file_id"])
    kept = data[number < 7]
    traced = FileOperations(
        file=kept["file_id"].astype(np.int64), start=kept["start_ns"], end=kept["end_ns"], offset=kept["offset"],
        length=kept["length"], is_write=kept["op"] == WRITE,
    )  # fmt: skip
    again = counters_of(rebuilt(source, len(files), traced), len(files))
    bins = [name for name in source if name.startswith("SIZE_")]
    for name in ("READS", "WRITES", "BYTES_READ", "BYTES_WRITTEN", *bins):
        assert again[name].tolist() == source[name].tolist(), name


def test_nothing_is_added_to_a_whole_trace():
    files = streams(0)
    rows = rows_of(files)
    data = rows[(rows["op"] == READ) | (rows["op"] == WRITE)]
    traced = FileOperations(
        file=data["file_id"].astype(np.int64), start=data["start_ns"], end=data["end_ns"], offset=data["offset"],
        length=data["length"], is_write=data["op"] == WRITE,
    )  # fmt: skip
    again = rebuilt(counters_of(rows, len(files)), len(files), traced)
    assert np.count_nonzero((again["op"] == READ) | (again["op"] == WRITE)) == len(data)


LOGS = SHARED / "darshan-logs"


@pytest.mark.skipif(not LOGS.exists(), reason="the public logs are not beside the checkout")
@pytest.mark.parametrize("name", ["snyder_ior-POSIX_id1057716-202103_11-8-64415-6936117869459351096_1",
                                  "mpi-io-test-x86_64-3.5.0", "hdf5_file_opens_only"])  # fmt: skip
def test_public_logs_without_dxt_are_rebuilt_to_their_counters(tmp_path, name):
    result = merge([LOGS / f"{name}.darshan"], [], tmp_path / "c.capture", MergeOptions())
    told = result.info.made_by["rebuilt"]
    assert told["operations"] == result.counted["POSIX"]["reads"] + result.counted["POSIX"]["writes"] > 0
    assert told["bytes"] == result.counted["POSIX"]["bytes_read"] + result.counted["POSIX"]["bytes_written"]
    assert told["streams_met"] == told["streams"] > 0
