"""`dxt-replay doctor`: what its checks say of machines that lack something, held against the machine's own tools."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.profiler_merge.recorder.darshan import Library
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.doctor import examination, programs
from dxt_replay.replay.doctor.examination import Diagnosis, object_part
from dxt_replay.replay.doctor.programs import Check, Ended, Part, State, run_child, run_python
from dxt_replay.replay.regress.environment import MachineEnvironment, machine_environment
from tests import fake_darshan
from tests.object_servers import ObjectServer
from tests.places import ROOT


def checks_of(part: Part) -> dict[str, Check]:
    return {check.name: check for check in part.checks}


def answering(output: str = "", trouble: str = "") -> Callable[..., Ended]:
    return lambda *_words: Ended(output=output, trouble=trouble)


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    return dxt_replay.doctor(tmp_path_factory.mktemp("target"))


def test_the_cores_are_those_of_setup() -> None:
    built = re.findall(r'core\("([\w.]+)"\)', (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert list(programs.CORES) == built


def test_this_machine_passes_with_all_cores_and_the_installed_versions(diagnosis: Diagnosis) -> None:
    parts = {part.name: checks_of(part) for part in diagnosis.parts}
    assert diagnosis.passed
    assert parts["Compiled cores"]["loaded"].found == f"{len(programs.CORES)} of {len(programs.CORES)}"
    listed = subprocess.run(
        [sys.executable, "-c", "import numpy; print(numpy.__version__)"], capture_output=True, text=True, check=True
    )
    assert parts["Versions"]["numpy"].found == listed.stdout.strip()
    assert parts["Versions"]["Python"].found.startswith(sys.version.split()[0])


def test_the_object_and_the_tables_hold_every_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dxt_replay.replay.doctor.examination.examine", lambda _: diagnosis)
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["passed"] is True
    names = [check["name"] for part in printed["parts"] for check in part["checks"]]
    assert names == [check.name for part in diagnosis.parts for check in part.checks]
    assert main(["doctor", str(tmp_path), "--details"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("passed")
    assert all(name in text for name in names)


def test_something_that_is_broken_is_status_1_and_comes_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Check(name="library", found="died by SIGSEGV", state=State.FAILED, remedy="load another")
    broken = Diagnosis(directory=None, parts=(Part(name="MPI", checks=(check,)),))
    monkeypatch.setattr("dxt_replay.replay.doctor.examination.examine", lambda _: broken)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("failed: 1 check found")
    assert "library: died by SIGSEGV; load another" in text


def test_a_file_is_wrong_use_before_anything_is_examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert main(["doctor", str(tmp_path / "file")]) == 2
    assert "is not a directory" in capsys.readouterr().err


def test_a_child_that_crashes_hangs_or_is_absent_is_told() -> None:
    assert run_python("import os; os.kill(os.getpid(), 11)").trouble == "died by SIGSEGV"
    assert run_python("import time; time.sleep(60)", patience_s=0.5).trouble == "did not end within 0.5 s"
    assert run_child(["/nowhere/program"]).trouble == "/nowhere/program cannot be started: No such file or directory"
    assert run_python("raise SystemExit(3)").trouble == "ended with status 3"
    assert run_python("print(1)") == Ended(output="1\n", trouble="")


def test_a_child_that_hangs_leaves_no_process(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    run_python(code, patience_s=3)
    pid = int((tmp_path / "pid").read_text())
    # SIGKILL is delivered before run_python returns; the kernel takes the process down when it next gets a core.
    deadline = time.monotonic() + 60
    while (state := state_of(pid)) not in ("gone", "Z") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state in ("gone", "Z")


def state_of(pid: int) -> str:
    """State letter of /proc/PID/stat, ``"gone"`` where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def test_a_child_is_no_process_of_the_job_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "PALS_RANKID"):
        monkeypatch.setenv(name, "1")
    code = "import os; print([name for name in os.environ if name.startswith(('PMI', 'OMPI', 'MPI_', 'PALS'))])"
    assert run_python(code).output == "[]\n"


def test_a_module_that_crashes_is_named_and_the_others_are_still_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    (tmp_path / "fails.py").write_text("import nothing_of_this_name\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(programs, "CORES", ("json", "dies", "email"))
    monkeypatch.setattr(programs, "NEEDED", ("fails", "csv"))
    monkeypatch.setattr(programs, "OPTIONAL", {"no_such_package": "nothing"})
    cores, versions = programs.program_parts()
    assert cores.checks[0].found == "2 of 3"
    assert [(check.name, check.found, check.state) for check in cores.checks[1:]] == [
        ("dies", "died by SIGILL", State.FAILED)
    ]
    found = checks_of(versions)
    assert found["fails"].state is State.FAILED
    assert "nothing_of_this_name" in found["fails"].found
    assert (found["csv"].state, found["no_such_package"].state) == (State.OK, State.OK)
    assert found["no_such_package"].found == "not installed (optional)"


@pytest.mark.parametrize(
    ("library", "state", "found"),
    [
        (answering(trouble="died by SIGSEGV"), State.FAILED, "died by SIGSEGV"),
        (answering('{"absent": "cannot load MPI library"}\n'), State.WARNING, "cannot load MPI library"),
    ],
)
def test_an_mpi_library_that_dies_is_broken_and_an_absent_one_is_not(
    library: Callable[..., Ended], state: State, found: str
) -> None:
    (check,) = programs.mpi_part(library).checks
    assert (check.state, check.found) == (state, found)


@pytest.mark.parametrize(
    ("started", "state"),
    [
        (answering("2\n"), State.OK),
        (answering("1\n1\n"), State.FAILED),
        (answering("11\n\n"), State.FAILED),
        (answering(""), State.FAILED),
        (answering("", "did not end within 60 s"), State.WARNING),
    ],
)
def test_an_mpiexec_of_another_mpi_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Callable[..., Ended], state: State
) -> None:
    (tmp_path / "mpiexec").write_text("#!/bin/sh\n")
    (tmp_path / "mpiexec").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    part = programs.mpi_part(answering('{"library": "MPICH Version: 4.3", "threads": "MULTIPLE"}\n'), started)
    assert checks_of(part)["mpiexec"].state is state
    assert checks_of(part)["thread level"].found == "MULTIPLE"


def test_mpiexec_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    part = programs.mpi_part(answering('{"library": "MPICH", "threads": "MULTIPLE"}\n'), answering("2\n2\n"))
    assert checks_of(part)["mpiexec"].state is State.WARNING


@pytest.mark.mpi
def test_the_library_and_the_launcher_of_this_machine_work_together() -> None:
    if shutil.which("mpiexec") is None:
        pytest.skip("no mpiexec here")
    part = programs.mpi_part()
    assert [check.state for check in part.checks] == [State.OK] * 3


def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    real = resource.getrlimit

    def limit(which: int) -> tuple[int, int]:
        return (256, 1024) if which == resource.RLIMIT_NOFILE else real(which)

    monkeypatch.setattr(resource, "getrlimit", limit)
    check = checks_of(examination.limits_part(1))["open files"]
    assert (check.state, check.found) == (State.WARNING, "256, which a replay raises up to 1,024")
    assert "ulimit -Hn" in check.remedy


def test_limits_are_those_of_the_shell() -> None:
    shell = subprocess.run(
        ["bash", "-c", "ulimit -Hn; ulimit -l; df -B1 --output=avail /dev/shm | tail -1"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    found = checks_of(examination.limits_part(1))
    assert shell[0] == "unlimited" or f"{int(shell[0]):,}" in found["open files"].found
    if shell[1] == "unlimited":
        assert found["locked memory"].found == "no limit"
    else:
        assert found["locked memory"].found.startswith(f"{int(shell[1]) / 1024:.3g}"[:1])


def test_locked_memory_matters_with_infiniband_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert checks_of(examination.limits_part(1, tmp_path))["locked memory"].state is State.OK
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert checks_of(examination.limits_part(1, tmp_path))["locked memory"].state is State.WARNING


def test_a_small_or_absent_shared_memory_is_a_warning(tmp_path: Path) -> None:
    assert checks_of(examination.limits_part(1, tmp_path))["/dev/shm"].state is State.WARNING
    (tmp_path / "dev/shm").mkdir(parents=True)
    free = os.statvfs(tmp_path)
    more = free.f_bavail * free.f_frsize // (6 << 20) + 1
    assert checks_of(examination.limits_part(1, tmp_path))["/dev/shm"].state is State.OK
    assert checks_of(examination.limits_part(more, tmp_path))["/dev/shm"].state is State.WARNING


def test_the_clock_source_is_the_kernels(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/clocksource/clocksource0"
    folder.mkdir(parents=True)
    (folder / "current_clocksource").write_text("hpet\n")
    found = checks_of(examination.clocks_part(False, tmp_path))
    assert "source hpet" in found["clock"].found
    assert found["timer jitter"].state is State.UNKNOWN
    assert "99 %" in checks_of(examination.clocks_part(True))["timer jitter"].found


def test_limits_of_the_page_cache_are_those_of_the_control_group(tmp_path: Path) -> None:
    here = MachineEnvironment(host="", kernel="", limits={"memory.max": str(1 << 30), "cpu.max": "1 2"})
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    found = checks_of(examination.page_cache_part(here, tmp_path))
    assert found["limit"].found == "memory.max 1.00 GiB"
    assert "takes root" in found["rights"].found
    (tmp_path / "proc/sys/vm/drop_caches").write_text("")
    assert "may drop all" in checks_of(examination.page_cache_part(here, tmp_path))["rights"].found
    assert checks_of(examination.page_cache_part(replace(here, limits={})))["limit"].found == "none by a control group"
    assert checks_of(examination.machine_part(machine_environment()))["kernel"].found.startswith(os.uname().release)


def test_a_directory_is_left_as_it_was_and_its_file_system_is_named(tmp_path: Path) -> None:
    found = checks_of(examination.place_part(tmp_path, True))
    assert not list(tmp_path.iterdir())
    shell = subprocess.run(["df", "--output=fstype,source", tmp_path], capture_output=True, text=True, check=True)
    kind, source = shell.stdout.splitlines()[1].split()
    assert found["file system"].found.startswith(f"{kind} of ")
    assert source.rpartition("/")[2] in found["file system"].found or kind in ("overlay", "tmpfs")
    assert found["writing"].state is State.OK
    assert checks_of(examination.place_part(tmp_path, False))["page cache is dropped"].state is State.UNKNOWN


def test_memory_does_not_drop_its_pages() -> None:
    found = checks_of(examination.place_part(Path("/dev/shm"), True))
    assert found["file system"].found.startswith("tmpfs")
    assert found["page cache is dropped"].state is State.WARNING
    assert "tmpfs" in found["page cache is dropped"].found


def test_a_directory_that_cannot_be_written_is_broken() -> None:
    check = checks_of(examination.place_part(Path("/proc"), True))["writing"]
    assert check.state is State.FAILED
    assert "nothing can be staged" in check.remedy


def test_a_library_that_writes_no_log_is_told(tmp_path: Path) -> None:
    (tmp_path / "libdarshan.so").write_bytes(b"no library, with PMPI_Init")
    library = Library(path=tmp_path / "libdarshan.so", origin="test")
    found = checks_of(programs.recording_part({"PATH": os.environ["PATH"]}, library))
    assert found["Darshan"].found == f"{library.path} (test)"
    assert found["Darshan traces"].state is State.WARNING
    assert "wrote no log" in found["Darshan traces"].found


def test_variables_that_thin_out_a_recording_are_named(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "DARSHAN_MOD_DISABLE": "POSIX", "DXT_ENABLE_IO_TRACE": "1"}
    (tmp_path / "libdarshan.so").write_bytes(b"")
    library = Library(path=tmp_path / "libdarshan.so", origin="test")
    found = checks_of(programs.recording_part(environment, library))
    assert found["variables"].found == "DARSHAN_MOD_DISABLE=POSIX, DXT_ENABLE_IO_TRACE=1"
    assert found["variables"].remedy == "`record` unsets DARSHAN_MOD_DISABLE"
    assert "not installed" in found["strace"].found


def test_a_library_that_works_is_described(tmp_path: Path) -> None:
    log = dxt_replay.sample("imagenet").log
    library = Library(path=fake_darshan.build(tmp_path, log), origin="test")
    found = checks_of(programs.recording_part({"PATH": os.environ["PATH"], "SITE_LOGDIR": "/logs"}, library))
    assert found["Darshan traces"].state is State.OK
    assert found["Darshan is built"].found == "with HDF5"
    assert found["Darshan's logs"].found == "this library follows SITE_LOGDIR=/logs"


def test_an_object_store_is_tried_with_one_request_of_each_kind_and_nothing_stays() -> None:
    pytest.importorskip("obstore")
    with ObjectServer().running() as server:
        part = object_part(server.url())
    assert [(check.name, check.state) for check in part.checks[1:]] == [
        (name, State.OK) for name in ("PUT", "GET", "LIST", "DELETE")
    ]
    assert part.checks[0].found == server.endpoint
    assert [(each.method, each.status) for each in server.log] == [
        ("PUT", 200), ("GET", 206), ("GET", 200), ("DELETE", 204),
    ]  # fmt: skip
    assert server.log[0].key.startswith("some/prefix/dxt-replay-doctor-")
    assert server.objects == {}


def test_an_object_store_that_refuses_or_is_down_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr("dxt_replay.replay.doctor.examination.secrets.token_hex", lambda _: "a")
    with ObjectServer().running() as server:
        server.refused = {("PUT", "some/prefix/dxt-replay-doctor-a"): 403}
        refused = object_part(server.url()).checks[1:]
        server.refused = {("DELETE", "some/prefix/dxt-replay-doctor-a"): 403}
        kept = object_part(server.url()).checks[1:]
    (put,) = refused
    assert (put.name, put.state, put.found) == ("PUT", State.FAILED, "fails: the server answered 403")
    assert "AWS_ACCESS_KEY_ID" in put.remedy
    assert [check.state for check in kept] == [State.OK] * 3 + [State.FAILED]
    assert "some/prefix/dxt-replay-doctor-a" in kept[-1].remedy
    assert main(["doctor", server.url(), "--json"]) == 1  # the server has ended
    printed = json.loads(capsys.readouterr().out)
    assert printed["directory"] == server.url()
    down = printed["parts"][-1]["checks"][-1]
    assert (down["name"], down["state"], down["found"]) == ("PUT", "failed", "fails: Connection refused")
    assert main(["doctor", "s3://bucket/prefix?no_such_option=1"]) == 2


def test_without_obstore_the_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    client = object_part("s3://bucket/prefix").checks[-1]
    assert (client.name, client.state) == ("client", State.FAILED)
    assert "dxt-replay[objects]" in client.found
