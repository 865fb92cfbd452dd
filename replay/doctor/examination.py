"""Runs all checks of `dxt-replay doctor`."""

from __future__ import annotations

from pathlib import Path

from dxt_replay.replay.doctor.check import Diagnosis, State
from dxt_replay.replay.doctor.machine import clocks_part, limits_part, machine_part, page_cache_part
from dxt_replay.replay.doctor.mpi import mpi_part
from dxt_replay.replay.doctor.place import place_part, require_directory
from dxt_replay.replay.doctor.programs import program_parts
from dxt_replay.replay.doctor.tracers import recording_part
from dxt_replay.replay.regression.machine_environment import machine_environment


def examine(directory: Path | None) -> Diagnosis:
    """All parts, that of `directory` last. Raises: UsageError if it is no directory."""
    if directory is not None:
        require_directory(directory)
    machine = machine_environment()
    cores, versions = program_parts()
    load = all(check.state is not State.FAILED for check in cores.checks)
    places = () if directory is None else (place_part(directory, load),)
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
    return Diagnosis(directory=None if directory is None else str(directory), parts=parts)
