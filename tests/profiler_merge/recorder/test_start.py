"""How a job starts under a tracer: its command line, Darshan's library and settings, the script, the job's Python."""

import os
import re
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder import tracers
from dxt_replay.profiler_merge.recorder.darshan import (
    config_text,
    data_places,
    dxt_memory_mib,
    find_library,
    needs_include,
    to_account_for,
)
from dxt_replay.profiler_merge.recorder.launch_line import is_launched, with_prefix
from dxt_replay.profiler_merge.recorder.python_start import write_python_start
from dxt_replay.profiler_merge.recorder.tracers import LOGS, OF_RANK, folder_of_package, job_python
from dxt_replay.profiler_merge.recording import RANK_VARIABLES
from dxt_replay.traces.errors import UsageError

GIB = 1 << 30
PROGRAMS = {"python", "python3", "./train", "/usr/bin/test", "test", "ssh", "bash", "debug"}


# PRE: where the script goes.
@pytest.mark.parametrize(
    "line",
    [
        "PRE python train.py -n 8",
        "PRE torchrun --nproc-per-node 4 train.py",
        "mpiexec -n 8 PRE python train.py",
        "/opt/mpich/bin/mpiexec -np 8 PRE ./train",
        "mpiexec -v -n 2 PRE python a.py",
        "mpiexec -l PRE python a.py",
        "mpiexec -bootstrap ssh -n 2 PRE python a.py",
        "mpiexec -genv A 1 -env B python -n 2 PRE python a",
        "mpirun --mca btl self,tcp --bind-to none -x PATH -np 4 PRE python t.py",
        "mpirun --allow-run-as-root -n 2 PRE python t.py",
        "mpiexec -n 1 PRE ./train : -n 7 PRE python w.py",
        "srun -p test -N 2 -n8 --gres=gpu:4 PRE python t.py",
        "srun --unbuffered --partition debug PRE python t",
        "srun -N 2 -- PRE python t.py",
        "flux run -n 8 PRE python t.py",
        "timeout 600 mpiexec -n 2 PRE python t.py",
        "env A=1 numactl -N 0 srun -n 2 PRE python t.py",
        "PRE python t.py --backend mpiexec",
        "PRE timeout 600 python t.py mpiexec",
        "PRE flux jobs",
        "my-launcher --ranks 4 {} python t.py",
    ],
)
def test_the_prefix_stands_before_the_program_of_the_ranks(line):
    words = line.replace("PRE ", "").split()
    placed = with_prefix(words, ["PRE"], lambda word: word in PROGRAMS)
    assert " ".join(placed) == line.replace("{}", "PRE")
    assert is_launched(words) == (not line.startswith("PRE"))


def test_a_program_that_is_not_found_is_asked_for():
    with pytest.raises(UsageError, match=r"write \{\} before it, as in `dxt-replay record -- mpiexec"):
        with_prefix(["mpiexec", "--new-option", "3", "train.py"], ["PRE"], lambda word: word in PROGRAMS)


# Places below a folder, what the environment says of it, and what of that is named as the origin.
@pytest.mark.parametrize(
    ("made", "environment", "origin"),
    [
        *(("lib64", {name: "/"}, name) for name in ("DARSHAN_RUNTIME_DIR", "DARSHAN_ROOT", "EBROOTDARSHANMINRUNTIME")),
        ("lib64", {"CONDA_PREFIX": "/"}, "CONDA_PREFIX"),
        ("lib", {"LD_PRELOAD": "/lib/other.so:/lib/libdarshan.so", "DARSHAN_ROOT": "/"}, "LD_PRELOAD"),
        ("lib", {"LD_LIBRARY_PATH": "/none:/lib"}, "LD_LIBRARY_PATH"),
        ("lib", {"PATH": "/bin"}, "/bin/darshan-config"),
        ("lib", {}, "the loader's cache (ldconfig -p)"),
        ("", {}, None),
    ],
)
def test_the_library_is_looked_for_in_many_places(tmp_path, made, environment, origin):
    (tmp_path / "bin").mkdir()
    (program := tmp_path / "bin" / "darshan-config").write_text("#!/bin/sh\n")
    program.chmod(0o755)
    library = tmp_path / made / "libdarshan.so"
    if made:
        library.parent.mkdir()
        library.touch()
    given = {name: re.sub(r"(^|:)/", rf"\1{tmp_path}/", text) for name, text in environment.items()}
    cache = f"2 libs found\n\tlibdarshan.so.0 (libc6,x86-64) => {library}\n"
    found = find_library({"PATH": "/nowhere", **given}, run=lambda words: cache * (words[0] == "ldconfig"))
    expected = origin and (library, f"{tmp_path}{origin}" if origin.startswith("/") else origin)
    assert (found and (found.path, found.origin)) == expected


@pytest.mark.parametrize(("free", "mib"), [(None, 64), (GIB, 32), (3 * GIB, 32), (4 * GIB, 64), (1000 * GIB, 64)])
def test_the_memory_of_a_trace_is_a_part_of_what_is_free(free, mib):
    assert dxt_memory_mib(free) == mib


@pytest.mark.parametrize(("mib", "records", "region", "names"), [(128, 2, 64 + 64, 32), (2, 1, 4 + 1, 1)])
def test_the_file_gives_dxt_its_memory_and_the_region_room_for_it(mib, records, region, names):
    """That of a job, and that of a program that it starts."""
    lines = [line.split(" ", 1) for line in config_text(mib).splitlines()]
    assert [key for key, _ in lines].count("MAX_RECORDS") == records
    assert ["MAX_RECORDS", f"{mib * 1024} DXT_POSIX,DXT_MPIIO"] in lines
    assert (int(dict(lines)["MODMEM"]), int(dict(lines)["NAMEMEM"])) == (region, names)
    # Compressed segments, and the records of 728 bytes.
    assert region >= mib * 8 // 40 + (46 if mib > 2 else 0)


def matches(key, text, include=()):
    """Whether a regular expression of the lines with this key fits, divided as Darshan divides them."""
    lines = [line for line in config_text(64, include).splitlines() if line.startswith(f"{key} ")]
    return any(re.search(pattern, text) for line in lines for pattern in line.split()[1].split(","))


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        # Python's own files are left out, and data are not.
        *(("NAME_EXCLUDE", path, True) for path in (
            "/home/me/train.py", "/home/me/__pycache__/a.cpython-311.pyc.140234", "/home/me/lib/libtorch.so.2",
            "/home/me/venv/lib/python3.11/site-packages/torch/x.json", "/home/me/conda/lib/python3.11/encodings",
        )),
        *(("NAME_EXCLUDE", path, False) for path in (
            "/data/train/part-00000.tfrecord", "/data/python/images.npy", "/data/a.python",
        )),
        # Files in memory are always recorded.
        ("NAME_INCLUDE", "/dev/shm/x/a.bin", True), ("NAME_INCLUDE", "/dev/null", False),
        # Programs that do not train are left out.
        *(("APP_EXCLUDE", name, True) for name in ("/usr/bin/uname", "sh", "bash", "/opt/cuda/bin/nvcc", "c++")),
        *(("APP_EXCLUDE", name, False) for name in ("/usr/bin/uname-train", "c++-train")),
    ],
)  # fmt: skip
def test_what_is_recorded_by_default(key, text, expected):
    assert matches(key, text) is expected


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        # Output folders that do not exist yet.
        (["/var/not/there/yet"], "/var/not/there/yet/a.pt", True),
        (["--out=/opt/not/there/yet"], "/opt/not/there/yet/a.pt", True),
        (["--log", "/var/not/there.csv"], "/var/not/there.csv", True),
        (["/opt/my data, v1.0/(x)"], "/opt/my data, v1.0/(x)/a", True),
        (["/opt/my data, v1.0/(x)"], "/opt/my data, v1.0/(x)y", False),
        ([], "/opt/jobs/mine/out/a.pt", True),
        ([], "/usr/share/x", False),
    ],
)
def test_the_places_of_a_command_are_recorded(monkeypatch, words, path, expected):
    monkeypatch.setattr("os.getcwd", lambda: "/opt/jobs/mine")
    places = [place for place in data_places([sys.executable, "train.py", *words]) if needs_include(place)]
    assert matches("NAME_INCLUDE", path, places) is expected


def test_programs_are_no_data():
    for program in (sys.executable, "/opt/tools/train.py", "/opt/tools/run.sh"):
        assert program not in data_places(["env", program])
    assert list(map(needs_include, ("/opt/data", "/var/tmp/run", "/optional", "/"))) == [True, True, False, False]
    assert to_account_for([(1, "sh"), (2, "cat"), (3, "uname"), (4, "cat")]) == {"cat": [2, 4]}


# The script of a process.

SHOW = 'echo "$A"; echo "$B"; echo "$GONE"; echo "$DXT_RECORDING_PROFILE"; echo "$PYTHONPATH"; echo "$@"'


def script(folder, *, by_rank=False, name="t", **environment):
    tracer = tracers.Tracer(
        name=name, program=Path("t"), origin="here", variables={"A": f"it's {LOGS}/{OF_RANK}x y", "B": "$HOME"},
        unset=("GONE",), patterns=(),
    )  # fmt: skip
    places = {"logs": folder / "my logs", "profiles": folder / "p", "python": folder / "py"}
    words = [tracers.write_script(folder / "job.sh", tracer, by_rank=by_rank, **places), "/bin/sh", "-c", SHOW]
    clean = {name: value for name, value in os.environ.items() if name not in (*RANK_VARIABLES, "PYTHONPATH")}
    environment = {**clean, "GONE": "x", **environment}
    done = subprocess.run([*words, "sh", "a b", "c"], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_values_and_arguments_arrive_as_they_are(tmp_path):
    """A rank that is left over from a batch script counts only behind a launcher."""
    expected = [f"it's {tmp_path}/my logs/x y", "$HOME", "", str(tmp_path / "p"), str(tmp_path / "py"), "a b c"]
    assert script(tmp_path) == script(tmp_path, SLURM_PROCID="0") == expected
    assert script(tmp_path, PYTHONPATH="/mine")[4] == f"{tmp_path}/py:/mine"


@pytest.mark.parametrize("variable", ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "FLUX_TASK_RANK"])
def test_a_rank_has_a_folder_of_its_own(tmp_path, variable):
    """Darshan's has the dated ones in it before the job starts."""
    first = script(tmp_path, by_rank=True, name=tracers.DARSHAN, **{variable: "3", "PATH": "/none"})[0]
    assert first == f"it's {tmp_path}/my logs/rank3/rank3-x y"
    for day in (date.today(), date.today() + timedelta(days=6)):
        assert (tmp_path / "my logs" / "rank3" / str(day.year) / str(day.month) / str(day.day)).is_dir()


def test_the_python_of_a_command_and_its_packages(tmp_path):
    """The first one that it names, else that of its script, else this one."""
    heads = {"python3": b"#!/bin/sh\n", "torchrun": f"#!{sys.executable}\n".encode(), "elf": b"\x7fELF\xff"}
    for name, head in heads.items():
        (tmp_path / name).write_bytes(head)
        (tmp_path / name).chmod(0o755)
    own = str(tmp_path / "python3")
    for line, python in (
        ("mpiexec -n 2 python3 t.py", own),
        ("torchrun t.py", sys.executable),
        ("elf t.py", sys.executable),
    ):
        assert job_python(line.split(), {"PATH": str(tmp_path)}) == python
    assert (folder_of_package(sys.executable, "numpy", os.environ) / "__init__.py").exists()
    assert folder_of_package(sys.executable, "no_such_package", os.environ) is None
    assert folder_of_package("/no/python", "numpy", os.environ) is None


# What a Python of the job counts, and how much of Darshan's memory it gives to what it starts.


def started(folder, program):
    """The output of a program, and what it and its children counted, as if Darshan were loaded."""
    write_python_start(folder / "start", ["/opt/data"])
    (folder / "profile").mkdir()
    environment = {
        **os.environ, "PYTHONPATH": str(folder / "start"), "LD_PRELOAD": f"{folder}/libdarshan.so",
        "DXT_RECORDING_PROFILE": str(folder / "profile"), "DXT_RECORDING_SMALL": "/small", "DARSHAN_MODMEM": "99",
        "DARSHAN_CONFIG_PATH": "/full",
    }  # fmt: skip
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, cwd=folder)
    found = sorted((folder / "profile").glob("*.not_data"), key=lambda path: path.stat().st_mtime_ns)
    return done.stdout, [int.from_bytes(path.read_bytes(), "little") for path in found]


@pytest.mark.parametrize(
    ("program", "least", "most"),
    [
        ("import mine; open('data', 'rb').read()", [3], [6]),  # data are not counted
        ("import os\nif os.fork(): os.wait()\nelse:\n import mine\n os.kill(os.getpid(), 9)", [0, 3], [3, 4]),
    ],
)
def test_modules_are_counted_by_process(tmp_path, program, least, most):
    (tmp_path / "mine.py").write_bytes(b"#" * 3_000_000)
    (tmp_path / "data").write_bytes(bytes(7_000_000))
    _, counted = started(tmp_path, program)
    assert all(low * 10**6 <= n < high * 10**6 for low, n, high in zip(least, counted, most, strict=True))


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (["env"], "/small"),
        (["sh", "-c", "env"], "/small"),
        (["sh", "-c", "env; : train.py"], "/full"),
        (["./script"], "/full"),
        ([sys.executable, "-c", "import os; print(*map('='.join, os.environ.items()))"], "/full"),
    ],
)
def test_programs_that_are_no_python_get_little_memory(tmp_path, words, config):
    (tmp_path / "script").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "script").chmod(0o755)
    start = f"import os, subprocess; subprocess.run({words!r}, check=True)"
    out, _ = started(tmp_path, f"{start}; os.waitpid(os.posix_spawnp({words[0]!r}, {words!r}, os.environ), 0)")
    assert [word for word in out.split() if word.startswith("DARSHAN_CONFIG")] == [f"DARSHAN_CONFIG_PATH={config}"] * 2
    assert ("DARSHAN_MODMEM=99" in out.split()) == (config == "/full")
