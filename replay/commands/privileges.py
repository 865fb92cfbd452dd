"""What a command keeps of root's capabilities: those that its files need, and nothing that changes the machine."""

from __future__ import annotations

import ctypes
import os
import struct

KEPT = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_FOWNER": 3, "CAP_IPC_LOCK": 14}
"""Capability -> its number in linux/capability.h. The first three let root read captures and write targets of other
users, also in directories such as /tmp; with the last, MPI may register memory with a network card."""

RUNS_JOBS = "record"
"""The command that runs a job of the user's, which keeps what it was given."""

_VERSION_3 = 0x20080522
_NO_NEW_PRIVILEGES = 38
"""Numbers of linux/capability.h and linux/prctl.h."""


def drop_capabilities() -> None:
    """Give up all capabilities but KEPT, for this process and its children. Called before a thread is started: each
    thread has capabilities of its own, which it inherits. Nothing happens for other users than root.

    Where the system refuses, the process goes on as it was.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", _VERSION_3, 0)
    found = ctypes.create_string_buffer(24)
    if libc.capget(header, found):
        return
    _, permitted, inheritable = struct.unpack_from("=3I", found.raw)  # KEPT is in the lower 32
    kept = sum(1 << number for number in KEPT.values())
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)  # or a child of root would have all of them again
    libc.capset(header, struct.pack("=6I", permitted & kept, permitted & kept, inheritable & kept, 0, 0, 0))
