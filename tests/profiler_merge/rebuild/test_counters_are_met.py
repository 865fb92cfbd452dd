"""Random streams -> Darshan's counters, by a model of Darshan -> a log without DXT -> merged -> the same counters."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.schema import APIS, OPS, codes
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_model import ROW, expected
from tests.darshan_writer import JobSpec, ModuleSpec, encode_counters, write_log
from tests.examples import examples

OPEN, CLOSE, READ, WRITE = (OPS.index(name) for name in ("open", "close", "read", "write"))
SECOND = 1_000_000_000
ALWAYS = ("READS", "WRITES", "OPENS", "BYTES_READ", "BYTES_WRITTEN")
TIMES = ("F_READ_START_TIMESTAMP", "F_READ_END_TIMESTAMP", "F_WRITE_START_TIMESTAMP", "F_WRITE_END_TIMESTAMP",
         "F_OPEN_START_TIMESTAMP", "F_CLOSE_END_TIMESTAMP", "F_READ_TIME", "F_WRITE_TIME")  # fmt: skip
LISTED = ("READS", "WRITES", "BYTES_READ", "BYTES_WRITTEN", "MAX_BYTE_READ", "MAX_BYTE_WRITTEN", "SEQ_READS",
          "SEQ_WRITES", "CONSEC_READS", "CONSEC_WRITES")  # fmt: skip


def rows_of_file(passes):
    """ROW of one file: each pass is opened and closed; each call takes 1 ms, with a pause of 1 ms before it."""
    rows, now = [], SECOND
    for accesses in passes:
        for op, offset, length in ((OPEN, -1, 0), *accesses, (CLOSE, -1, 0)):
            rows.append((0, op, APIS.index("POSIX"), offset, length, now, now + 1_000_000))
            now += 2_000_000
    return np.array(rows, dtype=ROW)


def rebuilt(files):
    """The model's counters of each file, of its source and as rebuilt; what merge says of them."""
    source = [expected("POSIX", list(rows)) for rows in files]
    layout = [{"record_id": number + 1, **values} for number, values in enumerate(source)]
    with TemporaryDirectory() as folder:
        modules = {"POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", layout, 4)])}
        names = {number + 1: b"/data/%d" % number for number in range(len(files))}
        log = write_log(Path(folder) / "x.darshan", job=JobSpec(nprocs=1), names=names, modules=modules)
        result = merge([log], [], Path(folder) / "c.capture", MergeOptions(align="0"))
        capture = open_capture(Path(folder) / "c.capture")
        of_record = {int(record): int(file) for file, record in enumerate(capture.files["record_id"].to_pylist())}
        batches = list(capture.operations())
        again = []
        for number in range(len(files)):
            parts = []
            for batch in batches:
                part = np.zeros(len(batch), dtype=ROW)
                part["op"], part["api"] = codes(batch, "op"), codes(batch, "api")
                for name in ("file_id", "offset", "length", "start_ns", "end_ns"):
                    part[name] = batch.column(name).to_numpy()
                parts.append(part[part["file_id"] == of_record[number + 1]])
            again.append(np.concatenate(parts))
    return source, [expected("POSIX", list(rows)) for rows in again], result.info.made_by["rebuilt"]


def differing(source, again):
    """The counters that merge compares and that differ, of one file."""
    names = {f"POSIX_{name}" for name in LISTED}
    names |= {name for name in {*source, *again} if "_SIZE_" in name and "TIME" not in name}
    return {name for name in names if source.get(name, 0) != again.get(name, 0)}


@st.composite
def any_streams(draw):
    """One to three files: some passes of reads and writes that go on, jump ahead or go back, of any size."""
    sizes = draw(st.lists(st.integers(1, 3 << 20), min_size=1, max_size=6))
    files = []
    for _ in range(draw(st.integers(1, 3))):
        ops = draw(st.sampled_from([(READ,), (WRITE,), (READ, WRITE)]))
        passes = []
        for _ in range(draw(st.integers(1, 3))):
            position, accesses = {READ: 0, WRITE: 0}, []
            moves = draw(st.lists(st.tuples(st.sampled_from(ops), st.sampled_from([0, 0, 0, 1, 4096, -1])), max_size=8))
            for op, gap in moves:
                size = draw(st.sampled_from(sizes))
                offset = position[op] + gap if gap >= 0 else position[op] // 2
                accesses.append((op, offset, size))
                position[op] = offset + size
            passes.append(accesses)
        files.append(rows_of_file(passes))
    return files


@settings(max_examples=examples(10))
@given(any_streams())
def test_numbers_bytes_sizes_and_times_are_those_of_any_counters(files):
    source, again, said = rebuilt(files)
    listed = {entry["counter"] for entry in said["not_met"]}
    for wanted, found in zip(source, again, strict=True):
        sizes = {name for name in {*wanted, *found} if "_SIZE_" in name and "TIME" not in name}
        for name in {*(f"POSIX_{each}" for each in ALWAYS), *sizes}:
            assert found.get(name, 0) == wanted.get(name, 0), name
            assert name not in listed
        for name in TIMES:
            assert found[f"POSIX_{name}"] == pytest.approx(wanted[f"POSIX_{name}"], abs=2e-6), name


@st.composite
def epochs(draw):
    """A file that is read whole, epoch by epoch, in buffers and to its end."""
    buffer, tail = draw(st.integers(1000, 1 << 20)), draw(st.integers(1, 999))
    buffers, passes = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    whole = [(READ, number * buffer, buffer) for number in range(buffers)]
    whole += [(READ, buffers * buffer, tail), (READ, buffers * buffer + tail, 0)]
    return [whole] * passes


@st.composite
def strided(draw):
    """Blocks with a constant gap between them."""
    op, block, gap = draw(st.sampled_from([READ, WRITE])), draw(st.integers(2, 1 << 20)), draw(st.integers(1, 1 << 20))
    return [[(op, number * (block + gap), block) for number in range(draw(st.integers(1, 12)))]]


@st.composite
def appended(draw):
    """Writes of at most four sizes, one after the other, in as many opens as there are passes."""
    sizes = draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=4, unique=True))
    lengths = [draw(st.sampled_from(sizes)) for _ in range(draw(st.integers(1, 15)))]
    return [[(WRITE, sum(lengths[:number]), length) for number, length in enumerate(lengths)]]


@st.composite
def behind_the_end(draw):
    """Reads of 0 bytes at constant distances, as a library makes them that looks for data that are not yet written."""
    distance, count = draw(st.integers(2, 1 << 30)), draw(st.integers(2, 9))
    return [[(READ, number * distance, 0) for number in range(1, count + 1)]]


@settings(max_examples=examples(12))
@given(st.lists(epochs() | strided() | appended() | behind_the_end(), min_size=1, max_size=4))
def test_epochs_strides_and_appends_meet_all_their_counters(files):
    source, again, said = rebuilt([rows_of_file(passes) for passes in files])
    assert said["not_met"] == []
    assert said["streams_met"] == said["streams"] == len(files)
    for wanted, found in zip(source, again, strict=True):
        assert differing(wanted, found) == set()
