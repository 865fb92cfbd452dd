"""The lines of a tracer's text file, plain or gzipped, in bounded memory, complete or cut off."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dxt_replay.traces.errors import LogError
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks

_BLOCK_BYTES = _LONGEST_LINE = 1 << 20


@dataclass(slots=True)
class Damage:
    """Number of damaged lines, and names of files that end too early (`cut`) or whose compressed data do not match
    their checksum, which follows the data (`damaged`)."""

    lines: int = 0
    cut: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

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
    """Each line without its end. What is cut off, or damaged in a gzip member, is noted in `damage` instead of raised.

    Raises: LogError for a file that cannot be read, or expands beyond all measure."""
    rest = b""
    try:
        with path.open("rb") as file:
            try:
                for block in unpacked_blocks(file, _BLOCK_BYTES):
                    *lines, rest = (rest + block).split(b"\n")
                    yield from lines
                    if len(rest) > _LONGEST_LINE:
                        damage.lines += 1
                        rest = b""
            except EOFError as error:
                (damage.damaged if isinstance(error.__cause__, zlib.error) else damage.cut).append(path.name)
            if rest:
                yield rest
    except ExpansionError as error:
        raise LogError(f"{path} is not a trace: {error}") from error
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from error
