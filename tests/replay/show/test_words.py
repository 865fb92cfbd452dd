"""What the words of a result say, from results that the tests make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.finding import Finding
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.merge import MergeResult
from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.run.result import Repeats
from dxt_replay.replay.show.compare import comparison_sections
from dxt_replay.replay.show.make import merge_sections
from dxt_replay.replay.show.run import repeat_sections, run_sections
from dxt_replay.replay.show.section import MAX_GROUPS, Section
from dxt_replay.replay.show.summary import (
    enough_texts,
    finding_blocks,
    limit_sections,
    limit_text,
    summary_sections,
)
from dxt_replay.replay.show.terminal import print_sections
from dxt_replay.traces.schema import CaptureInfo, Coverage, Job, RankClock, Source
from dxt_replay.traces.storage_limit import LimitPoint, NoStorageLimitError, StorageLimit
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.run_results import RUN, run_result


def rows(sections: Sequence[Section]) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for section in sections for row in section.rows}


# ------------------------------------------------------------------------------------------------------------- summary


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return build_capture(
        tmp_path,
        files=["/data/train.tfrecord", "/b", "/c"],
        ops=[
            read(0, length=262_144, start_ns=0, end_ns=1_000_000),
            write(1, length=100, start_ns=2_000_000, end_ns=3_000_000),
            read(2, length=0, start_ns=4_000_000, end_ns=4_000_000),
            Op("close", 0, start_ns=5_000_000, end_ns=5_000_001, origin="reconstructed"),
        ],
        spans=[Span("step", 0, 6_000_000, step=0), Span("compute", 500_000, 2_500_000)],
    )


def test_the_rows_of_a_summary(capture: Capture) -> None:
    found = rows(summary_sections(summarise(capture)))
    assert found["reads"] == ("2, 256 KiB in all",)
    assert found["writes"] == ("1, 100 B in all",)
    assert found["rebuilt from counters, in no other line"] == ("1 operation, 0 B",)
    assert found["transfer size"] == ("0 B to 256 KiB, median 100 B",)
    assert found["steps"] == ("1, mean 6.00 ms",)
    assert found["compute, whole training"] == ("2.00 ms",)
    assert found["I/O time inside compute"] == ("50.0 %",)
    assert found["POSIX"] == ("2", "1", "256 KiB", "the traced operations")


def test_an_empty_capture_is_printed_without_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(summary_sections(summarise(build_capture(tmp_path))))
    assert "nan" not in capsys.readouterr().out.lower()


def test_many_groups_are_cut_with_the_largest_kept(tmp_path: Path) -> None:
    ops = [read(file, length=1, start_ns=file, end_ns=2 * file) for file in range(MAX_GROUPS + 9)]
    found = summarise(build_capture(tmp_path, files=[f"/{file}" for file in range(len(ops))], ops=ops), by="file")
    section = next(section for section in summary_sections(found) if section.title == "By file")
    assert len(section.rows) == MAX_GROUPS
    assert section.rows[0][0] == f"/{MAX_GROUPS + 8}"
    assert section.notes == ("and 9 more with less I/O time: --json, or -o FILE.csv, has all",)


def finding(code: str, at_stake_s: float | None, of: str = "training loop") -> Finding:
    texts = dict.fromkeys(("title", "evidence", "threshold", "remedy"), "")
    pct = None if at_stake_s is None else 10 * at_stake_s
    return Finding(code=code, severity="high", at_stake_s=at_stake_s, at_stake_pct=pct, at_stake_of=of, **texts)


def test_findings_of_the_same_waits_are_one_stake() -> None:
    found = [
        finding("warm-up", 0.5),
        finding("re-reads", 4.5),
        finding("not-traced", None, ""),
        finding("input-bound", 4.5),
        finding("small-reads", 1.0),
        finding("metadata-time", 7.0, "run"),
    ]
    assert [(text, [each.code for each in members]) for text, members in finding_blocks(found)] == [
        ("At most 7.000 s, 70.0 % of the run, at stake", ["metadata-time"]),
        (
            "At most 4.500 s, 45.0 % of the training loop, at stake: 3 ways to get it, the least work first",
            ["input-bound", "small-reads", "re-reads"],
        ),
        ("At most 500 ms, 5.0 % of the training loop, at stake", ["warm-up"]),
        ("1 finding of unknown cost", ["not-traced"]),
    ]


LIMIT = StorageLimit(
    recorded_ns=4_000_000_000,
    model_ns=4_100_000_000,
    fastest_ns=3_100_000_000,
    utilisation_pct=60.0,
    fastest_utilisation_pct=80.0,
    points=tuple(
        LimitPoint(
            quantity=quantity, multiple=multiple, elapsed_ns=elapsed_ns, above_fastest_pct=0.0, utilisation_pct=1.0
        )
        for quantity in ("speed", "bandwidth")
        for multiple, elapsed_ns in ((0.5, 8_100_000_000), (1.0, 4_100_000_000), (None, 3_100_000_000))
    ),
    enough={"speed": 12.5},
)


def test_the_training_takes_as_long_in_the_sentence_as_in_the_curves() -> None:
    assert limit_text(LIMIT) == (
        "Storage limits this training by 24.4 %: with infinitely fast storage it would take 3.000 s instead of "
        "4.000 s, and compute 80.0 % of it instead of 60.0 %."
    )
    assert limit_text(replace(LIMIT, utilisation_pct=None)).endswith("instead of 4.000 s.")
    assert limit_text(replace(LIMIT, fastest_ns=LIMIT.model_ns)).startswith("Storage does not limit this training: ")
    head, speed, bandwidth, _ = limit_sections(LIMIT)
    assert head.rows[1] == ("From 12 times the recorded speed on, storage costs at most 2 %.",)
    assert [row[:2] for row in speed.rows] == [("0.5 x", "8.000 s"), ("1 x", "4.000 s"), ("infinite", "3.000 s")]
    assert bandwidth.title.startswith("Training time by bandwidth")
    (section,) = limit_sections(NoStorageLimitError("too large"))
    assert section.rows == (("How long this training takes on other storage is not known: too large.",),)


@pytest.mark.parametrize(
    ("multiple", "expected"), [(None, "Even at 64"), (0.25, "At a quarter"), (3.84, "From 3.8 times")]
)
def test_what_is_enough_is_a_sentence(multiple: float | None, expected: str) -> None:
    (text,) = enough_texts({"speed": multiple})
    assert text.startswith(expected)


# --------------------------------------------------------------------------------------------------------- run, compare

JOB: Mapping[str, Any] = {
    **RUN,
    "operations": 1234567,
    "elapsed_s": 1.5,
    "recorded_s": 1.25,
    "lag_us": {"p50": 1.0, "p90": 2.0, "p99": 30.0, "max": 4000.0},
    "jitter_us": None,
    "latency_us": {"p50": 10.0, "p90": 20.0, "p99": 300.0, "max": 40000.0},
    "latency_by_operation_us": {},
    "response_us": {"p50": 11.0, "p90": 22.0, "p99": 330.0, "max": 44000.0},
    "bytes": {"read": 4096, "written": 0},
    "cache": {"policy": "cold", "resident_before_pct": None},
}


def sections_of(**changes: Any) -> list[Section]:
    """What `run` prints of JOB with changes."""
    return run_sections(run_result({**JOB, **changes}))


def us(p99: float) -> dict[str, float]:
    """Percentiles of a time with this p99."""
    return {"p50": p99 / 4, "p90": p99 / 2, "p99": p99, "max": 2 * p99}


LATE = {"lag_us": us(5000.0), "jitter_us": us(600.0)}


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({}, "Replayed 1,234,567 operations in 1.500 s (recorded 1.250 s), none failed; lag p99 30.0 us, on time"),
        ({"lag_us": us(5000.0)}, "none failed; lag p99 5.00 ms, LATE (limit 1.00 ms)"),
        (LATE, "lag p99 5.00 ms, on time for this machine (limit 6.00 ms)"),
        (
            {**LATE, "jitter_before_us": us(20.0), "processors_pct": 95.0},
            "LATE (limit 1.00 ms): before the run this machine woke an idle thread within 20.0 us, so the rest is the "
            "replay's own share (it took 95.0 % of the processors)",
        ),
        ({"failed": 3, "errors": {"ENOENT": 3}}, "FAILED: replayed 1,234,567 operations"),
        ({"failed": 3, "errors": {"ENOENT": 3}}, "; 3 operations failed (ENOENT: 3)."),
        ({"close_errors": {"EIO": 1}}, "1 file failed to close (EIO: 1)."),
        ({"lag_us": None}, "(recorded 1.250 s), none failed."),
    ],
)
def test_the_first_line_of_a_run_says_what_happened_and_whether_it_is_good(
    changes: dict[str, Any], headline: str
) -> None:
    assert headline in sections_of(**changes)[0].rows[0][0]


def test_a_run_is_printed_with_what_was_measured() -> None:
    found = rows(sections_of())
    assert found["lag: begun after it was due"] == ("1.00 us", "2.00 us", "30.0 us", "4.00 ms")
    assert found["page cache"] == ("cold; not known of the data in it before",)
    assert found["elapsed"] == ("1.500 s; recorded 1.250 s",)
    assert "1.250 s, 250 ms at this speed" in sections_of(speed=5.0)[0].rows[0][0]
    two = rows(sections_of(latency_by_operation_us={"read": JOB["latency_us"], "write": JOB["response_us"]}))
    assert (two["read"], two["write"][0]) == (("10.0 us", "20.0 us", "300 us", "40.0 ms"), "11.0 us")
    one = sections_of(latency_by_operation_us={"read": JOB["latency_us"]})
    assert [section.title for section in one] == ["", "Run", "Times of an operation"], "one operation says it all"


def test_a_stopped_run_says_so_in_its_first_line() -> None:
    assert sections_of(stopped=True)[0].title.startswith("STOPPED before the end")
    (first, *_) = repeat_sections(Repeats(runs=(run_result({**JOB, "stopped": True}),)))
    assert first.title == "STOPPED in run 1: its figures end there"
    assert first.rows[0][0].startswith("Replayed 1,234,567 operations in 1.500 s")


def test_the_rows_of_a_comparison(capture: Capture, tmp_path: Path) -> None:
    other = build_capture(tmp_path, files=["/x"], ops=[read(0, length=100, result=-5, due_ns=0)], name="other")
    sections = comparison_sections(compare(capture, other))
    found = rows(sections)
    assert found["bytes moved"] == ("256 KiB", "0 B", "+100.0 %")
    assert found["operations"] == ("4", "1", "DIFFERENT")
    assert found["failed operations"] == ("", "1", "")
    assert sections[0].rows[0][0].startswith("FAILED: the replay did not do the same work")


# --------------------------------------------------------------------------------------------------------------- merge


def clock(rank: int, *, worker: int = 0, method: str = "wall", **changes: Any) -> RankClock:
    found = {"offset_ns": 0, "residual_ns": 0, "interval_ns": (-60_000_000, 0)}
    return RankClock(rank=rank, worker=worker, method=method, **(found | changes))


def merged(
    *, ranks: int = 2, coverage: tuple[Any, Any] = (1.0, 1.0), clocks: Sequence[RankClock] = (), **changes: Any
) -> MergeResult:
    """A result of `merge`. coverage: shares of the bytes and of the operations."""
    near = [clock(0, method="anchors", interval_ns=(0, 3000)), clock(1, method="anchors", interval_ns=(0, 2000))]
    info = CaptureInfo(
        job=Job(nprocs=ranks, run_time_s=1.0),
        ranks=tuple(range(ranks)),
        sources=(Source(name="a.darshan", sha256="", kind="darshan"),),
        clock=tuple(clocks or near),
        coverage=Coverage(bytes=coverage[0], operations=coverage[1]),
        made_by={"rebuilt": {}},
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
def test_the_first_line_says_what_happened_and_whether_it_is_good(changes: dict[str, Any], line: str) -> None:
    assert merge_sections(merged(**changes))[0].title == line


def test_ranks_that_are_alike_share_a_row() -> None:
    found = {section.title: section for section in merge_sections(merged(clocks=[clock(rank) for rank in range(2048)]))}
    assert found["Clocks"].rows == (("0-2047", "wall", "0 ns", "60.0 ms"),)
    workers = [clock(0), clock(0, worker=1), clock(0, worker=2), clock(3, offset_ns=5)]
    found = {section.title: section for section in merge_sections(merged(clocks=workers))}
    assert found["Clocks"].rows == (
        ("0", "its own, workers 1-2", "wall", "0 ns", "60.0 ms"),
        ("3", "its own", "wall", "5 ns", "60.0 ms"),
    )
    many = merge_sections(merged(clocks=[clock(rank, offset_ns=rank) for rank in range(MAX_GROUPS + 1)]))
    assert many[1].notes == ("and 1 more: --json has all",)
