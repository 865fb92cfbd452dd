"""C streams, which DXT cannot trace, are in the coverage: what is rebuilt from counters was not traced."""

from __future__ import annotations

from pathlib import Path

from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.merge import MergeResult, merge
from dxt_replay.replay.show.make import merge_sections
from dxt_replay.traces.schema import Coverage, Unseen
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.unseen import why_not_judged, with_unseen
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, posix_rows, write_dxt_log

JOB = JobSpec(nprocs=1, start_s=1000, start_ns=0, end_s=1005, end_ns=0)


def merged(folder: Path, *, lost: int = 0) -> MergeResult:
    """A trace of 100 bytes in 1 read; counters of `lost` reads more of a byte, of 300 bytes in 3 writes of a stream,
    and of 5000 on standard output."""
    data = DxtRecord(record_id=1, reads=[(0, 100, 0.5, 0.6)])
    counted = DxtRecord(record_id=1, reads=[*data.reads, *((100 + i, 1, 0.7, 0.8) for i in range(lost))])
    stdio = [
        {"record_id": 2, "STDIO_OPENS": 1, "STDIO_WRITES": 3, "STDIO_BYTES_WRITTEN": 300},
        {"record_id": 3, "STDIO_WRITES": 50, "STDIO_BYTES_WRITTEN": 5000},
    ]
    log = write_dxt_log(
        folder / "job.darshan",
        [data],
        names={1: b"/data/part", 2: b"/data/model.ckpt", 3: b"<STDOUT>"},
        job=JOB,
        extra_modules={
            "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", posix_rows([counted]), 4)]),
            "STDIO": ModuleSpec(version=2, streams=[encode_counters("STDIO", stdio, 2)]),
        },
    )
    return merge([log], [], folder / "c.capture")


def test_their_bytes_are_counted_and_not_traced(tmp_path: Path) -> None:
    coverage = merged(tmp_path).info.coverage
    assert (coverage.bytes, coverage.operations) == (0.25, 0.25)
    assert coverage.traceable == (1.0, 1.0)
    assert coverage.ranks == {0: (0.25, 0.25)}
    files = open_capture(tmp_path / "c.capture").files
    assert dict(zip(files["path"].to_pylist(), files["coverage"].to_pylist(), strict=True)) == {
        "/data/part": 1.0,
        "/data/model.ckpt": 0.0,
    }


def test_nothing_can_be_done_about_them_so_nothing_is_asked_for(tmp_path: Path) -> None:
    result = merged(tmp_path)
    capture = open_capture(tmp_path / "c.capture")
    assert not any("partial" in text for text in result.info.warnings)
    assert "partial-trace" not in {each.code for each in findings(capture)}
    assert why_not_judged(capture.info.coverage, ()) is None


def test_a_partial_trace_is_told_from_them(tmp_path: Path) -> None:
    result = merged(tmp_path, lost=100)
    assert (result.info.coverage.bytes, result.info.coverage.traceable[0]) == (0.2, 0.5)
    capture = open_capture(tmp_path / "c.capture")
    (found,) = [each for each in findings(capture) if each.code == "partial-trace"]
    assert "50.0 % of the bytes" in found.evidence
    assert found.evidence.endswith("that Darshan counted, C streams aside.")
    assert any("partial: it holds 50.0% of the bytes" in text for text in result.info.warnings)


def test_what_was_mapped_is_beside_both() -> None:
    """Traced 100 bytes, through streams 300, mapped 100."""
    mapped = Unseen(kind="mapped", name="/a", bytes=100)
    found = with_unseen(Coverage(bytes=0.25, operations=0.5, without_streams=(1.0, 1.0)), 400, (mapped,))
    assert found.bytes == 0.2
    assert found.traceable == (0.5, 1.0)


def test_the_headline_says_where_the_rest_went(tmp_path: Path) -> None:
    text = str(merge_sections(merged(tmp_path)))
    assert "trace coverage 25.00 %, the rest went through C streams, which DXT does not trace" in text
