"""DXT segments with 64 bytes of text, as the branch dev-dxt-extra-info writes them; damage that cannot be used."""

import struct

import pytest

from dxt_replay.profiler_merge.darshan.dxt import read_dxt
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.errors import LogError
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, write_log


def annotated(record_id, segments, after=b""):
    """The bytes of one record of reads (offset, length, start, end, thread); `after`: old memory behind the text."""
    head = struct.pack("<Qqq64sqq", record_id, 0, 0, b"node", 0, len(segments))
    bodies = [struct.pack("<qqdd64s", *segment[:4], b"pthread_id=%d" % segment[4] + after) for segment in segments]
    return head + b"".join(bodies)


@pytest.mark.parametrize("after", [b"", b"\n", b"\0\x07\x00\x00\x08", b"\n\x000123"])
def test_segments_with_a_text_are_read_with_their_threads(tmp_path, after):
    threads = [23438262046720, 7, 23438262046720]
    reads = [(100 * number, 100, number + 1.0, number + 1.5, thread) for number, thread in enumerate(threads)]
    data = annotated(1, reads, after) + annotated(2, reads[:1], after)
    dxt = ModuleSpec(version=1, streams=[data])
    log = open_log(write_log(tmp_path / "a.darshan", names={1: b"/a", 2: b"/b"}, modules={"DXT_POSIX": dxt}))
    (block,) = read_dxt(log)
    assert block.pthread_id.tolist() == [*threads, threads[0]]
    assert block.offset.tolist() == [0, 100, 200, 0]
    assert block.end_s.tolist() == [1.5, 2.5, 3.5, 1.5]


def test_what_is_left_of_a_damaged_trace_must_agree_with_the_counters(tmp_path):
    segments = [(0, 1 << 50, 1.0, 2.0), (0, 10, 3.0, 2.0)]
    posix = encode_counters("POSIX", [{"record_id": 1, "POSIX_READS": 2, "POSIX_BYTES_READ": 20}], 4)
    modules = {
        "POSIX": ModuleSpec(version=4, streams=[posix]),
        "DXT_POSIX": ModuleSpec(version=1, streams=[encode_dxt([DxtRecord(record_id=1, reads=segments)])]),
    }
    log = write_log(tmp_path / "a.darshan", job=JobSpec(nprocs=1), names={1: b"/a"}, modules=modules)
    with pytest.raises(LogError, match="damaged beyond use"):
        merge([log], [], tmp_path / "a.capture")
    assert not (tmp_path / "a.capture").exists()


def test_rubbish_of_one_file_is_not_hidden_by_the_size_of_another(tmp_path):
    records = [
        DxtRecord(record_id=1, reads=[(0, 1 << 30, 1.0, 2.0)]),
        DxtRecord(record_id=2, reads=[(0, 5000, 1.0, 2.0), (0, 10, 3.0, 2.0)]),
    ]
    rows = [
        {"record_id": 1, "POSIX_READS": 1, "POSIX_BYTES_READ": 1 << 30},
        {"record_id": 2, "POSIX_READS": 2, "POSIX_BYTES_READ": 50},
    ]
    modules = {
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)]),
        "DXT_POSIX": ModuleSpec(version=1, streams=[encode_dxt(records)]),
    }
    log = write_log(tmp_path / "a.darshan", job=JobSpec(nprocs=1), names={1: b"/a", 2: b"/b"}, modules=modules)
    with pytest.raises(LogError, match="trace holds 100 times what its counters saw of /b;"):
        merge([log], [], tmp_path / "a.capture")


def test_modules_that_are_not_read_are_named(tmp_path):
    modules = {"MDHIM": ModuleSpec(version=1, streams=[bytes(64)])}
    log = write_log(tmp_path / "a.darshan", job=JobSpec(nprocs=1), names={1: b"/a"}, modules=modules)
    warnings = merge([log], [], tmp_path / "a.capture").info.warnings
    assert any("does not read these modules" in text and "MDHIM (" in text for text in warnings)
