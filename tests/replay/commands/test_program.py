"""The program around the commands: options, ends, streams, what it imports, and what `import dxt_replay` offers."""

import ast
import inspect
import json
import os
import subprocess
import sys
import threading
import unicodedata

import click
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import cli, main
from dxt_replay.replay.commands.session import ending_together, of_run, print_json, progress
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.run.feeder import Progress
from dxt_replay.traces.errors import CaptureError, DxtReplayError, TargetError
from dxt_replay.traces.samples import sample
from dxt_replay.traces.units import NS_PER_S
from tests.capture_builder import File, Op, Span, build_capture, read
from tests.places import PYTHON_PATH, ROOT, recorded

DXT_REPLAY = f"{sys.executable} -m dxt_replay.replay.commands.main"
MS = 1_000_000


@pytest.fixture
def capture(tmp_path):
    spans = [Span("step", 0, 5000, step=0)]
    return build_capture(tmp_path, files=["/données/\N{SNOWMAN}"], ops=[read(0, length=9, step=0)], spans=spans).path


def ended(command, *, variables=None, **more):
    """What a line of bash, or a Python program with its words, came to."""
    words = ["bash", "-c", command] if isinstance(command, str) else [sys.executable, "-c", *map(str, command)]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **(variables or {})}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT, **more}
    return subprocess.run(words, env=environment, text=True, **streams)


# ------------------------------------------------------------------------------------------------- options and answers
def test_json_is_one_object_of_ascii_with_its_version_first_and_can_be_asked_for_in_the_environment(
    monkeypatch, capsys
):
    print_json({"b": 1, "a": {"path": "/é"}})
    text = capsys.readouterr().out
    assert list(json.loads(text).items()) == [("schema_version", 1), ("b", 1), ("a", {"path": "/é"})]
    assert text.isascii()
    with pytest.raises(ValueError, match="nan"):
        print_json({"a": float("nan")})
    monkeypatch.setenv("DXT_REPLAY_SUMMARY_AS_JSON", "1")
    assert main(["summary", "nothing.capture"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "CaptureError"


def test_verbose_prints_versions_times_and_the_traceback_of_an_error(capture, say):
    say("summary nothing.capture -v", status=2)
    lines = say.err.splitlines()
    assert lines[0].startswith(f"dxt-replay: version {dxt_replay.VERSION}, Python 3.")
    assert "Traceback (most recent call last):" in lines
    assert lines[-1].startswith("dxt-replay: error: nothing.capture does not exist")
    say(f"-v summary {capture}", warns=True)
    assert "\ndxt-replay: summarising: 0." in say.err


def test_a_terminal_shows_what_goes_on_unless_it_shall_be_quiet(capture, monkeypatch, say, capsys):
    with progress(of_run) as report:  # in a pipe, and without a command
        report(Progress(done=1, total=2, elapsed_ns=1, expected_ns=2))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    say(f"summary {capture} -q")
    say(f"summary {capture}", warns=True)
    assert "summarising" in say.err


@pytest.mark.parametrize(
    ("done", "lag_ns", "text"),
    [
        (1500, 1_500_000_000, "replaying 1,500 of 6,000 operations, 500/s, lag 1.500 s, 8 s left"),
        (1500, None, "replaying 1,500 of 6,000 operations, 500/s, 9 s left"),
        (0, None, "replaying 0 of 6,000 operations, 0/s, time left unknown"),
    ],
)
def test_progress_says_how_late_a_run_is_and_how_long_it_will_take(done, lag_ns, text):
    now = Progress(done=done, total=6000, elapsed_ns=3 * NS_PER_S, expected_ns=10 * NS_PER_S, lag_ns=lag_ns)
    assert of_run(now) == text


def test_the_shell_is_given_completions():
    asked = {"_DXT_REPLAY_COMPLETE": "bash_complete", "COMP_WORDS": "dxt-replay su", "COMP_CWORD": "1"}
    code = "import sys; from dxt_replay.replay.commands.main import main; sys.argv[0] = 'dxt-replay'; sys.exit(main())"
    assert ended([code], variables=asked).stdout.split() == ["plain,summary"]


# ------------------------------------------------------------------------------------------------------------- the end
class _Special(DxtReplayError):
    exit_status = 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CaptureError("x"), 2), (_Special("x"), 1), (MemoryError(), 2), (KeyboardInterrupt(), 130), (SystemExit(1), 1),
        (SystemExit(None), 0), (SystemExit("text"), 1), (click.UsageError("x"), 2), (click.FileError("x"), 2),
        (click.exceptions.Exit(1), 1), (click.Abort(), 130), (ZeroDivisionError("a bug keeps its traceback"), None),
    ],
)  # fmt: skip
def test_how_a_command_ends_is_its_status(monkeypatch, error, status):
    @click.command()
    def command():
        raise error

    monkeypatch.setattr(cli, "get_command", lambda ctx, name: command)
    if status is None:
        with pytest.raises(type(error)):
            main(["demo"])
    else:
        assert main(["demo"]) == status


def test_no_thread_is_a_limit_and_no_bug(capture, monkeypatch, say):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    say(f"verify {capture}", status=2)
    assert "can't start new thread: raise the limit of this user's threads (ulimit -u)" in say.err


def test_mpi_has_ended_before_anything_is_printed_and_an_error_is_told_to_the_others_first(monkeypatch):
    """Where `| head` ends the launcher while a result is printed, MPI's memory in /dev/shm would stay."""
    left = []
    monkeypatch.setattr(Solo, "leave", lambda comm: left.append(comm))
    with ending_together(Solo()):
        assert not left
    assert len(left) == 1
    with pytest.raises(TargetError), ending_together(Solo()):
        raise TargetError("full")
    assert len(left) == 1


# ---------------------------------------------------------------------------------------------------- standard streams
@pytest.mark.parametrize(("what", "unbuffered"), [("", ""), ("", 1), ("--json", ""), ("-o -", 1)])
def test_a_full_disk(capture, what, unbuffered):
    done = ended(f"PYTHONUNBUFFERED={unbuffered} {DXT_REPLAY} summary {capture} {what} >/dev/full")
    assert (done.returncode, done.stderr) == (
        2, "dxt-replay: error: cannot write to standard output: No space left on device\n",
    )  # fmt: skip


def test_a_reader_that_has_gone_is_no_error(tmp_path, capture):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = ended(f"{DXT_REPLAY} summary {capture}", stdout=closed)
    assert (done.stderr, done.returncode) == ("", 141)
    many = build_capture(tmp_path / "many", files=["/a"], ops=[read(0, length=1, start_ns=i) for i in range(30_000)])
    done = ended(f"{DXT_REPLAY} export {many.path} --to csv -o - | head -1; exit ${{PIPESTATUS[0]}}")
    assert (done.stderr, done.returncode) == ("", 141)


def test_streams_and_folders_that_are_not_there(capture, tmp_path):
    done = ended(f"{DXT_REPLAY} summary {capture} >&-")
    assert (done.returncode, done.stderr) == (
        2, "dxt-replay: error: standard output is closed: give it a file or /dev/null\n",
    )  # fmt: skip
    (tmp_path / "gone").mkdir()
    done = ended(f"cd {tmp_path}/gone && rmdir ../gone && {DXT_REPLAY} export {capture} --to csv -o x.csv")
    assert done.returncode == 2
    assert "\ndxt-replay: error: the directory for x.csv was removed" in f"\n{done.stderr}"
    for stderr in ("2>/dev/full", "0<&- 2>&-"):
        assert ended(f"{DXT_REPLAY} summary {capture} --json >{tmp_path}/out {stderr}").returncode == 0
        assert json.loads((tmp_path / "out").read_text())["job"]["nprocs"] == 1
        assert ended(f"{DXT_REPLAY} summary {tmp_path}/absent {stderr}").returncode == 2


def test_paths_that_the_terminal_cannot_show_are_escaped(capture):
    done = ended(f"PYTHONIOENCODING=ascii PYTHONUTF8=0 LC_ALL=C {DXT_REPLAY} summary {capture} --by file")
    assert done.returncode == 0, done.stderr
    assert "/donn\\xe9es/\\u2603" in done.stdout


HOSTILE = "a\x1b[31m\x07\x9b2J\u202eb"
LINES = """
0 summary {c}
0 summary {c} --show files --show ranks --show findings --show timeline
0 report {c} -o {f}/r.html
0 verify {c}
0 stage {c} --target {f}/t
0 run {c} --target {f}/t -o {f}/r.capture --pace none
2 run {c} --target {f}/none -o {f}/s.capture
0 compare {c} {c}
0 simulate {c} --storage nvme
2 simulate {c} --storage {f}/none.yaml
0 transform {c} -o {f}/w.capture --transfer-size 5B
2 transform {c} -o {f}/x.capture --compression {f}
0 fit {c} -o {f}/w.yaml
0 anonymize {c} -o {f}/n.capture
0 export {c} --to chrome -o {f}/e.json.gz
0 export {c} --to fio --target {f} -o {f}/e.fio
2 generate {f}/none.yaml -o {f}/g.capture
2 generate unet3d_a100 {h}=1 -o {f}/g.capture
2 calibrate {f}/none -o {f}/model.yaml
2 record -o {f}/rec.capture -- {f}/none
2 merge {f}/none.darshan -o {f}/m.capture
2 {h}
2 summary --{h}
2 summary {c} --show {h}
"""
"""Statuses and lines; c: a capture, f: a folder of a name that commands the terminal, h: such a name."""


def test_no_command_prints_a_control_character(tmp_path, capsys):
    folder = tmp_path / HOSTILE
    (folder / "t").mkdir(parents=True)
    ops = [Op("open", 0), *(read(0, offset=10 * i, length=10, start_ns=i * MS + 2_000, step=i) for i in range(3))]
    spans = [
        Span(kind, step * MS + after, (step + 1) * MS, step=step, name=HOSTILE)
        for step in range(3)
        for kind, after in (("step", 0), ("compute", 1000))
    ]
    files = [File(f"/{HOSTILE}\n/c", mount=f"/{HOSTILE}", fs_type=HOSTILE)]
    capture = build_capture(folder, name=HOSTILE, files=files, ops=ops, spans=spans).path
    for line in LINES.strip().splitlines():
        expected, *words = line.split()
        status = main([word.format(c=capture, f=folder, h=HOSTILE) for word in words])
        printed = capsys.readouterr()
        assert status == int(expected), (line, printed)
        text = printed.out + printed.err
        assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"} == set(), line
        ours = [each.startswith("dxt-replay: ") for each in printed.err.splitlines()]
        assert (all(ours) and ours) if status == 2 else not any(ours), printed.err


# ------------------------------------------------------------------------------------------------------------- imports
OPTIONAL = {"dask", "darshan", "distributed", "h5py", "mpi4py", "pandas", "plotly", "tensorflow"}
"""Packages that only some features need, and a light installation lacks."""
SLOW = {*OPTIONAL, "dateutil", "duckdb", "jinja2", "matplotlib", "polars", "pyarrow.acero", "scipy"}
OF_TRAININGS = {"dxt_replay.replay.causal.storage_limit", "dxt_replay.profiler_merge.unprofiled"}
OF_LOGS = {"dxt_replay.profiler_merge.darshan.jobs", "dxt_replay.profiler_merge.profiles.reading"}
OF_RUNS = {"dxt_replay.replay.engine.issue", "dxt_replay.replay.run.story"}
"""Modules that cost tens of ms, and are for captures of trainings, for logs, for replays."""

LIST = """
import os, sys
from dxt_replay.__main__ import main
status = main()
print("loaded:", *sys.modules, file=sys.__stderr__)
import numpy
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"), file=sys.__stderr__)
sys.exit(status)
"""
WITHOUT = f"""
import sys
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent)
from dxt_replay.replay.commands.main import main
for line in sys.argv[1:]:
    if status := main(line.split()):
        sys.exit(status)
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """A folder with a capture of a small log without training steps, and a twin; nothing optional is installed."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "twin").mkdir()
    merge = f"merge {recorded('darshan-logs/sample-dxt-simple.darshan')} -o c.capture"
    done = ended([WITHOUT, merge, "stage c.capture --target twin --sparse"], cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("line", "needs", "without"),
    [
        ("--help", set(), {*SLOW, *OF_LOGS, "numpy", "pyarrow", "msgspec"}),
        ("merge {log} -o {new}", {"pyarrow.parquet"}, {*SLOW, *OF_TRAININGS, *OF_RUNS}),
        ("summary c.capture", {"pyarrow.parquet"}, {*SLOW, *OF_TRAININGS, *OF_LOGS, *OF_RUNS}),
        # Its tables of sizes are a query.
        ("report c.capture -o {new}", {"pyarrow.parquet", "duckdb"},
         {*OPTIONAL, "dateutil", "matplotlib", "polars", "scipy", *OF_TRAININGS, *OF_LOGS, *OF_RUNS}),
        ("record --help", set(), {"numpy", "pyarrow"}),
    ],
)  # fmt: skip
def test_a_command_loads_what_it_needs_and_numpy_starts_threads_for_a_recorded_job_alone(
    light, tmp_path, monkeypatch, line, needs, without
):
    log = recorded("darshan-logs/sample-dxt-simple.darshan")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    done = ended([LIST, *line.format(log=log, new=tmp_path / "new").split()], cwd=light)
    assert done.returncode == 0, done.stderr
    *loaded, threads, variable = done.stderr.partition("loaded: ")[2].split()
    assert needs <= set(loaded)
    assert not without & set(loaded)
    assert variable == ("None" if line[:6] == "record" else "1")
    assert threads == "1" or line != "--help"


def test_a_training_is_merged_replayed_and_reported_without_the_optional_packages(tmp_path):
    profiles = " ".join(f"--profile {path}" for path in sample("imagenet").profiles)
    (tmp_path / "twin").mkdir()
    lines = (
        f"merge {sample('imagenet').log} {profiles} -o c.capture",
        "summary c.capture",
        "stage c.capture --target twin --sparse",
        "run c.capture --target twin -o r.capture --pace none",
        "compare c.capture r.capture",
        "report c.capture r.capture -o r.html",
    )
    done = ended([WITHOUT, *lines], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.html").stat().st_size > 0


@pytest.mark.parametrize(
    ("line", "variables", "remedy"),
    [
        ("run c.capture --target twin -o {new}", {"PMI_RANK": "0"}, "'dxt-replay[mpich]'"),
        ("run c.capture --target twin -o {new} --api mpiio", {}, "'dxt-replay[mpich]'"),
        ("summary c.capture --dask localhost:1", {}, "'dxt-replay[dask]'"),
    ],
)
def test_the_error_without_an_optional_package_says_how_to_install_it(light, tmp_path, line, variables, remedy):
    done = ended([WITHOUT, line.format(new=tmp_path / "new")], variables=variables, cwd=light)
    assert done.returncode == 2
    assert f"not installed: pip install {remedy}" in done.stderr


# --------------------------------------------------------------------------------------------------- import dxt_replay
def test_every_public_name_is_found_documented_and_in_the_stub():
    """A type checker takes the names of `__all__`, Python those of the imports."""
    tree = ast.parse((ROOT / "src" / "dxt_replay" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    (listed,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    assert sorted(imported) == sorted(listed) == sorted(dxt_replay.__all__)
    assert set(dxt_replay.__all__) <= set(dir(dxt_replay))
    values = {name: getattr(dxt_replay, name) for name in dxt_replay.__all__}
    assert all(value.__doc__ for value in values.values() if inspect.isclass(value))
    functions = {name: value.__doc__ for name, value in values.items() if inspect.isfunction(value)}
    assert {name for name, text in functions.items() if f"{name}(" not in text} <= {"anchor", "sample"}, "an example"
    with pytest.raises(AttributeError, match="no attribute 'sumary'"):
        _ = dxt_replay.sumary


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("import sys, dxt_replay; print({'numpy', 'pyarrow', 'pandas', 'plotly', 'click'} & {*sys.modules})", "set()"),
        (
            "import sys; from dxt_replay.__main__ import main; sys.argv[1:] = ['--version']; sys.exit(main())",
            f"dxt-replay, version {dxt_replay.VERSION}",
        ),
        # PyPI has projects called traces and replay: neither name is ours at the top level.
        ("import dxt_replay; print(dxt_replay.open_capture.__module__)", "dxt_replay.replay.commands.captures"),
        # It starts no threads before the signals of a job are held.
        (
            "import sys, dxt_replay.replay.commands.making, dxt_replay.profiler_merge.recorder.job; "
            "print({'numpy', 'pyarrow'} & {*sys.modules})",
            "set()",
        ),
    ],
)
def test_the_installed_package_is_light_starts_and_shares_no_name(tmp_path, program, printed):
    for name in ("traces", "replay", "profiler_merge", "workloads"):
        (tmp_path / "other" / name).mkdir(parents=True)
        (tmp_path / "other" / name / "__init__.py").write_text('raise ImportError("somebody else\'s")\n')
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "dxt_replay").symlink_to(ROOT / "src" / "dxt_replay")
    done = ended([program], cwd="/", variables={"PYTHONPATH": f"{tmp_path}/other:{tmp_path}/site"})
    assert done.stdout == f"{printed}\n", done.stderr
