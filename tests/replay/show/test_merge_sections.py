"""What merge prints first, and how ranks whose clocks are alike share a row."""

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.merge import MergeResult
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show.merge_sections import merge_sections
from dxt_replay.traces.schema import CaptureInfo, Coverage, Job, RankClock, Source
from tests.darshan_writer import JobSpec, ModuleSpec, encode_counters, write_log


def clock(rank, *, worker=0, method="wall", offset_ns=0, interval_ns=(-60_000_000, 0)):
    return RankClock(
        rank=rank, worker=worker, method=method, offset_ns=offset_ns, residual_ns=0, interval_ns=interval_ns
    )


CLOCKS = (clock(0, method="anchors", interval_ns=(0, 3000)), clock(1, method="anchors", interval_ns=(0, 2000)))


def merged(*, ranks=2, coverage=(1.0, 1.0), clocks=CLOCKS, warnings=(), **changes):
    """A result of `merge`. coverage: shares of the bytes and of the operations."""
    info = CaptureInfo(
        job=Job(nprocs=ranks, run_time_s=1.0),
        ranks=tuple(range(ranks)),
        sources=(Source(name="a.darshan", sha256="", kind="darshan"),),
        clock=tuple(clocks),
        coverage=Coverage(bytes=coverage[0], operations=coverage[1]),
        warnings=warnings,
    )
    made = {"operations": 704, "reconstructed": 2, "files": 3, "spans": 100, "counted": {}} | changes
    return MergeResult(capture=Path("/tmp/a.capture"), info=info, **made)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "Merged 2 ranks, 704 operations, trace coverage 100 %, clocks known within 3.00 us"),
        ({"spans": 0}, "Merged 2 ranks, 704 operations, trace coverage 100 %"),
        (
            {"coverage": (0.5, 0.75), "spans": 0},
            "Merged 2 ranks, 704 operations, but the trace is partial: coverage 50.00 %",
        ),
        (
            {"coverage": (None, None), "spans": 0, "ranks": 1},
            "Merged 1 rank, 704 operations, trace coverage unknown, as the log has no counters",
        ),
        (
            {
                "operations": 0,
                "counted": {"POSIX": {"reads": 3, "writes": 1, "bytes_read": 1 << 20, "bytes_written": 5}},
            },
            "Merged 2 ranks, but no DXT in this log: it holds Darshan's counters alone "
            "(POSIX 3 reads of 1.00 MiB and 1 writes of 5 B)",
        ),
    ],
)
def test_the_first_line_says_what_happened_and_whether_it_is_good(changes, line):
    assert merge_sections(merged(**changes))[0].title == line


def test_ranks_that_are_alike_share_a_row():
    found = {section.title: section for section in merge_sections(merged(clocks=[clock(rank) for rank in range(2048)]))}
    assert found["Clocks"].rows == (("0-2047", "wall", "0 ns", "60.0 ms"),)
    workers = [clock(0), clock(0, worker=1), clock(0, worker=2), clock(3, offset_ns=5)]
    found = {section.title: section for section in merge_sections(merged(clocks=workers))}
    assert found["Clocks"].rows == (
        ("0", "its own, workers 1-2", "wall", "0 ns", "60.0 ms"),
        ("3", "its own", "wall", "5 ns", "60.0 ms"),
    )


def test_clocks_of_workers_are_known_apart_from_those_of_ranks():
    workers = [clock(0, interval_ns=(0, 5_000)), clock(0, worker=1), clock(0, worker=2)]
    headline = merge_sections(merged(clocks=workers))[0].title
    assert headline.endswith("clocks known within 5.00 us, of worker processes within 60.0 ms")


def test_without_a_trace_there_is_no_clock_to_speak_of():
    made = merge_sections(merged(operations=0, reconstructed=0))
    assert [section.title for section in made if section.title == "Clocks"] == []


def test_a_log_without_dxt_says_so_first(tmp_path, capfd):
    rows = [{"record_id": 1, "POSIX_OPENS": 1, "POSIX_READS": 3, "POSIX_BYTES_READ": 1 << 20}]
    posix = ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])
    log = write_log(tmp_path / "a.darshan", names={1: b"/a"}, modules={"POSIX": posix}, job=JobSpec(nprocs=1))
    assert main(["merge", str(log), "-o", str(tmp_path / "a.capture")]) == 0
    assert capfd.readouterr().out.startswith("Merged 1 rank, but no DXT in this log")
    assert main(["summary", str(log), "--details"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith("Rebuilt from counters, not traced: 3 reads and writes, 1.00 MiB.")
    assert "No DXT trace" in shown
    assert "DXT_ENABLE_IO_TRACE=1" in shown
    assert "MODMEM" not in shown
