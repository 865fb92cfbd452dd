"""The compiled cores and the packages: each is imported in a process of its own, because one of them may crash."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version

from dxt_replay.replay.doctor.check import Check, Part, State
from dxt_replay.replay.doctor.child import Ended, run_python
from dxt_replay.traces.version import VERSION

CORES = (
    "dxt_replay.replay.engine.issue",
    "dxt_replay.replay.engine.link_free",
    "dxt_replay.replay.causal._lane_events",
    "dxt_replay.replay.simulation._simulated_storage",
    "dxt_replay.replay.target._small_files",
    "dxt_replay.traces._memoryview",
    "dxt_replay.traces.measures._passes",
    "dxt_replay.profiler_merge.darshan._overlap_lanes",
    "dxt_replay.profiler_merge.profiles.xplane._xplane",
    "dxt_replay.profiler_merge.recorder._page_faults",
)
"""The compiled modules of setup.py."""

NEEDED = ("numpy", "pyarrow", "click", "msgspec", "yaml")
"""Packages without which no capture can be looked at or replayed."""

OPTIONAL: Mapping[str, str] = {
    "mpi4py": "replays of several processes: pip install 'dxt-replay[mpich]'",
    "h5py": "HDF5 files of twins and logs: pip install 'dxt-replay[hdf5]'",
    "pandas": "tables as DataFrames: pip install 'dxt-replay[pandas]'",
    "darshan": "logs of a Darshan newer than this release: pip install 'dxt-replay[darshan]'",
    "plotly": "`figure` in Python: pip install 'dxt-replay[charts]'",
    "obstore": "targets in object stores: pip install 'dxt-replay[objects]'",
    "distributed": "`--dask`: pip install 'dxt-replay[dask]'",
}
"""Package -> what it is for, and how to get it."""

DISTRIBUTIONS = {"yaml": "PyYAML"}
"""Package -> name under which it is installed, where the two differ."""

IMPORTS = """
import importlib, json, sys
for name in sys.argv[1:]:
    print(json.dumps({"name": name}), flush=True)
    try:
        importlib.import_module(name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        print(json.dumps({"name": name, "error": f"{type(error).__name__}: {error}", "absent": absent}), flush=True)
    else:
        print(json.dumps({"name": name, "error": ""}), flush=True)
"""
"""Announces each module before it is imported: the last one that was announced alone is the one that crashed."""


def program_parts(run: Callable[..., Ended] = run_python) -> tuple[Part, Part]:
    """The compiled cores, and the versions of Python and of the packages."""
    modules = (*CORES, *NEEDED, *OPTIONAL)
    errors = dict.fromkeys(modules, "")
    absent = set()
    left = list(modules)
    while left:
        ended = run(IMPORTS, *left)
        lines = [json.loads(line) for line in ended.output.splitlines() if line.startswith('{"name": ')]
        for line in lines:
            if "error" in line:
                errors[line["name"]] = line["error"]
            if line.get("absent"):
                absent.add(line["name"])
        done = {line["name"] for line in lines if len(line) > 1}
        left = [name for name in left if name not in done]
        if left:  # the process ended amid the import of the first of these
            errors[left.pop(0)] = ended.trouble or "the process that imported it ended"
    return _cores(errors), _versions(errors, absent)


def _cores(errors: Mapping[str, str]) -> Part:
    remedy = "install dxt-replay again: pip install --force-reinstall dxt-replay"
    broken = [
        Check(name=name.rpartition(".")[2], found=errors[name], state=State.FAILED, remedy=remedy)
        for name in CORES
        if errors[name]
    ]
    loaded = Check(name="loaded", found=f"{len(CORES) - len(broken)} of {len(CORES)}")
    return Part(name="Compiled cores", checks=(loaded, *broken))


def _versions(errors: Mapping[str, str], absent: set[str]) -> Part:
    python = Check(name="Python", found=f"{platform.python_version()} ({platform.python_implementation()})")
    needed = [_package(name, errors[name], State.FAILED, f"pip install {DISTRIBUTIONS.get(name, name)}")
              for name in NEEDED]  # fmt: skip
    optional = [
        Check(name=name, found="not installed (optional)", remedy=f"for {use}")
        if name in absent
        else _package(name, errors[name], State.WARNING, f"for {use}")
        for name, use in OPTIONAL.items()
    ]
    return Part(name="Versions", checks=(Check(name="dxt-replay", found=VERSION), python, *needed, *optional))


def _package(name: str, error: str, state: State, remedy: str) -> Check:
    shown = DISTRIBUTIONS.get(name, name)
    if error:
        return Check(name=shown, found=error, state=state, remedy=remedy)
    return Check(name=shown, found=_version_of(shown))


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "version not known"
