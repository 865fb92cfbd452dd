"""Profiles without a log: a capture has their steps, and says of I/O that none was recorded."""

import json
import shutil

import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.replay.causal.storage_limit import storage_limit
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests import kineto_writer as kineto
from tests.capture_builder import Span, build_capture
from tests.kineto_writer import START_NS

STEP_NS, WAIT_NS, COMPUTE_NS, STEPS = 10_000_000, 3_000_000, 6_000_000, 5
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def profile(path, *, begin_ns=0, rank=None, pid=4711, **options):
    """STEPS steps of STEP_NS, one after the other: WAIT_NS for a batch, and COMPUTE_NS on a GPU at the end."""
    events, own = [], {"pid": pid, "tid": pid}
    for step in range(STEPS):
        end = begin_ns + (step + 1) * STEP_NS
        events += [
            kineto.mark(step, end - STEP_NS, end, **own),
            kineto.event(FETCH, end - STEP_NS, end - STEP_NS + WAIT_NS, cat="user_annotation", **own),
            kineto.launch(end - COMPUTE_NS, end - COMPUTE_NS + 1000, step + 1) | own,
            kineto.kernel("gemm", end - COMPUTE_NS, end, step + 1),
        ]
    around = None if rank is None else {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
    return kineto.write(path, events, around=around, **options)


def merged(tmp_path, *given):
    output = tmp_path / "p.capture"
    assert main(["merge", *map(str, given), "--force", "-o", str(output)]) == 0
    return open_capture(output)


@pytest.fixture
def capture(tmp_path):
    return merged(tmp_path, profile(tmp_path / "a.pt.trace.json", begin_ns=777))


def spans_of(capture, kind):
    """(rank, start, end) of the spans of a kind, in ns of the capture."""
    rows = capture.spans.to_pylist()
    return [(row["rank"], row["start_ns"], row["end_ns"]) for row in rows if row["kind"] == kind]


def test_the_steps_are_those_of_the_profile(capture):
    assert spans_of(capture, "step") == [(0, step * STEP_NS, (step + 1) * STEP_NS) for step in range(STEPS)]
    assert sum(end - start for _, start, end in spans_of(capture, "compute")) == STEPS * COMPUTE_NS
    assert (capture.operation_count(), capture.files.num_rows) == (0, 0)
    job = capture.info.job
    assert (job.zero_ns, job.start_ns, job.run_time_s) == (START_NS + 777, 0, 0)
    assert (capture.info.coverage.bytes, capture.info.coverage.operations) == (None, None)
    assert [source.kind for source in capture.info.sources] == ["kineto"]


def test_ranks_are_on_one_clock_and_phases_of_one_process_are_joined(tmp_path):
    for rank in (1, 0):
        profile(tmp_path / "p" / f"n_{100 + rank}.17.pt.trace.json", rank=rank, begin_ns=3_000 * rank, pid=100 + rank)
    capture = merged(tmp_path, tmp_path / "p")
    assert (capture.ranks, capture.info.job.nprocs) == ((0, 1), 2)
    assert [(rank, start) for rank, start, _ in spans_of(capture, "step") if start < STEP_NS] == [(0, 0), (1, 3_000)]
    assert any("how far they differ is not known" in text for text in capture.info.warnings)
    first = profile(tmp_path / "1" / "a_4711.1.pt.trace.json")
    second = profile(tmp_path / "2" / "a_4711.2.pt.trace.json", begin_ns=10 * STEPS * STEP_NS)
    assert len(spans_of(merged(tmp_path, first, second), "step")) == 2 * STEPS


def test_a_folder_of_tensorflow_profiles_named_by_rank(tmp_path):
    for rank, path in enumerate(sample("imagenet").profiles):
        (tmp_path / "p" / f"rank{rank}").mkdir(parents=True)
        shutil.copy(path, tmp_path / "p" / f"rank{rank}")
    alone, logged = (
        [(rank, end - start) for rank, start, end in spans_of(merged(tmp_path, *given), "step")]
        for given in ([tmp_path / "p"], [sample("imagenet").log, "--profile", tmp_path / "p"])
    )
    assert alone == logged
    assert len(alone) > 100
    assert {rank for rank, _ in alone} == {0, 1}


def said(capfd, *arguments):
    """The error of a command that refuses, in one line."""
    capfd.readouterr()
    assert main([str(each) for each in arguments]) == 2
    text = " ".join(capfd.readouterr().err.split())
    assert text.count("error:") == 1
    return text


def test_what_cannot_be_placed_is_refused(tmp_path, capfd):
    output = ("-o", tmp_path / "p.capture")
    two = [profile(tmp_path / f"x{pid}" / "a.pt.trace.json", pid=pid) for pid in (1, 2)]
    empty = kineto.write(tmp_path / "e.pt.trace.json", [kineto.event("aten::add", 0, 10, cat="other")])
    undated = profile(tmp_path / "rank1" / "u.pt.trace.json", generation=3)
    dated = profile(tmp_path / "rank0" / "d.pt.trace.json")
    for given, text in (
        (two, "no rank was found for the profile"), ([empty], f"{empty} shows no steps"),
        ([dated, undated], f"{undated} has no date"), ([dated, "--align", "wall"], "there is none: leave it out"),
    ):  # fmt: skip
        assert text in said(capfd, "merge", *given, *output)
    assert not (tmp_path / "p.capture").exists()
    capture = merged(tmp_path, undated)
    assert (capture.ranks, capture.info.job.zero_ns) == ((1,), 0)
    assert [start for _, start, _ in spans_of(capture, "step")] == [step * STEP_NS for step in range(STEPS)]


def test_no_command_judges_the_storage(capture, tmp_path, capsys):
    def output(*arguments):
        capsys.readouterr()
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    path = str(capture.path)
    text = " ".join(output("summary", path).split())
    for shown in ("on other storage is not known: no I/O was recorded.", "how long the job took is not known"):
        assert shown in text
    assert not any(hidden in text for hidden in ("storage busy", "reads"))
    found = json.loads(output("summary", path, "--json"))
    assert found["not_judged"] == found["storage_limit"]["reason"] == "no I/O was recorded"
    io = [found["operations"], found["bytes"], found["io_time_s"]]
    assert {value for part in io for value in part.values()} == {None}
    assert [found[name] for name in ("files", "in_flight_s", "other_io_s")] == [None] * 3
    loop = {name: found["loop"][name] for name in ("storage_gain_s", "compute_pct", "input_wait_pct")}
    assert loop == pytest.approx({"storage_gain_s": None, "compute_pct": 60, "input_wait_pct": 30})
    assert found["steps"]["count"] == STEPS
    for name in ("overlap", "ranks", "steps", "timeline"):
        rows = dxt_replay.table(capture, name)
        of_io = [column for column in rows.columns if column.startswith(("io_", "reads", "writes", "bytes"))]
        assert of_io
        assert rows[of_io].isna().all(axis=None)
    assert dxt_replay.table(capture, "steps")["compute_ns"].sum() == STEPS * COMPUTE_NS
    (finding,) = findings(capture)
    assert (finding.code, finding.title) == ("input-bound", "Training waits for input")
    assert "the cause is not known: no I/O was recorded" in finding.evidence
    assert dict(finding.values) == {"input_wait_pct": pytest.approx(30)}
    # Several jobs, and the page.
    row = json.loads(output("summary", path, path, "--json"))["jobs"][0]
    assert (row["steps"], row["error"]) == (STEPS, None)
    assert {row[name] for name in ("reads", "bytes_read", "files", "io_s", "traced_pct", "storage_limit_pct")} == {None}
    output("summary", path, path)
    output("report", path, "-o", str(tmp_path / "p.html"))
    page = (tmp_path / "p.html").read_text(encoding="utf-8").partition("<script")[0]
    assert "No I/O was recorded." in page
    assert "I/O in flight" not in page.partition("Words of this page")[0]


@pytest.mark.parametrize("pace", ["steps", "timed"])
def test_there_is_nothing_to_replay(tmp_path, capfd, capture, pace):
    (tmp_path / "t").mkdir()
    output = tmp_path / "r.capture"
    text = said(capfd, "run", capture.path, "--target", tmp_path / "t", "--pace", pace, "-o", output)
    assert "was made of marks or profiles alone, so that there is no I/O to replay: merge them with the job" in text
    assert not output.exists()


def test_steps_without_any_operation_do_not_end_in_a_traceback(tmp_path):
    """Such as of a log of which --exclude left nothing."""
    spans = [Span("step", start_ns=i * 1000, end_ns=i * 1000 + 900, step=i) for i in range(4)]
    assert storage_limit(build_capture(tmp_path, spans=spans)).saved_ns == 0
