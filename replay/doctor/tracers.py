"""The tracers that `record` would use here: Darshan, tried on a small process, and strace."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from dxt_replay.profiler_merge.recorder import darshan_settings as settings
from dxt_replay.profiler_merge.recorder.darshan_library import Library, find_library
from dxt_replay.profiler_merge.recorder.darshan_tracer import set_up
from dxt_replay.profiler_merge.recorder.other_tracers import find_strace
from dxt_replay.replay.doctor.check import Check, Part, State
from dxt_replay.traces.errors import RecordingError

_BUILT_WITH = {"MPI": b"PMPI_Init", "HDF5": b"H5get_libversion", "PnetCDF": b"ncmpi_inq_libvers"}
"""What Darshan can be built with -> a name of its interface that such a library holds."""


def recording_part(environment: Mapping[str, str] = os.environ, library: Library | None = None) -> Part:
    """Darshan's library: where it is, how it was built, whether it traces, and the variables that change it.

    library: examined in place of the one that is found.
    """
    found = library or find_library(environment)
    darshan = [_absent()] if found is None else list(_darshan(found, environment))
    return Part(name="Recording", checks=(*darshan, *_variables(environment), _strace(environment)))


def _absent() -> Check:
    remedy = "only `record` needs it: conda install -c conda-forge darshan-runtime, or module load darshan-runtime"
    return Check(name="Darshan", found="libdarshan.so was not found", state=State.WARNING, remedy=remedy)


def _darshan(library: Library, environment: Mapping[str, str]) -> Iterator[Check]:
    yield Check(name="Darshan", found=f"{library.path} ({library.origin})")
    try:
        content = library.path.read_bytes()
        with tempfile.TemporaryDirectory(prefix="dxt-replay-doctor-") as folder:
            tracer = set_up(library, Path(folder), ["python"], dxt_mib=settings.LEAST_DXT_MIB, include=()).tracer
    except (RecordingError, OSError) as error:
        remedy = "name another library with `record --library`, or record with --with strace"
        yield Check(name="Darshan traces", found=str(error), state=State.WARNING, remedy=remedy)
        return
    built = [name for name, word in _BUILT_WITH.items() if word in content]
    yield Check(name="Darshan traces", found=f"a small program, with DXT; release {tracer.version or 'not known'}")
    yield Check(name="Darshan is built", found=f"with {', '.join(built)}" if built else "without MPI and HDF5")
    if by_site := settings.paths_by_site(content, environment):
        found = ", ".join(f"{name}={value}" for name, value in by_site.items())
        yield Check(name="Darshan's logs", found=f"this library follows {found}")


def _variables(environment: Mapping[str, str]) -> Iterator[Check]:
    names = [
        name for name in environment if name.startswith(("DARSHAN_", "DXT_")) and not name.startswith("DXT_REPLAY")
    ]
    if names:
        found = ", ".join(f"{name}={environment[name]}" for name in sorted(names))
        ignored = [name for name in sorted(names) if name in settings.UNSET]
        yield Check(name="variables", found=found, remedy=f"`record` unsets {', '.join(ignored)}" if ignored else "")


def _strace(environment: Mapping[str, str]) -> Check:
    try:
        tracer = find_strace(environment)
    except RecordingError as error:
        return Check(name="strace", found=str(error), remedy="only `record --with strace` needs it")
    return Check(name="strace", found=f"{tracer.program} {tracer.version}".strip())
