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


def by_name(checks):
    return {check.name: check for check in checks}


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory):
    return dxt_replay.doctor(tmp_path_factory.mktemp("target"))


def test_this_machine_passes_with_all_cores_and_the_installed_versions(diagnosis):
    parts = {part.name: by_name(iter(part.checks)) for part in diagnosis.parts}
    assert diagnosis.passed
    built = re.findall(r'core\("([\w.]+)"\)', (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert list(doctor.CORES) == built
    assert parts["Compiled cores"]["loaded"].found == f"{len(built)} of {len(built)}"
    words = [sys.executable, "-c", "import numpy; print(numpy.__version__)"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True)
    assert parts["Versions"]["numpy"].found == listed.stdout.strip()
    assert parts["Versions"]["Python"].found.startswith(sys.version.split()[0])
    assert parts["Machine"]["kernel"].found.startswith(os.uname().release)


def test_the_object_and_the_tables_hold_every_check(tmp_path, capsys, diagnosis, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda _: diagnosis)
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["passed"] is True
    names = [check["name"] for part in printed["parts"] for check in part["checks"]]
    assert names == [check.name for part in diagnosis.parts for check in part.checks]
    assert main(["doctor", str(tmp_path), "--details"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("passed")
    assert all(name in text for name in names)
    check = Check(name="library", found="died by SIGSEGV", state=State.FAILED, remedy="load another")
    broken = Diagnosis(directory=None, parts=(Part(name="MPI", checks=(check,)),))
    monkeypatch.setattr(doctor, "examine", lambda _: broken)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("failed: 1 check found")
    assert "library: died by SIGSEGV; load another" in text


def test_a_file_is_wrong_use_before_anything_is_examined(tmp_path, capsys):
    (tmp_path / "file").write_bytes(b"")
    assert main(["doctor", str(tmp_path / "file")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert main(["doctor", "s3://bucket/prefix?no_such_option=1"]) == 2


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
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    assert run_child([sys.executable, "-c", code], patience_s=3)[1] == "did not end within 3 s"
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
    assert (loaded.found, dies.name, dies.found, dies.state) == ("2 of 3", "dies", "died by SIGILL", State.FAILED)
    found = by_name(doctor.versions(tried))
    assert found["fails"].state is State.FAILED
    assert "nothing_of_this_name" in found["fails"].found
    assert (found["csv"].state, found["no_such_package"].state) == (State.OK, State.OK)
    assert found["no_such_package"].found == "not installed (optional)"


LIBRARY = ('{"library": "MPICH Version: 4.3", "threads": "MULTIPLE"}\n', "")


@pytest.mark.parametrize(
    ("library", "started", "name", "state"),
    [
        (("", "died by SIGSEGV"), None, "library", State.FAILED),
        (('{"absent": "cannot load MPI library"}\n', ""), None, "library", State.WARNING),
        (LIBRARY, ("2\n", ""), "mpiexec", State.OK),
        (LIBRARY, ("1\n1\n", ""), "mpiexec", State.FAILED),
        (LIBRARY, ("", ""), "mpiexec", State.FAILED),
        (LIBRARY, ("", "did not end within 60 s"), "mpiexec", State.WARNING),
        (LIBRARY, None, "mpiexec", State.WARNING),
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
    assert [check.state for check in doctor.mpi()] == [State.OK] * 3


def test_limits_are_those_of_the_shell(tmp_path, monkeypatch):
    shell = subprocess.run(["bash", "-c", "ulimit -Hn"], capture_output=True, text=True, check=True).stdout.strip()
    assert shell == "unlimited" or f"{int(shell):,}" in by_name(doctor.limits(1))["open files"].found
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    found = by_name(doctor.limits(1, tmp_path))
    assert (found["open files"].state, found["open files"].found) == (
        State.WARNING,
        "256, which a replay raises up to 1,024",
    )
    assert found["locked memory"].state is found["/dev/shm"].state is State.WARNING
    assert by_name(doctor.limits(1, tmp_path / "sys"))["locked memory"].state is State.OK, "no InfiniBand"
    (tmp_path / "dev/shm").mkdir(parents=True)
    free = os.statvfs(tmp_path)
    more = free.f_bavail * free.f_frsize // (6 << 20) + 1
    states = [by_name(doctor.limits(processors, tmp_path))["/dev/shm"].state for processors in (1, more)]
    assert states == [State.OK, State.WARNING]


def test_clock_and_page_cache_are_the_kernels(tmp_path, monkeypatch):
    folder = tmp_path / "sys/devices/system/clocksource/clocksource0"
    folder.mkdir(parents=True)
    (folder / "current_clocksource").write_text("hpet\n")
    found = by_name(doctor.clocks(False, tmp_path))
    assert "source hpet" in found["clock"].found
    assert found["timer jitter"].state is State.UNKNOWN
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
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
    shell = subprocess.run(["df", "--output=fstype,source", tmp_path], capture_output=True, text=True, check=True)
    kind, source = shell.stdout.splitlines()[1].split()
    assert found["file system"].found.startswith(f"{kind} of ")
    assert source.rpartition("/")[2] in found["file system"].found or kind in ("overlay", "tmpfs")
    assert found["writing"].state is State.OK
    assert by_name(doctor.place(tmp_path, False))["page cache is dropped"].state is State.UNKNOWN
    memory = by_name(doctor.place(Path("/dev/shm"), True))["page cache is dropped"]
    assert (memory.state, "tmpfs" in memory.found) == (State.WARNING, True), "memory does not drop its pages"
    check = by_name(doctor.place(Path("/proc"), True))["writing"]
    assert (check.state, "nothing can be staged" in check.remedy) == (State.FAILED, True)


def test_tracers_are_tried_and_described(tmp_path):
    (tmp_path / "libdarshan.so").write_bytes(b"no library, with PMPI_Init")
    library = Library(path=tmp_path / "libdarshan.so", origin="test")
    environment = {"PATH": str(tmp_path), "DARSHAN_MOD_DISABLE": "POSIX", "DXT_ENABLE_IO_TRACE": "1"}
    found = by_name(doctor.tracers(environment, library))
    assert found["Darshan"].found == f"{library.path} (test)"
    assert found["Darshan traces"].state is State.WARNING
    assert "wrote no log" in found["Darshan traces"].found
    assert found["variables"].found == "DARSHAN_MOD_DISABLE=POSIX, DXT_ENABLE_IO_TRACE=1"
    assert found["variables"].remedy == "`record` unsets DARSHAN_MOD_DISABLE"
    assert "not installed" in found["strace"].found
    library = Library(path=fake_darshan.build(tmp_path, dxt_replay.sample("imagenet").log), origin="test")
    found = by_name(doctor.tracers({"PATH": os.environ["PATH"], "SITE_LOGDIR": "/logs"}, library))
    assert found["Darshan traces"].state is State.OK
    assert found["Darshan traces"].found.endswith(", with HDF5")
    assert found["Darshan's logs"].found == "this library follows SITE_LOGDIR=/logs"


def test_an_object_store_is_tried_with_one_request_of_each_kind_and_nothing_stays(capsys, monkeypatch):
    pytest.importorskip("obstore")
    monkeypatch.setattr(doctor.secrets, "token_hex", lambda _: "a")
    key = "some/prefix/dxt-replay-doctor-a"
    with ObjectServer().running() as server:
        endpoint, *checks = doctor.object_store(parse_object_url(server.url()))
        log, left = list(server.log), dict(server.objects)
        server.refused = {("PUT", key): 403}
        _, put = doctor.object_store(parse_object_url(server.url()))
        server.refused = {("DELETE", key): 403}
        kept = list(doctor.object_store(parse_object_url(server.url())))[1:]
    assert [(check.name, check.state) for check in checks] == [
        (name, State.OK) for name in ("PUT", "GET", "LIST", "DELETE")
    ]
    assert (endpoint.found, left, log[0].key) == (server.endpoint, {}, key)
    assert [(each.method, each.status) for each in log] == [("PUT", 200), ("GET", 206), ("GET", 200), ("DELETE", 204)]
    assert (put.name, put.state, put.found) == ("PUT", State.FAILED, "fails: the server answered 403")
    assert "AWS_ACCESS_KEY_ID" in put.remedy
    assert [check.state for check in kept] == [State.OK] * 3 + [State.FAILED]
    assert key in kept[-1].remedy
    assert main(["doctor", server.url(), "--json"]) == 1  # the server has ended
    printed = json.loads(capsys.readouterr().out)
    assert printed["directory"] == server.url()
    down = printed["parts"][-1]["checks"][-1]
    assert (down["name"], down["state"], down["found"]) == ("PUT", "failed", "fails: Connection refused")


def test_without_obstore_the_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    client = list(doctor.object_store(parse_object_url("s3://bucket/prefix")))[-1]
    assert (client.name, client.state, "dxt-replay[objects]" in client.found) == ("client", State.FAILED, True)
