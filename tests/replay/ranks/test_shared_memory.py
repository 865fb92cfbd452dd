"""Too little shared memory for MPI is said before MPI begins, because it ends processes by a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.replay.commands.test_ended_early import MPIEXEC

PROGRAM = """
import os
# Not through the launcher, which may lose what a process wrote just before a signal ended it.
os.dup2(os.open("{errors}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
from dxt_replay.replay.ranks.mpi_world import connect
connect()
"""
SMALL = 'mount -t tmpfs -o size=1M tmpfs /dev/shm && exec "$0" -n 2 "$1" -c "$2"'


@pytest.mark.skipif(os.geteuid() != 0 or MPIEXEC is None, reason="needs root, to mount, and mpiexec")
def test_too_little_shared_memory_is_said_before_it_kills(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    program = PROGRAM.format(errors=errors)
    command = ["unshare", "-m", "sh", "-c", SMALL, str(MPIEXEC), sys.executable, program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("cannot mount here")
    assert done.returncode != 0
    said = errors.read_text()
    assert said.count("dxt-replay: warning: /dev/shm has 1.00 MiB free") == 1
    assert "--shm-size" in said
