"""What single commands print and leave, beside what the parts behind them are tested for elsewhere."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dxt_replay
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.replay.commands import predicting
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show.section import MAX_GROUPS
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.stage import check_staged
from dxt_replay.traces.part import Part
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import File, Span, build_capture, read, write
from tests.replay.causal.test_model import FAST, derived
from tests.replay.show.page.pages import Elements, carried, training
from tests.replay.target.test_stage import staged
from tests.simulated_application import US, Application, Storage
from tests.simulated_application import run as simulated

SMALL = ("dataset.num_files_train=8", "dataset.num_files_eval=4", "train.epochs=1", "train.computation_time=0.001")
Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs a command that ends with `status` and no word on stderr; what it printed."""

    def said(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == status
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return said


def test_anonymize_takes_the_key_from_a_file(tmp_path: Path, say: Say) -> None:
    capture = build_capture(tmp_path, files=["/data/ann/a.npz"], ops=[read(0, length=4096, start_ns=10)])
    (tmp_path / "key").write_bytes(b"a key")
    out = say("anonymize", capture.path, "-o", tmp_path / "a.capture", "--key-file", tmp_path / "key", "--json")
    assert json.loads(out)["random_key"] is False
    dxt_replay.anonymize(capture, tmp_path / "b.capture", key=b"a key")
    one, other = (open_capture(tmp_path / f"{name}.capture").paths() for name in "ab")
    assert one == other


def test_transform_says_what_changed_and_what_was_assumed(tmp_path: Path, say: Say) -> None:
    made, output = simulated(Application(depth=4, readers=2, steps=20), Storage(latency_ns=300 * US)), tmp_path / "o"
    capture = build_capture(tmp_path, files=["/data/train"], ops=made.ops, spans=made.spans)
    out = say("transform", capture.path, "-o", output, "--transfer-size", "512KiB", "--compute-speed", 2)
    text = " ".join(out.split())
    assert "reads 60 32" in text
    assert "all time of the training thread between its events is compute" in text
    assert out.rstrip().endswith(f"next: dxt-replay stage {output} --target TARGET")
    assert open_capture(output).operation_count() == 32


def test_verify_lists_the_first_differences(tmp_path: Path, say: Say) -> None:
    files = [f"/d/{i}" for i in range(30)]
    capture = build_capture(tmp_path, files=files, ops=[read(i, length=9, start_ns=2_000 * i) for i in range(30)])
    staged(capture, tmp_path / "target")
    (capture.path / "spans.parquet").write_bytes(b"")
    words = ("verify", capture.path, tmp_path / "target")
    found = json.loads(say(*words, "--json", "--sizes-only", status=1))
    assert not found["passed"]
    assert [place["kind"] for place in found["places"]] == ["capture", "twin"]
    assert [each["file"] for each in found["places"][0]["differences"]] == ["spans.parquet"]
    assert found["places"][1]["different"] == 0
    for file in (tmp_path / "target" / TWIN_ROOT / "d").iterdir():
        file.write_bytes(b"other")
    out = say(*words, status=1)
    assert out.startswith("failed: 31 differences\n")
    assert len([line for line in out.splitlines() if line.split()[-3:] == ["size", "9", "5"]]) == 20
    assert "and 10 more differences" in out


def test_calibrate_writes_a_model_for_simulate(tmp_path: Path, say: Say) -> None:
    target, output, sources = tmp_path / "target", tmp_path / "measured.json", sample("cosmictagger")
    target.mkdir()
    out = say("calibrate", "--target", target, "-o", output, "--minutes", "0.04", "--details")
    titles = ["Calibration", "Cold reads, one in flight", "Other calls, one in flight", "What could not be seen"]
    places = [out.index(f"{title}\n") for title in titles]
    assert places == sorted(places)
    assert "4.00 KiB" in out
    assert os.listdir(target) == []
    dxt_replay.merge(sources.log, tmp_path / "c.capture", profiles=sources.profiles)
    elapsed = [dxt_replay.simulate(tmp_path / "c.capture", each).prediction.elapsed_ns for each in ("null", output)]
    assert elapsed == sorted(elapsed)


def test_stage_says_what_it_would_do_and_what_it_did(tmp_path: Path, say: Say) -> None:
    capture = build_capture(tmp_path, files=["/d/a", "/d/b"], ops=[read(0, length=4096), read(1, length=4096)])
    target, real = tmp_path / "the target", tmp_path / "real"
    words = ("stage", capture.path, "--target", target)
    out = say(*words, "--dry-run")
    assert out.startswith(f"Would write 2 files under {target}: 8.00 KiB")
    assert "staged" not in out
    assert not target.exists()
    target.mkdir()
    *_, last, empty, following = say(*words).splitlines()
    assert last.startswith(f"Staged 2 files under {target}: 8.00 KiB in ")
    assert (empty, following) == ("", f"next: dxt-replay run {capture.path} --target '{target}' -o replay.capture")
    assert say(*words).splitlines()[-3] == "The twin is complete."
    assert say(*words, "--remove") == f"Removed 2 files from {target}\n"
    real.mkdir()
    (real / "b").write_bytes(bytes(4096))
    chosen = ["--map", f"/d/b={real / 'b'}", "--part", "ranks=0"]
    argv = shlex.split(say(*words, *chosen).splitlines()[-1].removeprefix("next: dxt-replay "))
    assert argv == ["run", str(capture.path), "--target", str(target), *chosen, "-o", "replay.capture"]


# ----------------------------------------------------------------------------------------------- merge, and many jobs
def test_merge_says_how_many_rows_are_rebuilt_and_leaves_them_out_on_demand(
    tmp_path: Path, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    log, counts = sample("imagenet").log, []
    for option in ((), ("--no-reconstruct",)):
        output = tmp_path / f"{len(option)}.capture"
        counts.append(json.loads(say("merge", log, "-o", output, "--json", *option))["operations"])
        assert open_capture(output).operation_count() == sum(counts[-1].values())
    assert counts == [{"traced": 596, "reconstructed": 104}, {"traced": 596, "reconstructed": 0}]
    assert main(["merge", str(log), "-o", str(tmp_path / "a.capture"), "--workers", "2"]) == 0
    assert "one process merges a job: --workers shares the jobs of --each alone" in capsys.readouterr().err


def test_from_an_archive_of_logs_to_a_table_of_jobs(tmp_path: Path, say: Say) -> None:
    archive, output = tmp_path / "archive", tmp_path / "captures"
    for name in ("imagenet", "cosmictagger"):
        (archive / name).mkdir(parents=True)
        shutil.copy(sample(name).log, archive / name / "job.darshan")
    out = say("merge", "--each", archive, "-o", output)
    assert "captures written                    2" in out
    assert f"next: dxt-replay summary {output}" in out
    jobs = json.loads(say("summary", output, "--sort", "bytes_read", "--json"))["jobs"]
    assert {job["name"] for job in jobs} == {"imagenet/job", "cosmictagger/job"}
    assert jobs[0]["bytes_read"] > jobs[1]["bytes_read"] > 0
    assert "2 jobs read" in say("summary", output)
    head, *lines = say("summary", output, "-o", "-").splitlines()
    assert (head.startswith("name,job_id,start,program,ranks"), len(lines)) == (True, 2)
    (archive / "bad.darshan").write_bytes(b"no log")
    out = say("merge", "--each", archive, "-o", tmp_path / "out", status=1)
    assert "bad.darshan" in out
    assert "captures written                    2" in out
    assert "1 job could not be read" in say("summary", archive, status=1)


def test_a_table_of_one_capture_as_parquet(tmp_path: Path, say: Say) -> None:
    for table in ("sizes", "rank-files"):
        say("summary", sample("imagenet").log, "--show", table, "-o", tmp_path / f"{table}.parquet")
    assert pq.read_table(tmp_path / "sizes.parquet").num_rows > 0
    assert "path" in pq.read_schema(tmp_path / "rank-files.parquet").names


# ------------------------------------------------------------------------------------------------------------- report
def test_report_writes_one_page_of_one_capture_or_two(tmp_path: Path, say: Say) -> None:
    source, replay = training(tmp_path, "source"), training(tmp_path, "again", delay_ns=3_000, due=True)
    output, both = tmp_path / "out" / "report.html", ("report", source.path, replay.path, "--different-runs")
    output.parent.mkdir()
    said = say("report", source.path, "-o", output)
    assert str(output) in said
    assert "open it in a browser" in said
    assert Elements(output.read_text(encoding="utf-8")).open == []
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]
    say(*both, "-o", output, "--force", "--floor", source.path, replay.path)
    page = output.read_text(encoding="utf-8")
    assert {"comparison"} <= {section["id"] for section in Elements(page).of("section")}
    assert set(carried(page, "summary")) == {"schema_version", "source", "replay"}
    assert "two runs of the job from each other" in page
    say("report", source.path, "-o", output, "--force", "--part", "ranks=1,op=read,from=150ms,until=200ms")
    page = output.read_text(encoding="utf-8")
    assert carried(page, "data")["timelines"]["source"]["ranks"] == [1] * 4
    assert 0 < carried(page, "summary")["source"]["operations"]["read"] < 60


# ----------------------------------------------------------------------------------------------------------- generate
def test_a_workload_is_generated_staged_replayed_and_equal(tmp_path: Path, say: Say) -> None:
    source, twin, replay = (tmp_path / name for name in ("w.capture", "twin", "r.capture"))
    out = say("generate", "default", *SMALL, "--ranks", "2", "-o", source)
    assert out.startswith("Generated 2 ranks, ")
    assert out.endswith(f"next: dxt-replay stage {source} --target twin\n")
    twin.mkdir()
    say("stage", source, "--target", twin)
    say("run", source, "--target", twin, "-o", replay, "--pace", "steps")
    say("compare", source, replay)


def test_what_generate_does_not_follow_is_printed_and_kept(tmp_path: Path, say: Say) -> None:
    source = tmp_path / "w.capture"
    keys = ["reader.batchsize=3", "reader.pin_memory=false", "reader.file_access=shared", "storage.storage_type=s3"]
    out = say("generate", "default", *SMALL, *keys, "--ranks", "1", "--seed", 7, "-o", source)
    for title in ("Unknown keys", "Without effect", "Not expressed by the capture", "Keys that change no request"):
        assert f"\n{title}\n" in out
    assert "did you mean reader.batch_size?" in out
    info = open_capture(source).info
    warnings = " ".join(info.warnings)
    assert "reader.batchsize 3 is unknown" in warnings
    assert "reader.file_access 'shared' is without effect" in warnings
    assert "pin_memory" not in warnings
    assert [info.made_by[name] for name in ("workload", "seed")] == ["default", 7]
    assert info.made_by["overrides"] == [*SMALL, *keys]
    assert (info.sources[0].kind, len(info.sources[0].sha256)) == ("workload", 64)


def test_the_list_of_workloads_says_what_each_is(say: Say) -> None:
    workloads = {each["name"]: each for each in json.loads(say("generate", "--list", "--json"))["workloads"]}
    assert "3D U-Net" in workloads["unet3d_h100"]["title"]
    assert workloads["llama3_8b"]["needs_bytes_per_s"] is None
    needed = {name: round(each["needs_bytes_per_s"] / 1e6) for name, each in workloads.items() if each["compute_s"]}
    published = {
        "unet3d_h100": 3177, "resnet50_a100": 105, "cosmoflow_h100": 808, "retinanet_b200": 163, "flux_b200": 77,
    }  # fmt: skip
    assert published.items() <= needed.items()


# ------------------------------------------------------------------------------------------------------------ summary
@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    ops = [
        read(0, length=4096, start_ns=10_000, end_ns=40_000),
        read(1, length=0, start_ns=50_000),
        read(1, length=100, start_ns=60_000, end_ns=900_000),
        write(2, length=10, start_ns=1_000_000, rank=1),
        read(0, length=4096, start_ns=10_000, api="MPIIO"),
    ]
    files, spans = ["/data/a", "/data/b c", "/out/w"], [Span("step", 0, 2_000_000, step=0)]
    return build_capture(tmp_path, name="source", files=files, ops=ops, spans=spans)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_totals_and_groups_as_csv(capture: Capture, say: Say) -> None:
    rows = rows_of(say("summary", capture.path, "--by", "file", "-o", "-"))
    assert [(row["group"], row["bytes_read"]) for row in rows] == [
        ("/data/a", "4096"), ("/data/b c", "100"), ("/out/w", "0"),
    ]  # fmt: skip
    totals = {row["name"]: row["value"] for row in rows_of(say("summary", capture.path, "-o", "-"))}
    assert totals["operations.read"] == "3"


def test_a_part_is_that_of_the_library(capture: Capture, say: Say) -> None:
    parts = ["path=/data/*,path=/none", "ranks=0,op=read,api=posix", "from=1us,until=1ms"]
    words = [word for part in parts for word in ("--part", part)]
    found = json.loads(say("summary", capture.path, *words, "--json"))
    assert found.pop("schema_version") == 1
    assert found == json.loads(json.dumps(dxt_replay.tables(part_of(capture, Part.named(parts))).as_json()))
    assert found["bytes"] == {"read": 4196, "written": 0}


def test_all_rows_are_in_json_and_a_terminal_shows_those_that_moved_most(tmp_path: Path, say: Say) -> None:
    ops = [read(file, length=rank + file, rank=rank, start_ns=file) for rank in range(10) for file in range(1, 8)]
    capture = build_capture(tmp_path, files=[f"/data/{number}" for number in range(8)], ops=ops)
    found = json.loads(say("summary", capture.path, "--show", "rank-files", "--show", "steps", "--json"))
    assert {name: len(rows) for name, rows in found["tables"].items()} == {"rank-files": len(ops), "steps": 0}
    lines = say("summary", capture.path, "--show", "rank-files").splitlines()
    shown = [line.split() for line in lines if line.strip().startswith("/data/")]
    most = sorted(ops, key=lambda op: (-op.length, op.rank, op.file_id))[:MAX_GROUPS]
    assert [(words[0], int(words[1])) for words in shown] == [(f"/data/{op.file_id}", op.rank) for op in most]
    assert f"and {len(ops) - MAX_GROUPS} more: --json, or -o FILE.csv, has all" in lines


def test_files_that_are_not_on_this_machine_are_one_line(
    tmp_path: Path, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "1").write_bytes((3).to_bytes(8, "little") + bytes(11))
    files = [File(f"/recorded/{name}", format="tfrecord") for name in "12"]
    capture = build_capture(tmp_path, files=files, ops=[read(0, length=1, start_ns=0), read(1, length=1, start_ns=1)])
    assert main(["summary", str(capture.path), "--show", "tfrecords"]) == 2
    error = capsys.readouterr().err
    assert ("2 files" in error, error.count("/recorded/"), "--map PREFIX=DIR" in error) == (True, 1, True)
    printed = say("summary", capture.path, "--show", "tfrecords", "--map", f"/recorded={tmp_path / 'here'}")
    assert "/recorded/1" in printed
    assert "1 file is not on this machine" in printed


def test_the_first_lines_of_a_training_say_what_storage_costs(tmp_path: Path, say: Say) -> None:
    s, parts = 10**9, (("step", 0, 10), ("input_wait", 0, 4), ("compute", 4, 10))
    spans = [Span(kind, n * s + a * s // 10, n * s + b * s // 10, step=n) for n in range(4) for kind, a, b in parts]
    ops = [read(0, length=1, start_ns=number * s, end_ns=number * s + 3 * s // 10) for number in range(4)]
    capture = build_capture(tmp_path, files=["/a"], ops=ops, spans=spans)
    first = " ".join(say("summary", capture.path).split("Job")[0].split())
    assert first.startswith("Training of 4 steps on 1 rank; the whole job took ")
    for sentence in (
        "waits for input 40.0 % of the steady loop.",
        "limits this training by 30.0 %: with infinitely fast storage it would take 2.800 s instead of 4.000 s",
        "compute 85.7 % of it instead of 60.0 %.",
    ):
        assert sentence in first
    found = json.loads(say("summary", capture.path, "--show", "storage-limit", "--json"))
    assert found["storage_limit"]["limit_pct"] == pytest.approx(30.0)
    recorded = found["tables"]["storage-limit"][2]
    assert (recorded["quantity"], recorded["multiple"], recorded["elapsed_ns"]) == ("speed", 1.0, 4 * s)
    assert recorded["above_fastest_pct"] == pytest.approx(42.857, abs=0.001)
    assert recorded["utilisation_pct"] == pytest.approx(60.0)
    text = " ".join(say("summary", capture.path, "--show", "storage-limit").split())
    assert "From 21 times the recorded speed on, storage costs at most 2 %." in text


def test_what_is_not_known_of_a_job_is_said_first(tmp_path: Path, say: Say) -> None:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=0.0, start_ns=10**18), ranks=(0,))
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)], info=info)
    shown = " ".join(say("summary", capture.path).split())
    assert shown.startswith("A run on 1 rank; how long the job took is not known.")
    assert json.loads(say("summary", capture.path, "--json"))["job"]["run_time_s"] is None
    counters = {"posix_reads": 3, "posix_writes": 2, "posix_bytes_read": 4096, "posix_bytes_written": 0}
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,))
    capture = build_capture(tmp_path, files=[File("/a", counters=counters)], info=info, name="counted")
    lines = say("summary", capture.path).splitlines()
    assert lines[0].startswith("No DXT trace")
    assert any(line.split()[:5] == ["POSIX", "3", "2", "4.00", "KiB"] for line in lines)


# ------------------------------------------------------------------------------------------------------------ compare
def a_run(folder: Path, name: str, slower: int = 1, file: str = "/a", **more: Any) -> Capture:
    starts = [(k, k * 1_000_000) for k in range(100)]
    ops = [read(0, offset=100 * k, length=100, start_ns=at, end_ns=at + 1000 * slower) for k, at in starts]
    return build_capture(folder, files=[file], ops=ops, name=name, **more)


def test_the_limits_of_compare_are_options(tmp_path: Path, say: Say) -> None:
    source = a_run(tmp_path, "run")
    words = ("compare", source.path, a_run(tmp_path, "replay", 4, replay_of=source).path, "--fail-under")
    found = json.loads(say(*words, 0.5, "--max-elapsed-error", 3, "--max-drift", 7, "--json"))["thresholds"]
    assert (found["fail_under"], found["elapsed_error_pct"], found["drift_ppm"]) == (0.5, 3, 7)
    text = " ".join(say(*words, 0.95, status=1).split())
    assert text.startswith("FAILED: the replay did the same work: 100 of 100 operations")
    assert "not at least 0.95 as --fail-under demands" in text
    floor = (*words, 0.95, "--floor", source.path, a_run(tmp_path, "again", 8).path)
    text = " ".join(say(*floor).split())
    assert "instead of 0.9500, which two runs of the job do not meet either" in text
    assert "I/O time per rank 300.0 % 700.0 % within" in text
    found = json.loads(say(*floor, "--json"))
    assert found["floor"]["pairs"] == [[str(source.path), str(tmp_path / "again.capture")]]
    assert found["floor"]["measures"]["storage.io_time_s"] == {"value": 300, "floor": 700, "within": True}
    relaxed = {each["limit"]: each["allowed"] for each in found["floor"]["relaxed"]}
    assert relaxed["fail_under"] == found["thresholds"]["fail_under"] < 0.95
    alone = ("compare", *floor[-3:])
    assert json.loads(say(*alone, "--json"))["measures"]["storage.io_time_s"] == 700
    assert "I/O time per rank 700.0 %" in " ".join(say(*alone).split())


def test_two_different_runs_are_named_as_such_and_not_judged(tmp_path: Path, say: Say) -> None:
    one, other = a_run(tmp_path, "run"), a_run(tmp_path, "other", 2, "/b")
    found = json.loads(say("compare", one.path, other.path, "--different-runs", "--json"))
    assert (found["relation"], found["workload"]["verdict"]) == ("different runs", "skipped")
    assert {found["verdict"][block] for block in ("similarity", "exact", "timing")} == {"skipped"}
    assert found["headline"].startswith("Two different runs")
    assert found["exact"]["files"] is False
    say("compare", one.path, other.path, "--different-runs", "--fail-under", 0.999, status=1)


# ----------------------------------------------------------------------------------------------------------- simulate
@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", [8]),
        ("128,256,...,8192", [128, 256, 512, 1024, 2048, 4096, 8192]),
        ("1, 3, ..., 30", [1, 3, 9, 27, 30]),
        ("4,6,...,12,100", [4, 6, 8, 10, 12, 100]),
    ],
)
def test_numbers_of_ranks(text: str, counts: list[int]) -> None:
    assert predicting.rank_counts(text) == counts


def test_a_check_agrees_widens_the_interval_or_contradicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    """By how long a replay of a window takes, in place of which a number of times its recorded time stands."""
    capture, model, times = derived(tmp_path, Application(steps=20), FAST)[0].path, tmp_path / "model.yaml", [1.0]
    model.write_text("storage_model: 1\nname: ours\noperations: {read: 1ms, open: 1ms}\n")

    def replayed_ns(part: Capture, target: Path, speed: float) -> int:
        return round(times[0] * (part.time_span_ns[1] - part.time_span_ns[0]))

    monkeypatch.setattr(predicting, "_replayed_ns", replayed_ns)
    words = ("simulate", capture, "--storage", model)
    alone = json.loads(say(*words, "--json"))
    assert alone["check"] is None
    times[0] = alone["elapsed_s"] / alone["recorded_s"]
    printed = " ".join(say(*words, "--check", tmp_path).split())
    assert "Checked: All of it took" in printed
    assert "they agree" in printed
    times[0] = 1.4
    found = dxt_replay.simulate(capture, model, check=str(tmp_path), check_seconds=0.1).as_json()
    assert (found["check"]["verdict"], found["check"]["steps"][0]) == ("differs", 0)
    assert found["interval_s"][1] >= found["elapsed_s"] * (1 + found["check"]["difference_pct"] / 100) * 0.999
    assert "the interval is wider for that" in " ".join(say(*words, "--check", tmp_path).split())
    times[0] = 3.0
    assert main([*map(str, words), "--check", str(tmp_path)]) == 1
    refused = capsys.readouterr()
    assert refused.out == ""
    assert "there is no prediction: the replayed window took" in refused.err
    assert "Calibrate it again" in refused.err


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_check_replays_below_the_target_and_leaves_nothing(tmp_path: Path, is_staged: bool) -> None:
    capture, target = derived(tmp_path, Application(steps=20), FAST)[0].path, tmp_path / "target"
    target.mkdir()
    if is_staged:
        dxt_replay.stage(capture, target)
    before = sorted(target.rglob("*"))
    assert predicting._replayed_ns(dxt_replay.part(capture, steps="0-3"), target, 1.0) > 0
    assert sorted(target.rglob("*")) == before


# ------------------------------------------------------------------------------------------------------------- export
def test_an_export_is_a_file_and_an_object_that_names_it(capture: Capture, tmp_path: Path, say: Say) -> None:
    chrome, log = tmp_path / "t.json.gz", tmp_path / "x.darshan"
    assert json.loads(say("export", capture.path, "--to", "chrome", "-o", chrome, "--json")) == {
        "schema_version": 1, "format": "chrome", "output": str(chrome), "operations": 5, "left_out": {}, "notes": [],
        "files": [{"path": str(chrome), "entries": 6, "bytes": chrome.stat().st_size}],
    }  # fmt: skip
    with gzip.open(chrome) as file:
        assert sum(event["ph"] == "X" for event in json.load(file)["traceEvents"]) == 6
    result = json.loads(say("export", capture.path, "--to", "darshan", "-o", log, "--json"))
    assert (result["format"], result["operations"], result["files"][0]["entries"]) == ("darshan", 5, 5)
    modules = open_log(log).modules
    assert (modules["DXT_POSIX"].version, modules["DXT_MPIIO"].version) == (1, 2)
    assert any("lanes are not kept" in note for note in result["notes"])
    assert sum(row["origin"] == "traced" for row in rows_of(say("export", log, "--to", "csv", "-o", "-"))) == 5
    assert "Wrote 5 operations as csv to " in say("export", capture.path, "-o", tmp_path / "t.csv")
    text = say("export", capture.path, "--to", "csv", "-o", "-")
    assert text.encode() == (tmp_path / "t.csv").read_bytes()
    assert [row["path"] for row in rows_of(text)] == ["/data/a", "/data/a", "/data/b c", "/data/b c", "/out/w"]


def test_fio_finds_the_files_where_stage_puts_them(capture: Capture, tmp_path: Path, say: Say) -> None:
    target, output = tmp_path / "target", tmp_path / "out"
    target.mkdir()
    say("stage", capture.path, "--target", target)
    result = json.loads(say("export", capture.path, "--to", "fio", "-o", output, "--target", target, "--json"))
    assert (result["operations"], result["left_out"]) == (3, {"not_replayed": 1, "zero_length": 1})
    lines = (output / "rank-0-lane-0.iolog").read_text().splitlines()
    added = [output / line.split()[1] for line in lines if line.endswith(" add")]
    placed = {placement.file_id: Path(os.fsdecode(placement.path)) for placement in check_staged(capture, target)}
    assert [path.resolve() for path in added] == [placed[0], placed[1]]
    assert all(path.is_file() for path in added)
    assert str(placed[2]) in (output / "rank-1-lane-0.iolog").read_text()
