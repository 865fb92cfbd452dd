from __future__ import annotations

import pytest

from dxt_replay.replay.commands.session import ending_together
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.traces.errors import TargetError


class Counted(Solo):
    left = 0

    def leave(self) -> None:
        self.left += 1


def test_the_communication_has_ended_before_anything_is_printed() -> None:
    """Where `| head` ends the launcher while a result is printed, MPI's memory in /dev/shm would stay."""
    comm = Counted()
    with ending_together(comm):
        assert comm.left == 0
    assert comm.left == 1


def test_an_error_is_told_to_the_others_first() -> None:
    comm = Counted()
    with pytest.raises(TargetError), ending_together(comm):
        raise TargetError("full")
    assert comm.left == 0
