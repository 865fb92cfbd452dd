"""Positions of the descriptors of each process, which a trace of reads without offsets lacks.

A position belongs to the open file description: dup and fork share it, each open makes a new one (open(2), fork(2)).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from dxt_replay.traces.schema import OPEN_FLAGS

UNKNOWN = -1

_FLAGS_OF_NAME = {
    "O_RDONLY": ("read",),
    "O_WRONLY": ("write",),
    "O_RDWR": ("read", "write"),
    "O_APPEND": ("append",),
    "O_CREAT": ("create",),
    "O_EXCL": ("exclusive",),
    "O_TRUNC": ("truncate",),
    "O_DIRECT": ("direct",),
    "O_SYNC": ("sync",),
    "O_DSYNC": ("sync",),
}


def open_flags(names: Collection[str]) -> int:
    """`open_flags` of an operation from the names that open(2) gives them, such as O_RDWR; UNKNOWN without any."""
    bits = {OPEN_FLAGS.index(flag) for name in names for flag in _FLAGS_OF_NAME.get(name, ())}
    return sum(1 << bit for bit in bits) if names else UNKNOWN


@dataclass(slots=True, eq=False)
class OpenFile:
    """An open file description.

    file: its number. position: the next byte, UNKNOWN until a seek tells it.
    owner: number of the process that opened it. descriptors: number of the owner's descriptors of it.
    row: number of the row of its open, see `TracedRows.add`.
    """

    file: int
    position: int
    owner: int
    append: bool = False
    descriptors: int = 1
    row: int = -1

    def closed_by(self, process: int) -> bool:
        """Note that a process closed a descriptor; returns whether its owner has none left."""
        if process != self.owner:
            return False
        self.descriptors -= 1
        return self.descriptors == 0


STANDARD_STREAM = OpenFile(UNKNOWN, UNKNOWN, owner=-1)
"""Marks a descriptor with which the job was started as standard input, output or error: it is no storage."""


def _check(size: int) -> None:
    if not 0 <= size < 1 << 62:
        raise ValueError(size)


Descriptors = dict[int, OpenFile]
"""Descriptor table of a process: open file description by descriptor."""


@dataclass(slots=True)
class Positions:
    """Positions and sizes of all files of a trace.

    checks, misses: seeks that only ask for the position, and those whose result differed from the position here.
    suspect: file -> operations whose offset may be wrong.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    checks: int = 0
    misses: int = 0
    suspect: Counter[int] = field(default_factory=Counter)
    _seen: dict[int, int] = field(default_factory=dict)

    def moved(self, opened: OpenFile, length: int, *, is_write: bool) -> int:
        """The offset of a read or write of `length` bytes at the position, which it advances."""
        if opened.append and is_write:
            opened.position = self.sizes.get(opened.file, 0)
        offset = opened.position
        if offset == UNKNOWN:
            self.suspect[opened.file] += 1
            return offset
        opened.position = offset + length
        if is_write:
            self.grow(opened.file, opened.position)
        return offset

    def grow(self, file: int, end: int) -> None:
        """Note that the file is at least `end` bytes long. Raises: ValueError for an impossible size."""
        _check(end)
        if end > self.sizes.get(file, 0):
            self.sizes[file] = end
        if end > self._seen.get(file, 0):
            self._seen[file] = end

    def truncate(self, file: int, size: int = 0) -> None:
        """Set the size of the file. Raises: ValueError for an impossible size."""
        _check(size)
        self.sizes[file] = size
        self._seen[file] = max(size, self._seen.get(file, 0))

    def seek(self, opened: OpenFile, position: int, *, only_asked: bool) -> None:
        """Set the position to the result of a seek. `only_asked`: the seek did not move (SEEK_CUR by 0), so its result
        also checks the position that is known here."""
        if only_asked and opened.position != UNKNOWN:
            self.checks += 1
            self.misses += opened.position != position
        opened.position = position

    def warnings(self) -> list[str]:
        """Warnings from the seeks that only ask for the position."""
        return [
            f"{self.misses} of {self.checks} seeks that ask for the position contradict the reads and writes before "
            "them: the trace lacks calls, and offsets may be wrong"
        ] * bool(self.misses)

    def greatest_sizes(self) -> dict[int, int]:
        """File -> the largest size seen."""
        return dict(self._seen)
