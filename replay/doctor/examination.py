"""Runs all checks of `dxt-replay doctor`."""

from __future__ import annotations

from pathlib import Path

from dxt_replay.replay.doctor.check import Diagnosis, Part, State
from dxt_replay.replay.doctor.machine import clocks_part, limits_part, machine_part, page_cache_part
from dxt_replay.replay.doctor.mpi import mpi_part
from dxt_replay.replay.doctor.object_place import object_part
from dxt_replay.replay.doctor.place import place_part, require_directory
from dxt_replay.replay.doctor.programs import program_parts
from dxt_replay.replay.doctor.tracers import recording_part
from dxt_replay.replay.objects.place import parse_object_url
from dxt_replay.replay.regression.machine_environment import machine_environment


def examine(target: str | Path | None) -> Diagnosis:
    """All parts, that of `target` last, a directory or the URL of an object store. Raises: UsageError if it is none."""
    if isinstance(target, Path):
        require_directory(target)
    elif target is not None:
        parse_object_url(target)
    machine = machine_environment()
    cores, versions = program_parts()
    load = all(check.state is not State.FAILED for check in cores.checks)
    if target is None:
        places: tuple[Part, ...] = ()
    else:
        places = (object_part(target) if isinstance(target, str) else place_part(target, load),)
    parts = (
        cores,
        versions,
        mpi_part(),
        machine_part(machine),
        limits_part(machine.cpus),
        clocks_part(load),
        page_cache_part(machine),
        recording_part(),
        *places,
    )
    return Diagnosis(directory=None if target is None else str(target), parts=parts)
