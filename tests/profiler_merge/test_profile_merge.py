"""Profiles without a log: a capture has their steps, and says of I/O that none was recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.replay.causal.storage_limit import storage_limit
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import Capture, open_capture
from tests import kineto_writer as kineto
from tests.capture_builder import Span, build_capture
from tests.kineto_writer import START_NS

STEP_NS, WAIT_NS, COMPUTE_NS, STEPS = 10_000_000, 3_000_000, 6_000_000, 5

FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def profile(path: Path, *, begin_ns: int = 0, rank: int | None = None, pid: int = 4711, **options: Any) -> Path:
    """STEPS steps of STEP_NS, one after the other: WAIT_NS for a batch, and COMPUTE_NS on a GPU at the end."""
    events = []
    for step in range(STEPS):
        end = begin_ns + (step + 1) * STEP_NS
        events += [
            kineto.mark(step, end - STEP_NS, end, pid=pid, tid=pid),
            kineto.event(FETCH, end - STEP_NS, end - STEP_NS + WAIT_NS, cat="user_annotation", pid=pid, tid=pid),
            {**kineto.launch(end - COMPUTE_NS, end - COMPUTE_NS + 1000, step + 1), "pid": pid, "tid": pid},
            kineto.kernel("gemm", end - COMPUTE_NS, end, step + 1),
        ]
    around = None if rank is None else {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
    return kineto.write(path, events, around=around, **options)


def merged(tmp_path: Path, *given: Path, more: tuple[str, ...] = ()) -> Capture:
    output = tmp_path / "p.capture"
    assert main(["merge", *map(str, given), *more, "-o", str(output)]) == 0
    return open_capture(output)


def said(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The error of a command that refuses, in one line."""
    assert main([str(each) for each in arguments]) == 2
    text = " ".join(capfd.readouterr().err.split())
    assert text.count("error:") == 1
    return text


def spans_of(capture: Capture, kind: str) -> list[tuple[int, int, int]]:
    """(rank, start, end) of the spans of a kind, in ns of the capture."""
    rows = capture.spans.to_pylist()
    return [(row["rank"], row["start_ns"], row["end_ns"]) for row in rows if row["kind"] == kind]


def test_the_steps_are_those_of_the_profile(tmp_path: Path) -> None:
    capture = merged(tmp_path, profile(tmp_path / "a.pt.trace.json", begin_ns=777))
    assert spans_of(capture, "step") == [(0, step * STEP_NS, (step + 1) * STEP_NS) for step in range(STEPS)]
    assert sum(end - start for _, start, end in spans_of(capture, "compute")) == STEPS * COMPUTE_NS
    assert (capture.operation_count(), capture.files.num_rows) == (0, 0)
    job = capture.info.job
    assert (job.zero_ns, job.start_ns, job.run_time_s) == (START_NS + 777, 0, 0)
    assert (capture.info.coverage.bytes, capture.info.coverage.operations) == (None, None)
    assert [source.kind for source in capture.info.sources] == ["kineto"]


def test_ranks_are_on_one_clock(tmp_path: Path) -> None:
    for rank in (1, 0):
        profile(tmp_path / "p" / f"n_{100 + rank}.17.pt.trace.json", rank=rank, begin_ns=3_000 * rank, pid=100 + rank)
    capture = merged(tmp_path, tmp_path / "p")
    assert (capture.ranks, capture.info.job.nprocs) == ((0, 1), 2)
    assert [(rank, start) for rank, start, _ in spans_of(capture, "step") if start < STEP_NS] == [(0, 0), (1, 3_000)]
    assert any("how far they differ is not known" in text for text in capture.info.warnings)


def test_a_folder_of_tensorflow_profiles_named_by_rank(tmp_path: Path) -> None:
    for rank, path in enumerate(sample("imagenet").profiles):
        (tmp_path / "p" / f"rank{rank}").mkdir(parents=True)
        shutil.copy(path, tmp_path / "p" / f"rank{rank}")
    capture = merged(tmp_path, tmp_path / "p")
    assert capture.ranks == (0, 1)
    (tmp_path / "l").mkdir()
    logged = merged(tmp_path / "l", sample("imagenet").log, more=("--profile", str(tmp_path / "p")))
    found, expected = (
        [(rank, end - start) for rank, start, end in spans_of(each, "step")] for each in (capture, logged)
    )
    assert found == expected
    assert len(found) > 100


def test_phases_of_one_process_are_joined(tmp_path: Path) -> None:
    first = profile(tmp_path / "1" / "a_4711.1.pt.trace.json")
    second = profile(tmp_path / "2" / "a_4711.2.pt.trace.json", begin_ns=10 * STEPS * STEP_NS)
    assert len(spans_of(merged(tmp_path, first, second), "step")) == 2 * STEPS


def test_what_cannot_be_placed_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = ("-o", tmp_path / "p.capture")
    two = [profile(tmp_path / f"x{pid}" / "a.pt.trace.json", pid=pid) for pid in (1, 2)]
    assert "no rank was found for the profile" in said(capfd, "merge", *two, *output)
    empty = kineto.write(tmp_path / "e.pt.trace.json", [kineto.event("aten::add", 0, 10, cat="other")])
    assert f"{empty} shows no steps" in said(capfd, "merge", empty, *output)
    undated = profile(tmp_path / "rank1" / "u.pt.trace.json", generation=3)
    dated = profile(tmp_path / "rank0" / "d.pt.trace.json")
    assert f"{undated} has no date" in said(capfd, "merge", dated, undated, *output)
    assert "there is none: leave it out" in said(capfd, "merge", dated, "--align", "wall", *output)
    assert not (tmp_path / "p.capture").exists()
    capture = merged(tmp_path, undated)
    assert (capture.ranks, capture.info.job.zero_ns) == ((1,), 0)
    assert [start for _, start, _ in spans_of(capture, "step")] == [step * STEP_NS for step in range(STEPS)]


def test_the_summary_judges_nothing_of_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = merged(tmp_path, profile(tmp_path / "a.pt.trace.json"))
    capsys.readouterr()
    assert main(["summary", str(capture.path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "How long this training takes on other storage is not known: no I/O was recorded." in text
    assert "how long the job took is not known" in text
    assert "storage busy" not in text
    assert "reads" not in text
    assert main(["summary", str(capture.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["not_judged"] == found["storage_limit"]["reason"] == "no I/O was recorded"
    io = [found["operations"], found["bytes"], found["io_time_s"]]
    assert {value for part in io for value in part.values()} == {None}
    assert [found[name] for name in ("files", "in_flight_s", "other_io_s")] == [None] * 3
    assert found["loop"]["storage_gain_s"] is None
    assert found["loop"]["compute_pct"] == pytest.approx(100 * COMPUTE_NS / STEP_NS)
    assert found["steps"]["count"] == STEPS
    assert found["loop"]["input_wait_pct"] == pytest.approx(100 * WAIT_NS / STEP_NS)
    for name in ("overlap", "ranks", "steps", "timeline"):
        rows = dxt_replay.table(capture, name)
        of_io = [column for column in rows.columns if column.startswith(("io_", "reads", "writes", "bytes"))]
        assert of_io
        assert rows[of_io].isna().all(axis=None)
    assert dxt_replay.table(capture, "steps")["compute_ns"].sum() == STEPS * COMPUTE_NS
    (finding,) = findings(capture)
    assert (finding.code, finding.title) == ("input-bound", "Training waits for input")
    assert "the cause is not known: no I/O was recorded" in finding.evidence
    assert dict(finding.values) == {"input_wait_pct": pytest.approx(100 * WAIT_NS / STEP_NS)}


def test_the_table_of_several_jobs_has_no_figures_of_its_io(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = merged(tmp_path, profile(tmp_path / "a.pt.trace.json"))
    capsys.readouterr()
    assert main(["summary", str(capture.path), str(capture.path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["jobs"][0]
    assert (row["steps"], row["error"]) == (STEPS, None)
    assert {row[name] for name in ("reads", "bytes_read", "files", "io_s", "traced_pct", "storage_limit_pct")} == {None}
    assert main(["summary", str(capture.path), str(capture.path)]) == 0


def test_the_page_says_it_too(tmp_path: Path) -> None:
    capture = merged(tmp_path, profile(tmp_path / "a.pt.trace.json"))
    assert main(["report", str(capture.path), "-o", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8").partition("<script")[0]
    assert "No I/O was recorded." in page
    assert "I/O in flight" not in page.partition("Words of this page")[0]


@pytest.mark.parametrize("pace", ["steps", "timed"])
def test_there_is_nothing_to_replay(tmp_path: Path, capfd: pytest.CaptureFixture[str], pace: str) -> None:
    capture = merged(tmp_path, profile(tmp_path / "a.pt.trace.json"))
    (tmp_path / "t").mkdir()
    capfd.readouterr()
    output = tmp_path / "r.capture"
    text = said(capfd, "run", capture.path, "--target", tmp_path / "t", "--pace", pace, "-o", output)
    assert "was made of marks or profiles alone, so that there is no I/O to replay: merge them with the job" in text
    assert not output.exists()


def test_steps_without_any_operation_do_not_end_in_a_traceback(tmp_path: Path) -> None:
    """Such as of a log of which --exclude left nothing."""
    spans = [Span("step", start_ns=i * 1000, end_ns=i * 1000 + 900, step=i) for i in range(4)]
    assert storage_limit(build_capture(tmp_path, spans=spans)).saved_ns == 0
