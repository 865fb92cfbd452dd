"""How much of a job's I/O a log traces: C streams are counted and never traced, standard streams are no storage, and a
log without traced reads and writes is no tracing, or a job that moved nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.merge import MergeResult, merge
from dxt_replay.replay.show.make import merge_sections
from dxt_replay.traces.output import RECORDING_MARK
from dxt_replay.traces.schema import Coverage, Unseen
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.unseen import why_not_judged, with_unseen
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, posix_rows, write_dxt_log, write_log

JOB = JobSpec(nprocs=1, start_s=1000, start_ns=0, end_s=1005, end_ns=0)
NAMES = {
    1: b"/data/part",
    2: b"/data/model.ckpt",
    3: b"<STDOUT>",
    4: b"<STDIN>",
    5: b"/r/profile/node.10.77.marks",
    6: b"/r/profile/10.88.not_data",
}


def merged(
    folder: Path, traced: list[DxtRecord], counted: list[DxtRecord], stdio: list[dict]
) -> tuple[MergeResult, Capture]:
    modules = {
        "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", posix_rows(counted), 4)]),
        "STDIO": ModuleSpec(version=2, streams=[encode_counters("STDIO", stdio, 2)]),
    }
    log = write_dxt_log(folder / "job.darshan", traced, names=NAMES, job=JOB, extra_modules=modules)
    result = merge([log], [], folder / "c.capture")
    return result, open_capture(result.capture)


def with_streams(folder: Path, *, lost: int = 0) -> tuple[MergeResult, Capture]:
    """A trace of 100 bytes in 1 read; counters of `lost` reads more of a byte, of 300 bytes in 3 writes of a stream,
    and of 5000 on standard output."""
    data = DxtRecord(record_id=1, reads=[(0, 100, 0.5, 0.6)])
    counted = DxtRecord(record_id=1, reads=[*data.reads, *((100 + i, 1, 0.7, 0.8) for i in range(lost))])
    stdio = [
        {"record_id": 2, "STDIO_OPENS": 1, "STDIO_WRITES": 3, "STDIO_BYTES_WRITTEN": 300},
        {"record_id": 3, "STDIO_WRITES": 50, "STDIO_BYTES_WRITTEN": 5000},
    ]
    return merged(folder, [data], [counted], stdio)


def test_bytes_of_c_streams_are_counted_and_not_traced_and_nothing_is_asked_for(tmp_path: Path) -> None:
    result, capture = with_streams(tmp_path)
    coverage = result.info.coverage
    assert (coverage.bytes, coverage.operations, coverage.traceable) == (0.25, 0.25, (1.0, 1.0))
    assert coverage.ranks == {0: (0.25, 0.25)}
    assert dict(zip(*(capture.files[name].to_pylist() for name in ("path", "coverage")), strict=True)) == {
        "/data/part": 1.0, "/data/model.ckpt": 0.0,
    }  # fmt: skip
    assert not any("partial" in text for text in result.info.warnings)
    assert "partial-trace" not in {each.code for each in findings(capture)}
    assert why_not_judged(coverage, ()) is None
    said = "trace coverage 25.00 %, the rest went through C streams, which DXT does not trace"
    assert said in str(merge_sections(result))


def test_a_partial_trace_is_told_from_them(tmp_path: Path) -> None:
    result, capture = with_streams(tmp_path, lost=100)
    assert (result.info.coverage.bytes, result.info.coverage.traceable[0]) == (0.2, 0.5)
    (found,) = [each for each in findings(capture) if each.code == "partial-trace"]
    assert "50.0 % of the bytes" in found.evidence
    assert found.evidence.endswith("that Darshan counted, C streams aside.")
    assert any("partial: it holds 50.0% of the bytes" in text for text in result.info.warnings)


def test_what_was_mapped_is_beside_both() -> None:
    """Traced 100 bytes, through streams 300, mapped 100."""
    mapped = Unseen(kind="mapped", name="/a", bytes=100)
    found = with_unseen(Coverage(bytes=0.25, operations=0.5, without_streams=(1.0, 1.0)), 400, (mapped,))
    assert (found.bytes, found.traceable) == (0.2, (0.5, 1.0))


@pytest.mark.parametrize("prints", [3, 200_000])
def test_standard_streams_are_in_no_row_no_total_and_no_finding(tmp_path: Path, prints: int) -> None:
    """A job that waits 4 s for its input, prints line by line, and reads one file."""
    records = [
        DxtRecord(record_id=4, reads=[(0, 300_000, 0.5, 4.5)]),
        DxtRecord(record_id=3, writes=[(8 * i, 8, 4.5 + i * 1e-6, 4.5 + (i + 1) * 1e-6) for i in range(prints)]),
        DxtRecord(record_id=1, reads=[(0, 1000, 4.8, 4.81)]),
    ]
    result, capture = merged(
        tmp_path, records, records, [{"record_id": 3, "STDIO_WRITES": 7, "STDIO_BYTES_WRITTEN": 70}]
    )
    assert capture.paths() == ["/data/part"]
    assert (result.operations, result.info.coverage.bytes, result.counted["POSIX"]["reads"]) == (1, 1.0, 1)
    assert not result.counted.get("STDIO", {}).get("writes")
    assert summarise(capture).bytes.read == 1000
    assert not [each for each in findings(capture) if each.severity == "high"]
    said = [text for text in result.info.warnings if "standard input" in text]
    assert len(said) == (prints > 3)  # a few lines of output are not worth a warning
    assert all("200,008 operations on standard input, output and error (1.81 MiB)" in text for text in said)


NOTHING = "the job read and wrote no file through calls: a replay has nothing to read or write"
NO_DXT = "no DXT in this log"


@pytest.mark.parametrize(
    ("recorded", "moved", "said"), [(True, 0, NOTHING), (False, 0, NO_DXT), (True, 100, NO_DXT), (False, 100, NO_DXT)]
)
def test_a_recording_without_reads_and_writes_is_not_told_to_turn_tracing_on(
    tmp_path: Path, recorded: bool, moved: int, said: str
) -> None:
    """`record` tries DXT before the job starts. What was counted and not traced contradicts that."""
    if recorded:
        (tmp_path / RECORDING_MARK).write_text("python train.py")
    rows = [{"record_id": 1, "POSIX_OPENS": 1, "POSIX_READS": bool(moved), "POSIX_BYTES_READ": moved}]
    posix = ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])
    log = write_log(tmp_path / "job.darshan", modules={"POSIX": posix}, names={1: b"/data/mapped.bin"})
    warnings = merge([log], [], tmp_path / "a.capture").info.warnings
    assert [text for text in (NOTHING, NO_DXT) if any(each.startswith(text) for each in warnings)] == [said]


def test_what_record_itself_writes_is_no_write_of_the_job(tmp_path: Path) -> None:
    """Its marks, of which a write is traced, and its count of what Python reads of its own."""
    data, marks, count = (
        DxtRecord(record_id=record, writes=[(0, size, 0.5, 0.6)]) for record, size in ((1, 100), (5, 65536), (6, 8))
    )
    result, capture = merged(tmp_path, [data, marks, count], [data, marks, count], [])
    assert capture.files["path"].to_pylist() == ["/data/part"]
    assert result.counted == {"POSIX": {"reads": 0, "writes": 1, "bytes_read": 0, "bytes_written": 100}}
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    assert sum(row["length"] for row in rows) == 100
    assert (result.info.coverage.bytes, result.info.coverage.operations) == (1.0, 1.0)
