"""The paces of a replay, one row each; --pace, its explanation, its checks and the loop's clock follow from them."""

from __future__ import annotations

from enum import Enum


class Pace(Enum):
    """How a replay is paced. The value is the choice of --pace.

    meaning: when an operation is issued, for --help.
    clock: from when the loop counts an item's due time, a name of `replay.engine.items.LoopPace`: the start of the run
        (ABSOLUTE), the end of the item before (THINK), or not at all (NONE).
    follows_recording: whether recorded times, or what follows from them, decide when; only then is there a time that
        the whole replay should take, and computation between the operations.
    follows_training: whether the causal model of the training loop decides, so that a run has a time of the training.
    """

    meaning: str
    clock: str
    follows_recording: bool
    follows_training: bool

    TIMED = "timed", "at its original time", "ABSOLUTE", True, False
    THINK = "think", "its original think time after the previous one", "THINK", True, False
    STEPS = "steps", "when the training loop allows it", "THINK", True, True
    NONE = "none", "at once", "NONE", False, False

    def __new__(cls, value: str, meaning: str, clock: str, recorded: bool, of_training: bool) -> Pace:
        """A row of the table."""
        pace = object.__new__(cls)
        pace._value_, pace.meaning, pace.clock = value, meaning, clock
        pace.follows_recording, pace.follows_training = recorded, of_training
        return pace

    @classmethod
    def named(cls, value: str) -> Pace:
        """The pace of this name, one of PACE_CHOICES."""
        return next(pace for pace in cls if pace.value == value)

    @property
    def is_closed_loop(self) -> bool:
        """Whether an operation waits for those before it."""
        return self.clock == "THINK"


PACE_CHOICES = tuple(str(pace.value) for pace in Pace)
"""Names of the paces, as `dxt-replay run --pace` takes them."""

API_CHOICES = ("auto", "posix", "stdio", "mpiio", "hdf5", "s3", "null")
"""The interfaces through which a replay can issue the rows.

auto: the interface of each row.
posix, stdio, null: this one for all rows.
mpiio: MPI-IO for all rows; a file that has rows of MPI-IO is replayed from those.
hdf5: the HDF5 library for HDF5 files; a file that has rows of HDF5 is replayed from those. Other files as auto.
s3: requests to an object store for all rows: what auto means with an `s3://` target.
"""

COMPUTE_CHOICES = ("sleep", "spin")
"""Names of what a replay does during the recorded computation between operations."""
