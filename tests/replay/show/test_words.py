"""What the words of a result say, from results that the tests make; `tests/golden` has whole outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.finding import Finding
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.darshan.jobs import ProcessFacts
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.merge import MergeResult, merge
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.run.result import Repeats
from dxt_replay.replay.show.make import merge_sections
from dxt_replay.replay.show.run import repeat_sections, run_sections
from dxt_replay.replay.show.section import MAX_GROUPS, Section
from dxt_replay.replay.show.summary import enough_texts, finding_blocks, limit_sections, limit_text, summary_sections
from dxt_replay.replay.show.terminal import print_sections
from dxt_replay.traces.schema import CaptureInfo, Coverage, Job, RankClock, Source, Unseen
from dxt_replay.traces.storage_limit import LimitPoint, NoStorageLimitError, StorageLimit
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, encode_dxt, posix_rows, write_log
from tests.replay.show.page.pages import carried
from tests.run_results import RUN, run_result

MIB = 1 << 20


def rows(sections: Sequence[Section]) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for section in sections for row in section.rows}


# ------------------------------------------------------------------------------------------------------------- summary


def test_the_rows_of_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = build_capture(
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
    found = rows(summary_sections(summarise(capture)))
    expected = {
        "reads": ("2, 256 KiB in all",),
        "writes": ("1, 100 B in all",),
        "rebuilt from counters, in no other line": ("1 operation, 0 B",),
        "transfer size": ("0 B", "100 B", "85.4 KiB", "256 KiB"),
        "steps": ("1, mean 6.00 ms",),
        "compute, whole training": ("2.00 ms",),
        "I/O time inside compute": ("50.0 %",),
        "POSIX": ("2", "1", "256 KiB", "the traced operations"),
    }
    assert {name: found[name] for name in expected} == expected
    print_sections(summary_sections(summarise(build_capture(tmp_path, name="empty"))))
    assert "nan" not in capsys.readouterr().out.lower()


def finding(code: str, at_stake_s: float | None, of: str = "training loop") -> Finding:
    texts = dict.fromkeys(("title", "evidence", "threshold", "remedy"), "")
    pct = None if at_stake_s is None else 10 * at_stake_s
    return Finding(code=code, severity="high", at_stake_s=at_stake_s, at_stake_pct=pct, at_stake_of=of, **texts)


def test_findings_of_the_same_waits_are_one_stake() -> None:
    stakes = {"warm-up": 0.5, "re-reads": 4.5, "input-bound": 4.5, "small-reads": 1.0}
    found = [finding(code, stake) for code, stake in stakes.items()]
    found += [finding("not-traced", None, ""), finding("metadata-time", 7.0, "run")]
    assert [(text, [each.code for each in members]) for text, members in finding_blocks(found)] == [
        ("At most 7.000 s, 70.0 % of the run, at stake", ["metadata-time"]),
        (
            "At most 4.500 s, 45.0 % of the training loop, at stake: 3 ways to get it, the least work first",
            ["input-bound", "small-reads", "re-reads"],
        ),
        ("At most 500 ms, 5.0 % of the training loop, at stake", ["warm-up"]),
        ("1 finding of unknown cost", ["not-traced"]),
    ]


TIMES = ((0.5, 8_100_000_000), (1.0, 4_100_000_000), (None, 3_100_000_000))
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
        for multiple, elapsed_ns in TIMES
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
    for multiple, expected in ((None, "Even at 64"), (0.25, "At a quarter"), (3.84, "From 3.8 times")):
        assert next(iter(enough_texts({"speed": multiple}))).startswith(expected)


# ----------------------------------------------------------------------------------------------------------------- run

JOB: Mapping[str, Any] = {
    **RUN,
    **{"operations": 1234567, "elapsed_s": 1.5, "recorded_s": 1.25, "jitter_us": None, "latency_by_operation_us": {}},
    "lag_us": {"p50": 1.0, "p90": 2.0, "p99": 30.0, "max": 4000.0},
    "cache": {"policy": "cold", "resident_before_pct": None},
}


def us(p99: float) -> dict[str, float]:
    """Percentiles of a time with this p99."""
    return {"p50": p99 / 4, "p90": p99 / 2, "p99": p99, "max": 2 * p99}


LATE = {"lag_us": us(5000.0), "jitter_us": us(600.0)}


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({}, "Replayed 1,234,567 operations in 1.500 s (recorded 1.250 s), none failed; lag p99 30.0 us, on time"),
        ({"speed": 5.0}, "1.250 s, 250 ms at this speed"),
        ({"lag_us": us(5000.0)}, "none failed; lag p99 5.00 ms, LATE (limit 1.00 ms)"),
        (LATE, "lag p99 5.00 ms, on time for this machine (limit 6.00 ms)"),
        (
            {**LATE, "jitter_before_us": us(20.0), "processors_pct": 95.0},
            "LATE (limit 1.00 ms): before the run this machine woke an idle thread within 20.0 us, so the rest is the "
            "replay's own share (it took 95.0 % of the processors)",
        ),
        ({"failed": 3, "errors": {"ENOENT": 3}}, "; 3 operations failed (ENOENT: 3)."),
        ({"close_errors": {"EIO": 1}}, "1 file failed to close (EIO: 1)."),
        ({"lag_us": None}, "(recorded 1.250 s), none failed."),
    ],
)
def test_the_first_line_of_a_run_says_what_happened_and_whether_it_is_good(
    changes: dict[str, Any], headline: str
) -> None:
    sections = run_sections(run_result({**JOB, **changes}))
    assert headline in sections[0].rows[0][0]
    assert rows(sections)["page cache"] == ("cold; not known of the data in it before",)
    assert run_sections(run_result({**JOB, **changes, "stopped": True}))[0].title.startswith("STOPPED before the end")


def test_a_repeated_run_that_was_stopped_says_so_in_its_first_line() -> None:
    (first, *_) = repeat_sections(Repeats(runs=(run_result({**JOB, "stopped": True}),)))
    assert first.title == "STOPPED in run 1: its figures end there"
    assert first.rows[0][0].startswith("Replayed 1,234,567 operations in 1.500 s")


# --------------------------------------------------------------------------------------------------------------- merge


def clock(rank: int, *, worker: int = 0, method: str = "wall", **changes: Any) -> RankClock:
    found = {"offset_ns": 0, "residual_ns": 0, "interval_ns": (-60_000_000, 0)}
    return RankClock(rank=rank, worker=worker, method=method, **(found | changes))


def merged(
    *,
    ranks: int = 2,
    coverage: tuple[Any, Any] = (1.0, 1.0),
    unseen: tuple[Unseen, ...] = (),
    clocks: Sequence[RankClock] = (),
    **changes: Any,
) -> MergeResult:
    """A result of `merge`. coverage: shares of the bytes and of the operations."""
    near = [clock(0, method="anchors", interval_ns=(0, 3000)), clock(1, method="anchors", interval_ns=(0, 2000))]
    info = CaptureInfo(
        job=Job(nprocs=ranks, run_time_s=1.0),
        ranks=tuple(range(ranks)),
        sources=(Source(name="a.darshan", sha256="", kind="darshan"),),
        clock=tuple(clocks or near),
        coverage=Coverage(bytes=coverage[0], operations=coverage[1], unseen=unseen),
        made_by={"rebuilt": {}},
    )
    made = {"operations": 704, "reconstructed": 2, "files": 3, "spans": 100, "counted": {}} | changes
    return MergeResult(capture=Path("/tmp/a.capture"), info=info, **made)


COUNTED = {"POSIX": {"reads": 3, "writes": 1, "bytes_read": 1 << 20, "bytes_written": 5}}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "2 ranks, 704 operations, trace coverage 100 %, clocks known within 3.00 us"),
        ({"spans": 0}, "2 ranks, 704 operations, trace coverage 100 %"),
        ({"coverage": (0.5, 0.75), "spans": 0}, "2 ranks, 704 operations, but the trace is partial: coverage 50.00 %"),
        (
            {"coverage": (None, None), "spans": 0, "ranks": 1},
            "1 rank, 704 operations, trace coverage unknown, as the log has no counters",
        ),
        (
            {"coverage": (None, 1.0), "spans": 0, "unseen": (Unseen(kind="mapped", name="/a", bytes=None),)},
            "2 ranks, 704 operations, trace coverage unknown, as some I/O is in no trace",
        ),
        (
            {"operations": 0, "counted": COUNTED},
            "2 ranks, but no DXT in this log: it holds Darshan's counters alone "
            "(POSIX 3 reads of 1.00 MiB and 1 writes of 5 B)",
        ),
    ],
)
def test_the_first_line_of_a_merge_says_what_happened(changes: dict[str, Any], line: str) -> None:
    assert merge_sections(merged(**changes))[0].title == f"Merged {line}"


def test_ranks_that_are_alike_share_a_row() -> None:
    workers = [clock(0), clock(0, worker=1), clock(0, worker=2), clock(3, offset_ns=5)]
    for clocks, expected in (
        ([clock(rank) for rank in range(2048)], (("0-2047", "wall", "0 ns", "60.0 ms"),)),
        (
            workers,
            (("0", "its own, workers 1-2", "wall", "0 ns", "60.0 ms"), ("3", "its own", "wall", "5 ns", "60.0 ms")),
        ),
    ):
        found = {section.title: section for section in merge_sections(merged(clocks=clocks))}
        assert found["Clocks"].rows == expected
    many = merge_sections(merged(clocks=[clock(rank, offset_ns=rank) for rank in range(MAX_GROUPS + 1)]))
    assert many[1].notes == ("and 1 more: --json has all",)


# ------------------------------------------------- I/O through DFS and DAOS, which Darshan counts and no trace holds


def log_of(target: Path, *, traced: bool = False, moved: int = 64 * MIB) -> Path:
    """A job that wrote `moved` bytes through DFS, as which DAOS counts 8 more, and read 4 MiB beside it."""
    posix = DxtRecord(record_id=1, reads=[(i * MIB, MIB, 1.0 + i, 1.5 + i) for i in range(4)])
    counted = {
        "DFS": {"DFS_WRITES": 3, "DFS_WRITEXS": 1, "DFS_BYTES_WRITTEN": moved, "DFS_F_WRITE_TIME": 2.0},
        "DAOS": {"DAOS_ARRAY_WRITES": 4, "DAOS_OBJ_UPDATES": 1, "DAOS_BYTES_WRITTEN": moved + 8,
                 "DAOS_F_WRITE_TIME": 2.5},
    }  # fmt: skip
    modules = {
        name: ModuleSpec(version=1, streams=[encode_counters(name, [{"record_id": 7, **row}], 1)])
        for name, row in counted.items()
    }
    if traced:
        modules["POSIX"] = ModuleSpec(version=4, streams=[encode_counters("POSIX", posix_rows([posix]), 4)])
        modules["DXT_POSIX"] = ModuleSpec(version=1, streams=[encode_dxt([posix])])
    return write_log(target, job=JobSpec(nprocs=1), names={1: b"/a", 7: b"/file"}, modules=modules)


def test_counted_objects_are_shown_once_and_drawn_in_no_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, page = str(log_of(tmp_path / "a.darshan")), tmp_path / "report.html"
    assert ProcessFacts(open_log(Path(log))).has_data
    assert main(["summary", log, "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for said in (
        "By Darshan's counters the job spent 2.500 s of",
        "DAOS 0 5 64.0 MiB Darshan's counters 2.500 s",
        "DFS 0 4 64.0 MiB Darshan's counters 2.000 s",
    ):
        assert said in text
    assert "DXT_ENABLE_IO_TRACE" not in text
    assert main(["report", log, "-o", str(page)]) == 0
    first, below = page.read_text(encoding="utf-8").split('<section id="timeline"')
    assert "<h1>By Darshan&#39;s counters the job spent 2.500 s of " in first
    assert "of the run in DAOS calls, by Darshan&#39;s counters" in first
    assert "No trace: when the I/O happened is not known." in below
    data = carried(first + below, "data")
    assert (data["timelines"], [name for name in data["figures"] if name.startswith(("course", "heat"))]) == ({}, [])


@pytest.mark.parametrize(
    ("moved", "bytes_share", "evidence", "line"),
    [
        # At best: POSIX calls may have become those of DFS.
        (64 * MIB, 4 * MIB / (64 * MIB + 8), "at least 60.0 MiB through calls of an object store", "coverage 6.25 %"),
        (2 * MIB, None, "Bytes were moved by DAOS calls, and whether calls in the trace made them is", "unknown, as"),
    ],
)
def test_counted_objects_are_no_part_of_a_whole_trace(
    moved: int, bytes_share: float | None, evidence: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = merge([log_of(tmp_path / "a.darshan", traced=True, moved=moved)], [], tmp_path / "a.capture")
    assert (made.info.coverage.bytes, made.info.coverage.operations) == (bytes_share, None)
    assert made.counted["DFS"] == {"reads": 0, "writes": 4, "bytes_read": 0, "bytes_written": moved}
    (found,) = (each for each in findings(open_capture(made.capture)) if each.code == "not-traced")
    assert evidence in found.evidence
    assert "dfuse" in found.remedy
    assert line in merge_sections(made)[0].title
    for options, there in (([], True), (["--part", "op=read"], False)):  # a part has no figures of the whole job
        assert main(["summary", str(made.capture), "--json", *options]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert ("DAOS" in summary["interfaces"], "DAOS" in summary["counted_times"]) == (there, there)
