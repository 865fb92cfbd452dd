"""A capture in; what each command prints and leaves, beside what the parts behind it are tested for elsewhere."""

import csv
import gc
import io
import json
import os
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.commands.predicting import rank_counts
from dxt_replay.replay.compare.verdict import THRESHOLDS
from dxt_replay.replay.show.section import MAX_GROUPS
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.stage import check_staged
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import File, Span, build_capture, read, write
from tests.replay.show.page.pages import carried, training
from tests.replay.target.test_stage import staged
from tests.workloads.small_workloads import RANKS, small_overrides


@pytest.fixture
def capture(tmp_path):
    ops = [
        read(0, length=4096, start_ns=10_000, end_ns=40_000),
        read(1, length=0, start_ns=50_000),
        read(1, length=100, start_ns=60_000, end_ns=900_000),
        write(2, length=10, start_ns=1_000_000, rank=1),
        read(0, length=4096, start_ns=10_000, api="MPIIO"),
    ]
    files, spans = ["/data/a", "/data/b c", "/out/w"], [Span("step", 0, 2_000_000, step=0)]
    return build_capture(tmp_path, name="source", files=files, ops=ops, spans=spans)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    files, folder = dxt_replay.sample("imagenet"), tmp_path_factory.mktemp("imagenet")
    return dxt_replay.open_capture(dxt_replay.merge(files.log, folder / "i.capture", profiles=files.profiles).capture)


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


# ------------------------------------------------------------------------ a command line and the program it stands for
PARTS = ["path=/data/*,path=/none", "ranks=0,op=read,api=posix", "from=1us,until=50ms"]
SAME = {
    "summary source.capture": lambda: dxt_replay.tables("source.capture"),
    "summary source.capture --part ranks=1": lambda: dxt_replay.tables(dxt_replay.part("source.capture", ranks="1")),
    f"summary source.capture --part {' --part '.join(map(shlex.quote, PARTS))}": lambda: dxt_replay.tables(
        dxt_replay.part("source.capture", paths=["/data/*", "/none"], ranks="0", operations=["read"],
                        interfaces=["POSIX"], begin="1us", until="50ms")),
    "compare source.capture replay.capture --floor replay.capture again.capture": lambda: dxt_replay.compare(
        "source.capture", "replay.capture", floor=[("replay.capture", "again.capture")]),
    "compare --floor replay.capture again.capture": lambda: dxt_replay.noise_floor(("replay.capture", "again.capture")),
    "run source.capture --target twin --speed 2 --api stdio --cold -o A.capture": lambda: dxt_replay.run(
        "source.capture", "twin", "a.capture", speed=2.0, api="stdio", cold=True),
    "run source.capture --target twin --pace steps --compute spin --repeat 2 -o A.capture": lambda: (
        dxt_replay.run_repeatedly("source.capture", "twin", "a.capture", 2, pace="steps", compute="spin")),
}  # fmt: skip
"""A line and the program that it stands for."""

CHOSEN = ("pace", "speed", "operations", "bytes", "failed", "api", "direct", "lanes", "compute")


def settings(document):
    """What does not differ between two replays: of the document and of each run in it; and the keys."""
    runs = [settings(run) for run in document.get("runs", ())]
    policy = document.get("cache", {}).get("policy")
    return [{key: document.get(key) for key in CHOSEN}, {"cache": policy}, {"keys": sorted(document)}, *runs]


@pytest.mark.parametrize("line", SAME)
def test_a_command_answers_as_its_program_does(line, folder, monkeypatch, capsys):
    """Of a replay what was chosen and what was done; times differ."""
    monkeypatch.chdir(folder)
    done = {"schema_version": 1, **json.loads(json.dumps(SAME[line]().as_json()))}
    capsys.readouterr()
    assert main([*shlex.split(line), "--json"]) in (0, 1)
    shown = json.loads(capsys.readouterr().out)
    of = settings if line.startswith("run") else dict
    assert of(shown) == of(done)


# ------------------------------------------------------------------------------------------------------------ captures
def test_a_log_is_a_capture_as_long_as_somebody_holds_it():
    log = dxt_replay.open_capture(dxt_replay.sample("imagenet").log)
    folder = log.path.parent
    part = dxt_replay.part(log, ranks="0")
    del log
    gc.collect()
    assert folder.exists()
    assert dxt_replay.summary(part).operations.read > 0
    del part
    gc.collect()
    assert not folder.exists()


def test_a_capture_shows_itself_in_a_notebook(tmp_path):
    capture = build_capture(tmp_path / "<i>", files=[File("/a")], ops=[read(0, length=1)])
    assert repr(capture).startswith(f"<Capture {str(capture.path)!r}: 1 ranks, 1 operations, 1 files")
    html = capture._repr_html_()
    assert "<i>" not in html
    assert "&lt;i&gt;" in html
    assert "<th>operations</th><td>1</td>" in html


def test_anonymize_takes_the_key_from_a_file(tmp_path, capture, say):
    (tmp_path / "key").write_bytes(b"a key")
    line = f"anonymize {capture.path} -o {tmp_path}/a.capture --key-file {tmp_path}/key --json"
    assert say(line)["random_key"] is False
    dxt_replay.anonymize(capture, tmp_path / "b.capture", key=b"a key")
    one, other = (open_capture(tmp_path / f"{name}.capture").paths() for name in "ab")
    assert one == other


def test_verify_lists_the_first_differences(tmp_path, say):
    files = [f"/d/{i}" for i in range(30)]
    capture = build_capture(tmp_path, files=files, ops=[read(i, length=9, start_ns=2_000 * i) for i in range(30)])
    staged(capture, tmp_path / "target")
    (capture.path / "spans.parquet").write_bytes(b"")
    line = f"verify {capture.path} {tmp_path}/target"
    places = say(f"{line} --json --sizes-only", status=1)["places"]
    assert [(place["kind"], place["different"]) for place in places] == [("capture", 1), ("twin", 0)]
    for file in (tmp_path / "target" / TWIN_ROOT / "d").iterdir():
        file.write_bytes(b"other")
    out = say(line, status=1)
    assert out.startswith("failed: 31 differences\n")
    assert len([text for text in out.splitlines() if text.endswith(" size 9 5")]) == 20
    assert "and 10 more differences" in out


def test_calibrate_writes_a_model_for_simulate(tmp_path, imagenet, say):
    (tmp_path / "target").mkdir()
    output = tmp_path / "measured.json"
    out = say(f"calibrate --target {tmp_path}/target -o {output} --minutes 0.018 --details")
    titles = ["Calibration", "Cold reads, one in flight", "Other calls, one in flight", "What could not be seen"]
    places = [out.index(f"{title}\n") for title in titles]
    assert places == sorted(places)
    assert "4.00 KiB" in out
    assert os.listdir(tmp_path / "target") == []
    elapsed = [dxt_replay.simulate(imagenet, each).prediction.elapsed_ns for each in ("null", output)]
    assert elapsed == sorted(elapsed)


def test_numbers_of_ranks():
    counts = {"8": [8], "128,256,...,8192": [128, 256, 512, 1024, 2048, 4096, 8192], "1, 3, ..., 30": [1, 3, 9, 27, 30]}
    counts["4,6,...,12,100"] = [4, 6, 8, 10, 12, 100]
    assert {text: rank_counts(text) for text in counts} == counts


def test_stage_says_what_it_would_do_and_what_it_did(tmp_path, say):
    capture = build_capture(tmp_path, files=["/d/a", "/d/b"], ops=[read(0, length=4096), read(1, length=4096)]).path
    target, real = tmp_path / "the target", tmp_path / "real"
    line = f"stage {capture} --target '{target}'"
    target.mkdir()
    assert say(f"{line} --dry-run").startswith(f"Would write 2 files under {target}: 8.00 KiB")
    assert not list(target.iterdir())
    *_, last, empty, following = say(line).splitlines()
    assert last.startswith(f"Staged 2 files under {target}: 8.00 KiB in ")
    assert (empty, following) == ("", f"next: dxt-replay run {capture} --target '{target}' -o replay.capture")
    assert say(line).splitlines()[-3] == "The twin is complete."
    assert say(f"{line} --remove") == f"Removed 2 files from {target}"
    real.mkdir()
    (real / "b").write_bytes(bytes(4096))
    chosen = f"--map /d/b={real}/b --part ranks=0"
    following = say(f"{line} {chosen}").splitlines()[-1]
    assert following == f"next: dxt-replay run {capture} --target '{target}' {chosen} -o replay.capture"


# ----------------------------------------------------------------------------------------------- merge, and many jobs
def test_merge_says_how_many_rows_are_rebuilt_and_leaves_them_out_on_demand(tmp_path, say):
    log, counts = sample("imagenet").log, []
    for option in ("", "--no-reconstruct"):
        output = tmp_path / f"{len(option)}.capture"
        counts.append(say(f"merge {log} -o {output} --json {option}")["operations"])
        assert open_capture(output).operation_count() == sum(counts[-1].values())
    assert counts == [{"traced": 596, "reconstructed": 104}, {"traced": 596, "reconstructed": 0}]
    say(f"merge {log} -o {tmp_path}/a.capture --workers 2", warns=True)
    assert "one process merges a job: --workers shares the jobs of --each alone" in say.err


def test_from_an_archive_of_logs_to_a_table_of_jobs(tmp_path, say):
    archive, output = tmp_path / "archive", tmp_path / "captures"
    for name in ("imagenet", "cosmictagger"):
        (archive / name).mkdir(parents=True)
        shutil.copy(sample(name).log, archive / name / "job.darshan")
    assert f"next: dxt-replay summary {output}" in say(f"merge --each {archive} -o {output}")
    jobs = say(f"summary {output} --sort bytes_read --json")["jobs"]
    assert {job["name"] for job in jobs} == {"imagenet/job", "cosmictagger/job"}
    assert jobs[0]["bytes_read"] > jobs[1]["bytes_read"] > 0
    head, *lines = say(f"summary {output} -o -").splitlines()
    assert (head.startswith("name,job_id,start,program,ranks"), len(lines)) == (True, 2)
    (archive / "bad.darshan").write_bytes(b"no log")
    out = say(f"merge --each {archive} -o {tmp_path}/out", status=1)
    assert "bad.darshan" in out
    assert "captures written 2\n" in out
    assert "1 job could not be read" in say(f"summary {archive}", status=1)


# ----------------------------------------------------------------------------- generate, replay, compare, and the demo
SMALL = ["dataset.num_files_train=8", "dataset.num_files_eval=4", "train.epochs=1", "train.computation_time=0.001"]
KINDS = {
    "default": "npz in sub-folders, evaluation",
    "resnet50_h100": "TFRecord",
    "paper_cosmic_tagger": "HDF5 in chunks, shared by the ranks",
    "dlrm": "indexed binary",
    "llama_70b_zero3": "checkpoints that are written and read",
}
NAMES = [listed.name for listed in dxt_replay.workloads()]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in KINDS)) for name in NAMES])
def test_a_workload_is_generated_staged_replayed_and_equal(name, tmp_path):
    """One of each kind runs in every test; all of them take a minute, by `make test-workloads`."""
    source, twin, replay = (tmp_path / each for each in ("w.capture", "twin", "r.capture"))
    made = dxt_replay.generate(name, RANKS, source, overrides=small_overrides(name)).as_json()
    twin.mkdir()
    dxt_replay.stage(source, twin)
    dxt_replay.run(source, twin, replay, pace="steps")
    comparison = dxt_replay.compare(source, replay)
    # Not the verdict on the times, because a busy machine makes operations late.
    assert (comparison.verdict.similarity, comparison.verdict.exact) == ("pass", "pass"), comparison.headline
    replayed = dxt_replay.summary(replay).as_json()
    assert made["steps"] > 0
    assert sum(replayed["operations"].values()) == made["operations"]
    assert replayed["bytes"] == {"read": made["bytes_read"], "written": made["bytes_written"]}


def test_what_generate_does_not_follow_is_printed_and_kept(tmp_path, say):
    source = tmp_path / "w.capture"
    keys = ["reader.batchsize=3", "reader.pin_memory=false", "reader.file_access=shared", "storage.storage_type=s3"]
    line = f"generate default {' '.join([*SMALL, *keys])} --ranks 1 --seed 7 -o {source}"
    assert "did you mean reader.batch_size?" in say(line)
    info = open_capture(source).info
    warnings = " ".join(info.warnings)
    said = {"reader.batchsize 3 is unknown": True, "reader.file_access 'shared' is without effect": True}
    said["pin_memory"] = False
    assert {text: text in warnings for text in said} == said
    assert [info.made_by[name] for name in ("workload", "seed")] == ["default", 7]
    assert info.made_by["overrides"] == [*SMALL, *keys]
    assert (info.sources[0].kind, len(info.sources[0].sha256)) == ("workload", 64)


def a_run(folder, name, slower=1, file="/a", **more):
    starts = [(k, k * 1_000_000) for k in range(100)]
    ops = [read(0, offset=100 * k, length=100, start_ns=at, end_ns=at + 1000 * slower) for k, at in starts]
    return build_capture(folder, files=[file], ops=ops, name=name, **more)


def test_the_limits_of_compare_are_options_and_a_floor_relaxes_them(tmp_path, say):
    source = a_run(tmp_path, "run")
    line = f"compare {source.path} {a_run(tmp_path, 'replay', 4, replay_of=source).path} --json --fail-under"
    found = say(f"{line} 0.5 --max-elapsed-error 3 --max-drift 7")["thresholds"]
    assert (found["fail_under"], found["elapsed_error_pct"], found["drift_ppm"]) == (0.5, 3, 7)
    say(f"{line} 0.95", status=1)
    found = say(f"{line} 0.95 --floor {source.path} {a_run(tmp_path, 'again', 8).path}")
    assert found["floor"]["pairs"] == [[str(source.path), str(tmp_path / "again.capture")]]
    assert found["floor"]["measures"]["storage.io_time_s"] == {"value": 300, "floor": 700, "within": True}
    relaxed = {each["limit"]: each["allowed"] for each in found["floor"]["relaxed"]}
    assert relaxed["fail_under"] == found["thresholds"]["fail_under"] < 0.95


def test_the_demo_replays_a_bundled_capture_and_says_what_to_do_next(tmp_path, say, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DXT_REPLAY_RUN_SPEED", "10")  # of the processes that it starts
    for name in ("target", "dxt-replay-demo"):
        (tmp_path / name).mkdir()
    main(["demo", "imagenet", "--target", "target", "-o", "out", "--json"])  # a busy machine may fail it
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    comparison = document["comparisons"]["imagenet"]
    assert all(comparison["exact"][name] for name in ("operations", "bytes", "files", "order"))
    assert comparison["similarity"]["workload_cosine"] > 0.999  # some factors are times, ten times shorter here
    assert comparison["thresholds"] == json.loads(json.dumps(asdict(THRESHOLDS))), "those of compare"
    assert "596 reads and writes" in printed.err
    assert (document["output"], document["reports"]) == ("out", {"imagenet": "out/imagenet.html"})
    assert {path.name for path in Path("out").iterdir()} == {
        "imagenet.capture", "imagenet-replay.capture", "imagenet.html",
    }  # fmt: skip
    main(["demo", "cosmictagger", "--target", "target"])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 30
    for command in ("record", "summary", "stage", "run", "compare", "regress"):
        assert f"dxt-replay {command} " in printed[printed.index("Next, your own job") :]
    assert not list(Path("target").iterdir())
    assert not list(Path("dxt-replay-demo").iterdir()), "an earlier directory is left alone"
    kept = Path("dxt-replay-demo-2")
    assert (kept / "cosmictagger.html").stat().st_size > 0
    source, replay = (open_capture(kept / name) for name in ("cosmictagger.capture", "cosmictagger-replay.capture"))
    # 48,359 were traced, the others are reconstructed.
    assert source.operation_count() == replay.operation_count() == 48_359 + 106
    assert replay.info.made_by["result"]["failed"] == 0


# ----------------------------------------------------------------------------------- tables, figures, page and exports
def test_tables_are_files(capture, tmp_path, say):
    rows = rows_of(say(f"summary {capture.path} --by file -o -"))
    found = [(row["group"], row["bytes_read"]) for row in rows]
    assert found == [("/data/a", "4096"), ("/data/b c", "100"), ("/out/w", "0")]
    totals = {row["name"]: row["value"] for row in rows_of(say(f"summary {capture.path} -o -"))}
    assert totals["operations.read"] == "3"
    for table in ("sizes", "rank-files"):
        say(f"summary {sample('imagenet').log} --show {table} -o {tmp_path}/{table}.parquet")
    assert pq.read_table(tmp_path / "sizes.parquet").num_rows > 0
    assert "path" in pq.read_schema(tmp_path / "rank-files.parquet").names


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda of: dxt_replay.table(of, "step"), "'step' is not a table: choose findings, "),
        (lambda of: dxt_replay.figure(of, "pie"), "'pie' is not a figure: choose timeline, "),
        (lambda of: dxt_replay.figure(of, "lag"), "is not a replay"),
    ],
)
def test_a_table_or_figure_that_there_is_not_is_a_usage_error(imagenet, ask, message):
    with pytest.raises(dxt_replay.UsageError, match=message):
        ask(imagenet)


def test_tables_are_data_frames_figures_plotlys_and_the_timeline_shows_each_operation(imagenet, tmp_path):
    for name in set(dxt_replay.TABLES) - {"tfrecords", "datasets", "requests"}:
        frame = dxt_replay.table(imagenet, name)
        assert isinstance(frame, pd.DataFrame)
        assert len(frame), name
    for name in set(dxt_replay.FIGURES) - {"lag"}:
        figure = dxt_replay.figure(imagenet, name)
        assert (len(figure.data) > 0, bool(figure.layout.xaxis.title.text)) == (True, True)
    ops = [read(0, length=4096, start_ns=0, end_ns=1_000_000), write(0, length=1, rank=1, start_ns=5_000_000)]
    spans = [Span("compute", start_ns=2_000_000, end_ns=3_000_000, step=0)]
    figure = dxt_replay.figure(build_capture(tmp_path, files=["/<b>.bin"], ops=ops, spans=spans), "timeline")
    reads = next(trace for trace in figure.data if trace.name == "read")
    assert (list(reads.x), reads.y[0]) == ([0.001], "r0 lane 0")
    assert reads.hovertext[0] == "read, 1 ms, 4.00 KiB<br>/&lt;b&gt;.bin"
    assert {"r0 lane 0", "r1 lane 0"} <= set(figure.layout.yaxis.categoryarray)


def test_all_rows_are_in_json_and_a_terminal_shows_those_that_moved_most(tmp_path, say):
    ops = [read(file, length=rank + file, rank=rank, start_ns=file) for rank in range(10) for file in range(1, 8)]
    capture = build_capture(tmp_path, files=[f"/data/{number}" for number in range(8)], ops=ops).path
    found = say(f"summary {capture} --show rank-files --show steps --json")
    assert {name: len(rows) for name, rows in found["tables"].items()} == {"rank-files": len(ops), "steps": 0}
    lines = say(f"summary {capture} --show rank-files").splitlines()
    shown = [line.split() for line in lines if line.startswith("/data/")]
    most = sorted(ops, key=lambda op: (-op.length, op.rank, op.file_id))[:MAX_GROUPS]
    assert [(words[0], int(words[1])) for words in shown] == [(f"/data/{op.file_id}", op.rank) for op in most]
    assert f"and {len(ops) - MAX_GROUPS} more: --json, or -o FILE.csv, has all" in lines


def test_files_that_are_not_on_this_machine_are_one_line(tmp_path, say):
    (tmp_path / "1").write_bytes((3).to_bytes(8, "little") + bytes(11))
    files = [File(f"/recorded/{name}", format="tfrecord") for name in "12"]
    ops = [read(0, length=1, start_ns=0), read(1, length=1, start_ns=1)]
    line = f"summary {build_capture(tmp_path, files=files, ops=ops).path} --show tfrecords"
    say(line, status=2)
    assert ("2 files" in say.err, say.err.count("/recorded/"), "--map PREFIX=DIR" in say.err) == (True, 1, True)
    printed = say(f"{line} --map /recorded={tmp_path}")
    assert "/recorded/1" in printed
    assert "1 file is not on this machine" in printed


def test_what_storage_costs_a_training_is_arithmetic(tmp_path, say):
    s, parts = 10**9, (("step", 0, 10), ("input_wait", 0, 4), ("compute", 4, 10))
    spans = [Span(kind, n * s + a * s // 10, n * s + b * s // 10, step=n) for n in range(4) for kind, a, b in parts]
    ops = [read(0, length=1, start_ns=number * s, end_ns=number * s + 3 * s // 10) for number in range(4)]
    capture = build_capture(tmp_path, files=["/a"], ops=ops, spans=spans).path
    first = say(f"summary {capture}")
    assert first.startswith("Training of 4 steps on 1 rank; the whole job took ")
    assert "waits for input 40.0 % of the steady loop." in first
    assert "limits this training by 30.0 %: with infinitely fast storage it would take 2.800 s instead of 4." in first
    assert "compute 85.7 % of it instead of 60.0 %." in first
    found = say(f"summary {capture} --show storage-limit --json")["tables"]["storage-limit"][2]
    assert (found["quantity"], found["multiple"], found["elapsed_ns"]) == ("speed", 1.0, 4 * s)
    assert found["above_fastest_pct"] == pytest.approx(42.857, abs=0.001)
    assert found["utilisation_pct"] == pytest.approx(60.0)


def test_what_is_not_known_of_a_job_is_said_first(tmp_path, say):
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=0.0, start_ns=10**18), ranks=(0,))
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)], info=info).path
    assert say(f"summary {capture}").startswith("A run on 1 rank; how long the job took is not known.")
    assert say(f"summary {capture} --json")["job"]["run_time_s"] is None
    counters = {"posix_reads": 3, "posix_writes": 2, "posix_bytes_read": 4096, "posix_bytes_written": 0}
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,))
    lines = say(f"summary {build_capture(tmp_path, files=[File('/a', counters=counters)], info=info, name='c').path}")
    assert lines.startswith("No DXT trace")
    assert "\nPOSIX 3 2 4.00 KiB " in lines


def test_report_writes_one_page_of_one_capture_or_two(tmp_path, say):
    source, replay = training(tmp_path, "source").path, training(tmp_path, "again", delay_ns=3_000, due=True).path
    output = tmp_path / "out" / "report.html"
    output.parent.mkdir()
    say(f"report {source} {replay} --different-runs -o {output} --floor {source} {replay}")
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]
    page = output.read_text(encoding="utf-8")
    assert set(carried(page, "summary")) == {"schema_version", "source", "replay"}
    assert "two runs of the job from each other" in page
    assert "open it in a browser" in say(f"report {source} -o {output} --force --part ranks=1,op=read,from=150ms")
    page = output.read_text(encoding="utf-8")
    assert carried(page, "data")["timelines"]["source"]["ranks"] == [1] * 4
    assert 0 < carried(page, "summary")["source"]["operations"]["read"] < 70


def test_an_export_is_a_file_and_an_object_that_names_it(capture, tmp_path, say):
    chrome, log, line = tmp_path / "t.json.gz", tmp_path / "x.darshan", f"export {capture.path}"
    assert say(f"{line} --to chrome -o {chrome} --json") == {
        "schema_version": 1, "format": "chrome", "output": str(chrome), "operations": 5, "left_out": {}, "notes": [],
        "files": [{"path": str(chrome), "entries": 6, "bytes": chrome.stat().st_size}],
    }  # fmt: skip
    assert say(f"{line} --to darshan -o {log} --json")["files"][0]["entries"] == 5
    assert sum(row["origin"] == "traced" for row in rows_of(say(f"export {log} --to csv -o -"))) == 5
    assert "Wrote 5 operations as csv to " in say(f"{line} -o {tmp_path}/t.csv")
    text = say(f"{line} --to csv -o -")
    assert text.encode() == (tmp_path / "t.csv").read_bytes()
    assert [row["path"] for row in rows_of(text)] == ["/data/a", "/data/a", "/data/b c", "/data/b c", "/out/w"]


def test_fio_finds_the_files_where_stage_puts_them(capture, tmp_path, say):
    target, output = tmp_path / "target", tmp_path / "out"
    target.mkdir()
    say(f"stage {capture.path} --target {target}")
    result = say(f"export {capture.path} --to fio -o {output} --target {target} --json")
    assert (result["operations"], result["left_out"]) == (3, {"not_replayed": 1, "zero_length": 1})
    lines = (output / "rank-0-lane-0.iolog").read_text().splitlines()
    added = [output / line.split()[1] for line in lines if line.endswith(" add")]
    placed = {placement.file_id: Path(os.fsdecode(placement.path)) for placement in check_staged(capture, target)}
    assert [path.resolve() for path in added] == [placed[0], placed[1]]
    assert all(path.is_file() for path in added)
    assert str(placed[2]) in (output / "rank-1-lane-0.iolog").read_text()
