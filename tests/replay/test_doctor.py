"""`dxt-replay doctor`: what its checks say of machines that lack something, held against the machine's own tools."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.profiler_merge.recorder.darshan import Library
from dxt_replay.replay import doctor
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.doctor import Check, Diagnosis, Part, State, run_child
from dxt_replay.replay.regress.environment import machine_environment
from dxt_replay.replay.target.object_store import parse_object_url
from tests import fake_darshan
from tests.object_servers import ObjectServer
from tests.places import ROOT

OK, WARNING, FAILED, UNKNOWN = State


def by_name(checks):
    return {check.name: check for check in checks}


def told_by(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_this_machine_passes_and_the_object_and_the_tables_hold_every_check(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_S", 0.1)
    monkeypatch.setattr(doctor, "OPTIONAL", {"h5py": "HDF5"})
    diagnosis = dxt_replay.doctor(tmp_path)
    parts = {part.name: by_name(iter(part.checks)) for part in diagnosis.parts}
    assert diagnosis.passed
    built = re.findall(r'core\("([\w.]+)"\)', (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert list(doctor.CORES) == built
    assert parts["Compiled cores"]["loaded"].found == f"{len(built)} of {len(built)}"
    numpy = told_by(sys.executable, "-c", "import numpy; print(numpy.__version__)")
    assert parts["Versions"]["numpy"].found == numpy
    assert parts["Versions"]["Python"].found.startswith(sys.version.split()[0])
    assert parts["Machine"]["kernel"].found.startswith(os.uname().release)

    monkeypatch.setattr(doctor, "examine", lambda _: diagnosis)
    names = [check.name for part in diagnosis.parts for check in part.checks]
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["passed"], [each["name"] for part in printed["parts"] for each in part["checks"]]) == (True, names)
    assert main(["doctor", str(tmp_path), "--details"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("passed")
    assert all(name in text for name in names)
    check = Check(name="library", found="died by SIGSEGV", state=FAILED, remedy="load another")
    broken = Diagnosis(directory=None, parts=(Part(name="MPI", checks=(check,)),))
    monkeypatch.setattr(doctor, "examine", lambda _: broken)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("failed: 1 check found")
    assert "library: died by SIGSEGV; load another" in text


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os; os.kill(os.getpid(), 11)", ("", "died by SIGSEGV")),
        ("raise SystemExit(3)", ("", "ended with status 3")),
        ("print(1)", ("1\n", "")),
        # It is no process of the job that this one may be of.
        ("import os; print([name for name in os.environ if name.startswith(('PMI', 'OMPI'))])", ("[]\n", "")),
    ],
)
def test_how_a_child_ended_is_told(code, ended, monkeypatch):
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    assert run_child([sys.executable, "-c", code]) == ended
    assert run_child(["/nowhere/it"])[1] == "/nowhere/it cannot be started: No such file or directory"


def test_a_child_that_hangs_leaves_no_process(tmp_path):
    hangs = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    assert run_child(["sh", "-c", hangs], patience_s=0.5)[1] == "did not end within 0.5 s"
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    # SIGKILL is delivered before run_child returns; the kernel takes the process down when it next gets a core.
    deadline, state = time.monotonic() + 60, "R"
    while state != "Z" and time.monotonic() < deadline:
        try:
            state = status.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            state = "Z"
        time.sleep(0.01)
    assert state == "Z"


def test_a_module_that_crashes_is_named_and_the_others_are_still_tried(tmp_path, monkeypatch):
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    (tmp_path / "fails.py").write_text("import nothing_of_this_name\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "CORES", ("json", "dies", "email"))
    monkeypatch.setattr(doctor, "NEEDED", ("fails", "csv"))
    monkeypatch.setattr(doctor, "OPTIONAL", {"no_such_package": "nothing"})
    tried = doctor.imported(["json", "dies", "email", "fails", "csv", "no_such_package"])
    loaded, dies = doctor.cores(tried)
    assert (loaded.found, dies.name, dies.found, dies.state) == ("2 of 3", "dies", "died by SIGILL", FAILED)
    found = by_name(doctor.versions(tried))
    assert [found[name].state for name in ("fails", "csv", "no_such_package")] == [FAILED, OK, OK]
    assert "nothing_of_this_name" in found["fails"].found
    assert found["no_such_package"].found == "not installed (optional)"


LIBRARY = ('{"library": "MPICH Version: 4.3", "threads": "MULTIPLE"}\n', "")


@pytest.mark.parametrize(
    ("library", "started", "name", "state"),
    [
        (("", "died by SIGSEGV"), None, "library", FAILED),
        (('{"absent": "cannot load MPI library"}\n', ""), None, "library", WARNING),
        (LIBRARY, ("2\n", ""), "mpiexec", OK),
        (LIBRARY, ("1\n1\n", ""), "mpiexec", FAILED),
        (LIBRARY, ("", ""), "mpiexec", FAILED),
        (LIBRARY, ("", "did not end within 60 s"), "mpiexec", WARNING),
        (LIBRARY, None, "mpiexec", WARNING),
    ],
)
def test_an_mpi_that_dies_or_belongs_to_another_mpiexec_is_broken_and_an_absent_one_is_not(
    library, started, name, state, tmp_path, monkeypatch
):
    if started is not None:
        (tmp_path / "mpiexec").write_text("#!/bin/sh\n")
        (tmp_path / "mpiexec").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = list(doctor.mpi(lambda words: library if words[0] == sys.executable else started or ("", "")))
    assert (found[-1].name, found[-1].state) == (name, state)
    assert name == "library" or found[1].found == "MULTIPLE"


@pytest.mark.mpi
def test_the_library_and_the_launcher_of_this_machine_work_together():
    if shutil.which("mpiexec") is None:
        pytest.skip("no mpiexec here")
    assert [check.state for check in doctor.mpi()] == [OK] * 3


def test_limits_clock_and_page_cache_are_those_of_the_shell_and_the_kernel(tmp_path, monkeypatch):
    shell = told_by("bash", "-c", "ulimit -Hn")
    assert shell == "unlimited" or f"{int(shell):,}" in by_name(doctor.limits(1))["open files"].found
    for folder in ("sys/class/infiniband/mlx5_0", "sys/devices/system/clocksource/clocksource0", "proc/sys/vm"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    found = by_name(doctor.limits(1, tmp_path))
    assert found["open files"].found == "256, which a replay raises up to 1,024"
    assert {found[name].state for name in ("open files", "locked memory", "/dev/shm")} == {WARNING}
    assert by_name(doctor.limits(1, tmp_path / "sys"))["locked memory"].state is OK, "no InfiniBand"
    (tmp_path / "dev/shm").mkdir(parents=True)
    free = os.statvfs(tmp_path)
    more = free.f_bavail * free.f_frsize // (6 << 20) + 1
    states = [by_name(doctor.limits(processors, tmp_path))["/dev/shm"].state for processors in (1, more)]
    assert states == [OK, WARNING]

    (tmp_path / "sys/devices/system/clocksource/clocksource0/current_clocksource").write_text("hpet\n")
    found = by_name(doctor.clocks(False, tmp_path))
    assert ("source hpet" in found["clock"].found, found["timer jitter"].state) == (True, UNKNOWN)
    cgroup = {"memory.max": str(1 << 30), "cpu.max": "1 2"}
    for limits, bound, may in ((cgroup, "memory.max 1.00 GiB", False), ({}, "none by a control group", True)):
        here = replace(machine_environment(), limits=limits)
        monkeypatch.setattr(doctor, "machine_environment", lambda here=here: here)
        if may:
            (tmp_path / "proc/sys/vm/drop_caches").write_text("")
        found = by_name(doctor.machine(tmp_path))
        assert (found["page cache limit"].found, "may drop all" in found["page cache rights"].found) == (bound, may)


def test_a_directory_is_left_as_it_was_and_its_file_system_is_named(tmp_path):
    found = by_name(doctor.place(tmp_path, True))
    assert not list(tmp_path.iterdir())
    kind, source = told_by("df", "--output=fstype,source", tmp_path).splitlines()[1].split()
    assert found["file system"].found.startswith(f"{kind} of ")
    assert source.rpartition("/")[2] in found["file system"].found or kind in ("overlay", "tmpfs")
    assert found["writing"].state is OK
    assert by_name(doctor.place(tmp_path, False))["page cache is dropped"].state is UNKNOWN
    memory = by_name(doctor.place(Path("/dev/shm"), True))["page cache is dropped"]
    assert (memory.state, "tmpfs" in memory.found) == (WARNING, True), "memory does not drop its pages"
    check = by_name(doctor.place(Path("/proc"), True))["writing"]
    assert (check.state, "nothing can be staged" in check.remedy) == (FAILED, True)


def test_tracers_are_tried_and_described(tmp_path):
    library = Library(path=tmp_path / "libdarshan.so", origin="test")
    library.path.write_bytes(b"no library, with PMPI_Init")
    environment = {"PATH": str(tmp_path), "DARSHAN_MOD_DISABLE": "POSIX", "DXT_ENABLE_IO_TRACE": "1"}
    found = by_name(doctor.tracers(environment, library))
    assert found["Darshan"].found == f"{library.path} (test)"
    assert (found["Darshan traces"].state, "wrote no log" in found["Darshan traces"].found) == (WARNING, True)
    assert found["variables"].found == "DARSHAN_MOD_DISABLE=POSIX, DXT_ENABLE_IO_TRACE=1"
    assert found["variables"].remedy == "`record` unsets DARSHAN_MOD_DISABLE"
    assert "not installed" in found["strace"].found
    library = Library(path=fake_darshan.build(tmp_path, dxt_replay.sample("imagenet").log), origin="test")
    found = by_name(doctor.tracers({"PATH": os.environ["PATH"], "SITE_LOGDIR": "/logs"}, library))
    assert (found["Darshan traces"].state, found["Darshan traces"].found[-11:]) == (OK, ", with HDF5")
    assert found["Darshan's logs"].found == "this library follows SITE_LOGDIR=/logs"


def test_an_object_store_is_tried_with_one_request_of_each_kind_and_nothing_stays(capsys, monkeypatch):
    pytest.importorskip("obstore")
    monkeypatch.setattr(doctor.secrets, "token_hex", lambda _: "a")
    key = "some/prefix/dxt-replay-doctor-a"
    with ObjectServer().running() as server:
        at = parse_object_url(server.url())
        endpoint, *checks = doctor.object_store(at)
        log, left = list(server.log), dict(server.objects)
        server.refused = {("PUT", key): 403}
        _, put = doctor.object_store(at)
        server.refused = {("DELETE", key): 403}
        kept = list(doctor.object_store(at))[1:]
    assert [(check.name, check.state) for check in checks] == [(name, OK) for name in ("PUT", "GET", "LIST", "DELETE")]
    assert (endpoint.found, left, log[0].key) == (server.endpoint, {}, key)
    assert [(each.method, each.status) for each in log] == [("PUT", 200), ("GET", 206), ("GET", 200), ("DELETE", 204)]
    assert (put.name, put.state, put.found) == ("PUT", FAILED, "fails: the server answered 403")
    assert "AWS_ACCESS_KEY_ID" in put.remedy
    assert [check.state for check in kept] == [OK, OK, OK, FAILED]
    assert key in kept[-1].remedy
    for name in ("cores", "versions", "mpi", "machine", "limits", "clocks", "tracers"):
        monkeypatch.setattr(doctor, name, lambda *_: iter(()))
    monkeypatch.setattr(doctor, "imported", lambda names: dict.fromkeys(names, ""))
    assert main(["doctor", server.url(), "--json"]) == 1  # the server has ended
    printed = json.loads(capsys.readouterr().out)
    assert printed["directory"] == server.url()
    expected = {"name": "PUT", "state": "failed", "found": "fails: Connection refused"}
    assert printed["parts"][-1]["checks"][-1].items() >= expected.items()
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    client = list(doctor.object_store(parse_object_url("s3://bucket/prefix")))[-1]
    assert (client.name, client.state, "dxt-replay[objects]" in client.found) == ("client", FAILED, True)
