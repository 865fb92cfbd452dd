"""Whether an MPI launcher started this process, and the memory that MPI shares on a machine.

Apart from `mpi_world`, which loads the compiled core of a replay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_VARIABLES = ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "PALS_RANKID")
"""Set by the launchers of MPICH, Intel MPI, Cray and Open MPI in the processes that they start."""

SHARED_MEMORY = "/dev/shm"
SHARED_BYTES, SHARED_BYTES_EACH = 16 << 20, 6 << 20
"""Bytes of shared memory that MPICH 4.3 was seen to need, and for each process: 2 died with 16 MiB, 8 with 32 MiB."""


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of an MPI job, by its environment."""
    return any(variable in environment for variable in _VARIABLES)
