"""The lines of a tracer's text file, plain or gzipped, in bounded memory, complete or cut off."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dxt_replay.traces.errors import LogError
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks

_BLOCK_BYTES = 1 << 20
LONGEST_LINE = 1 << 20


@dataclass(slots=True)
class Damage:
    """Parts of the files that could not be used.

    `lines`: number of damaged ones. File names: `cut` end too early; `damaged` have compressed data that do not match
    their checksum, which follows the data."""

    lines: int = 0
    cut: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is damaged."""
        return bool(self.lines or self.cut or self.damaged)

    def warnings(self) -> list[str]:
        """One sentence for each kind of damage."""
        found = []
        if self.cut:
            found.append(f"the end of {', '.join(self.cut)} is cut off: later events are not in the capture")
        if self.damaged:
            found.append(
                f"the compressed data of {', '.join(self.damaged)} do not match their checksum: events after the "
                "damage are not in the capture, and events before it may be wrong"
            )
        if self.lines:
            found.append(f"{self.lines} damaged line{'s' * (self.lines > 1)} left out")
        return found


def text_lines(path: Path, damage: Damage) -> Iterator[bytes]:
    """Each line without its end.

    An incomplete last line, and a gzip member that is cut or damaged, are noted in `damage` instead of raised.
    """
    try:
        with path.open("rb") as file:
            yield from _split(_readable(file, path, damage), damage)
    except ExpansionError as error:
        raise LogError(f"{path} is not a trace: {error}") from error
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from error


def _readable(file: BinaryIO, path: Path, damage: Damage) -> Iterator[bytes]:
    """The bytes in blocks; for a gzip file that is cut off or damaged, those before that."""
    try:
        yield from unpacked_blocks(file, _BLOCK_BYTES)
    except EOFError as error:
        if isinstance(error.__cause__, zlib.error):
            damage.damaged = (*damage.damaged, path.name)
        else:
            damage.cut = (*damage.cut, path.name)


def _split(blocks: Iterable[bytes], damage: Damage) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        yield from lines
        if len(rest) > LONGEST_LINE:
            damage.lines += 1
            rest = b""
    if rest:
        yield rest
