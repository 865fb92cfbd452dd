"""`dxt-replay record`, under a stand-in of Darshan's library and under real strace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests import fake_darshan
from tests.places import ROOT
from tests.schemas import check

PYTHON = sys.executable
WITHOUT_COMPUTE = "no loop was seen, so the capture has neither steps nor compute"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, beside the work directory; every Python process of the job leaves a log."""
    place = tmp_path / "darshan"
    place.mkdir()
    monkeypatch.setenv("FAKE_DARSHAN_LOG", str(fake_darshan.prepared_log(place / "prepared")))
    return fake_darshan.build(place)


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in which the command runs; this process is nobody's rank."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    return folder


def record(*words: str, library: Path | None = None) -> int:
    return main(["record", *(["--library", str(library)] if library else []), *words])


def traced_reads(path: Path) -> int:
    rows = [row for batch in open_capture(path).operations() for row in batch.to_pylist()]
    return sum(row["origin"] == "traced" and row["op"] == "read" for row in rows)


def test_a_job_becomes_a_capture_and_the_next_command_is_printed(library, work, capfd) -> None:
    assert record("--", PYTHON, "-c", "print('trained')", library=library) == 0
    out, err = capfd.readouterr()
    assert out == "trained\n"  # the report is on stderr: standard output is the job's
    assert "darshan 3.5.0" in err
    assert "trace coverage 100 %" in err
    assert WITHOUT_COMPUTE in err
    assert err.rstrip().endswith("next: dxt-replay summary run.capture")
    assert traced_reads(work / "run.capture") == 2
    assert (work / "run.recording" / "recording.txt").read_text(encoding="utf-8").startswith(PYTHON)


SAID = {
    "a job that fails is merged": ({}, "raise SystemExit(7)", 7, "exit status of the job  7", True),
    "a job that fails has what it has": ({}, "raise SystemExit(3)", 3, f"{WITHOUT_COMPUTE}: the job ended with", True),
    "ended by a signal": ({}, "import os; os.kill(os.getpid(), 15)", 143, "ended by signal 15 and left no log", True),
    "half a trace": ({"FAKE_DARSHAN_LOG": "half"}, "1", 0, "only 25.0% of the job's I/O is in the trace: record", True),
    "inside the ranks": ({"PMI_SIZE": "8", "PMI_RANK": "3"}, "1", 2, "`dxt-replay record -- mpiexec -n 8", False),
    "a variable for more than logs": ({"SITE_SCRATCH": "/"}, "1", 2, "the folder of SITE_SCRATCH (/)", False),
    "a library without DXT": ({"FAKE_DARSHAN_LOG": "plain"}, "1", 2, "was built without DXT", False),
    "a sitecustomize of the environment": ({"PYTHONPATH": "site"}, "1", 0, "mine still runs", True),
}
"""Environment, program of the job, status, a sentence on stderr, and whether the job ran."""


@pytest.mark.parametrize("case", SAID)
def test_a_job_and_what_is_said_of_it(library, work, tmp_path, capfd, monkeypatch, case) -> None:
    environment, program, status, sentence, ran = SAID[case]
    (work / "site").mkdir()
    (work / "site" / "sitecustomize.py").write_text("import sys\nprint('mine still runs', file=sys.stderr)\n")
    logs = {
        "half": lambda: fake_darshan.prepared_log(tmp_path / "half", counted=8),
        "plain": lambda: fake_darshan.log_without_dxt(tmp_path / "plain"),
        "site": lambda: work / "site",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, str(logs[value]()) if value in logs else value)
    assert record("--", PYTHON, "-c", f"open('ran', 'w'); {program}", library=library) == status
    assert sentence in " ".join(capfd.readouterr().err.split()).replace("job 7", "job  7")
    assert (work / "ran").exists() == ran


def test_json_has_standard_output_for_itself(library, work, capfd) -> None:
    assert record("--json", "-o", "a.capture", "--", PYTHON, "-c", "print('trained')", library=library) == 0
    out, err = capfd.readouterr()
    assert err == "trained\n"
    result = json.loads(out)
    assert result["schema_version"] == 1
    assert (result["capture"], result["exit_status"], result["logs"]) == ("a.capture", 0, 1)
    assert result["tracer"]["found_in"] == "--library"
    assert result["merge"]["operations"]["traced"] == 2
    check("record", result)


def test_what_exists_is_refused_before_the_job_starts(library, work, capfd) -> None:
    job = ["--", PYTHON, "-c", "open('ran', 'w')"]
    assert record(*job, library=library) == 0
    (work / "ran").unlink()
    assert record(*job, library=library) == 2
    assert "run.capture exists: --force replaces it" in capfd.readouterr().err
    shutil.rmtree(work / "run.capture")
    assert record(*job, library=library) == 2
    assert "run.recording exists: --force replaces it" in capfd.readouterr().err
    assert not (work / "ran").exists()
    assert record("--force", *job, library=library) == 0
    assert (work / "ran").exists()


def test_what_a_job_reads_through_a_mapping_is_in_the_coverage(library, work, capfd) -> None:
    """The stand-in traces 12 bytes; the job reads 8 MiB of a mapped file beside them. Where the kernel shows page
    faults, they are operations, except what one fault mapped of pieces of up to 2 MiB in the cache."""
    (work / "train.bin").write_bytes(bytes(1 << 23))
    program = (
        "import mmap, os, time\ndata = mmap.mmap(os.open('train.bin', os.O_RDONLY), 0, prot=mmap.PROT_READ)\n"
        "sum(data[::4096])\ntime.sleep(1)"
    )
    assert record("--", PYTHON, "-c", program, library=library) == 0
    err = " ".join(capfd.readouterr().err.split())
    capture = open_capture(work / "run.capture")
    by_faults = sum(
        row["length"] for batch in capture.operations() for row in batch.to_pylist() if row["api"] == "MMAP"
    )
    unseen = 0
    for each in capture.info.coverage.unseen:
        assert (each.kind, each.name) == ("mapped", str(work / "train.bin"))
        assert f"memory-mapped: {work}/train.bin (" in err
        assert "trace coverage 100 %" not in err
        assert each.bytes is not None
        unseen += each.bytes
    assert 0.9 * (1 << 23) <= by_faults + unseen <= 1 << 23
    assert capture.info.coverage.bytes == pytest.approx(by_faults / (by_faults + unseen), abs=0.01)


@pytest.mark.parametrize(("ahead_s", "said"), [(3600, "set forward by 3600.000 s"), (-2, "set back by 2"), (0, None)])
def test_a_clock_that_was_set_meanwhile_is_said(library, work, capfd, monkeypatch, ahead_s, said) -> None:
    looks = iter([10**18, 10**18 + ahead_s * 10**9])
    monkeypatch.setattr("dxt_replay.profiler_merge.recorder.job._ahead_ns", lambda: next(looks))
    assert record("--", PYTHON, "-c", "1", library=library) == 0
    err = " ".join(capfd.readouterr().err.split())
    assert ("the clock of this machine was" in err) is (said is not None)
    assert said is None or said in err


def test_each_rank_behind_a_launcher_has_its_logs(library, work, capfd) -> None:
    launcher = work / "mpiexec"
    launcher.write_text('#!/bin/sh\nshift 2\nfor r in 0 2; do PMI_RANK=$r "$@" || exit; done\n', encoding="utf-8")
    launcher.chmod(0o755)
    program = "import os; print(os.environ['PMI_RANK'], 'libdarshan' in os.environ['LD_PRELOAD'])"
    assert record("--", "./mpiexec", "-n", "2", PYTHON, "-c", program, library=library) == 0
    out, err = capfd.readouterr()
    assert out == "0 True\n2 True\n"
    assert "Merged 3 ranks" in err
    assert "these ranks have no log, so their I/O is not in the capture: 1" in err.replace("\n", " ")
    ranks = {path.parent.name for path in (work / "run.recording" / "logs").rglob("*.darshan")}
    assert ranks == {"rank0", "rank2"}


def test_the_launcher_itself_is_not_traced(library, work, capfd) -> None:
    launcher = work / "mpirun"
    launcher.write_text(f'#!{PYTHON}\nimport os\nprint("LD_PRELOAD" in os.environ)\n', encoding="utf-8")
    launcher.chmod(0o755)
    assert record("--", "./mpirun", "-n", "2", PYTHON, "-c", "1", library=library) == 2
    out, err = capfd.readouterr()
    assert out == "False\n"
    assert "the job left no log" in err


def test_hdf5_is_loaded_beside_a_darshan_that_calls_it(library, work, capfd) -> None:
    """The one of the job's h5py, and the libraries that it needs before it."""
    import h5py

    bundled = sorted(Path(h5py.__file__).parent.parent.glob("h5py.libs/libhdf5-*.so*"))
    if not bundled:
        pytest.skip("h5py is not a wheel that brings its HDF5")
    program = "import h5py, os; print(os.environ['LD_PRELOAD']); print(h5py.version.hdf5_version)"
    assert record("--", PYTHON, "-c", program, library=library) == 0
    loaded, version = capfd.readouterr().out.split()
    first, *others = loaded.split(":")
    assert (first, others[-1], version) == (str(library), str(bundled[0]), h5py.version.hdf5_version)


def test_profiles_of_earlier_runs_are_not_of_this_job(library, work, capfd) -> None:
    """The folder that the job writes into holds those of earlier runs too."""
    old = work / "prof" / "rank0.xplane.pb"
    old.parent.mkdir()
    shutil.copy(sample("imagenet").profiles[0], old)
    os.utime(old, (1, 1))
    assert record("--profile", "prof", "--", PYTHON, "-c", "1", library=library) == 0
    err = capfd.readouterr().err
    assert "prof holds no profile that this job wrote" in err
    assert WITHOUT_COMPUTE in err


def test_a_merge_that_fails_says_how_to_repeat_it(library, work, capfd) -> None:
    copy = f"import shutil; shutil.copyfile({str(sample('imagenet').profiles[0])!r}, 'prof/rank0.xplane.pb')"
    (work / "prof").mkdir()
    assert record("-o", "a b.capture", "--profile", "prof", "--", PYTHON, "-c", copy, library=library) == 2
    err = capfd.readouterr().err
    assert "is the profile of another run" in err
    next_line = "next: dxt-replay merge 'a b.recording/logs' --profile prof/rank0.xplane.pb -o 'a b.capture'"
    assert err.rstrip().endswith(next_line)
    assert not (work / "a b.capture").exists()


def test_nothing_with_threads_is_imported_before_the_signals_are_held() -> None:
    program = "import sys, dxt_replay.replay.commands.making\n"
    program += "import dxt_replay.profiler_merge.recorder.job\n"
    program += "print({'numpy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([PYTHON, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_ctrl_c_leaves_what_was_recorded(library, work) -> None:
    """Darshan's own end of a process is never reached: Python ends itself by the signal."""
    with subprocess.Popen(
        ["env", "--default-signal=INT",
         PYTHON, "-m", "dxt_replay.replay.commands.main", "record", "--library", str(library),
         "-o", str(work / "c.capture"), "--",
         PYTHON, "-c", "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)"],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "the job was interrupted: the capture holds what it did until it ended" in err
    assert "trace coverage 100 %" in err
    assert traced_reads(work / "c.capture") == 2


def test_counters_that_a_killed_process_left_are_used(library, work, tmp_path, capfd, monkeypatch) -> None:
    """Darshan keeps them in a mapped file of the temporary folder, which a process that ends in order removes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    counters = fake_darshan.log_without_dxt(tmp_path / "plain")
    program = (
        f"import os, shutil; shutil.copyfile({str(counters)!r}, "
        f"f\"{tmp_path}/me_python_id{{os.environ['DXT_RECORDING_JOB']}}_mmap-log-7-0.darshan\"); "
        "os.kill(os.getpid(), 15)"
    )
    assert record("--", PYTHON, "-c", program, library=library) == 143
    err = capfd.readouterr().err.replace("\n", " ")
    assert "python ended by a signal before Darshan wrote a trace: that I/O is rebuilt from counters" in err
    assert "record again with more memory" not in err
    rows = [row for batch in open_capture(work / "run.capture").operations() for row in batch.to_pylist()]
    assert [(row["origin"], row["length"]) for row in rows if row["op"] == "read"] == [("reconstructed", 100)]
    assert not list(tmp_path.glob("*mmap-log*"))


def test_a_library_that_writes_no_log_is_refused_before_the_job(work, tmp_path, capfd) -> None:
    broken = tmp_path / "libdarshan.so"
    broken.write_text("not a library", encoding="utf-8")
    assert record("--", PYTHON, "-c", "open('ran', 'w')", library=broken) == 2
    err = capfd.readouterr().err
    assert "wrote no log for a small test program" in err
    assert "cannot be preloaded" in err  # the loader's own words
    assert not (work / "ran").exists()


def test_a_folder_for_logs_of_the_site_is_replaced_for_this_job(library, work, tmp_path, capfd, monkeypatch) -> None:
    (tmp_path / "site").mkdir()
    monkeypatch.setenv("SITE_LOGDIR", str(tmp_path / "site"))
    assert record("--", PYTHON, "-c", "print('trained')", library=library) == 0
    assert traced_reads(work / "run.capture") == 2
    assert list((tmp_path / "site").iterdir()) == []


def test_without_any_tracer_it_says_how_to_get_each(work, capfd, monkeypatch) -> None:
    """A stripped environment, in which nothing can be found; the machine's own Darshan would be."""
    from dxt_replay.profiler_merge.recorder.darshan import find_library

    if find_library({"PATH": "/usr/bin:/bin"}) is not None:
        pytest.skip("Darshan is installed on this machine")
    for name in ("DARSHAN_RUNTIME_DIR", "CONDA_PREFIX", "LD_LIBRARY_PATH", "MODULEPATH", "MODULESHOME", "LMOD_CMD"):
        monkeypatch.delenv(name, raising=False)
    assert record("--with", "darshan", "--", PYTHON, "-c", "1") == 2
    err = capfd.readouterr().err
    for words in ("conda install -c conda-forge darshan-runtime", "spack install", "apt install strace", "pip install"):
        assert words in err
    assert list(work.iterdir()) == []


def test_without_any_tracer_the_job_runs_all_the_same(work, capfd, monkeypatch) -> None:
    """It has no loop here, so there is nothing to make a capture of."""
    monkeypatch.setattr("dxt_replay.profiler_merge.recorder.darshan.find_library", lambda environment: None)
    assert record("--", PYTHON, "-c", "print('trained')") == 2
    out, err = capfd.readouterr()
    assert out == "trained\n"
    assert "the job left no marks" in err
    assert "with dxt_replay.recording() as r:" in " ".join(err.split())


def can_strace() -> bool:
    program = shutil.which("strace")
    return (
        program is not None
        and not subprocess.run([program, "-o", "/dev/null", "true"], capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(not can_strace(), reason="strace is not installed, or may not trace here")
@pytest.mark.parametrize("ending", ["", "; raise SystemExit(5)", "; import os; os.kill(os.getpid(), 9)"])
def test_strace_records_every_read(work, capfd, ending) -> None:
    data = work / "data.bin"
    data.write_bytes(bytes(3000))
    program = f"f = open('data.bin', 'rb', buffering=0); [f.read(1000) for _ in range(4)]{ending}"
    status = record("--with", "strace", "--", PYTHON, "-c", program)
    assert status == {"": 0, "; raise": 5, "; impor": 137}[ending[:7]]
    capture = open_capture(work / "run.capture")
    rows = [row for batch in capture.operations() for row in batch.to_pylist()]
    reads = [
        (row["offset"], row["length"])
        for row in rows
        if row["op"] == "read" and capture.paths()[row["file_id"]] == str(data)
    ]
    assert reads == [(0, 1000), (1000, 1000), (2000, 1000), (3000, 0)]
    assert "each traced call takes 0.05 to 0.13 ms longer" in capfd.readouterr().err.replace("\n", " ")
