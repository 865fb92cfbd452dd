"""Reads a Kineto file in pieces: the text around its events, and the events in chunks that end between events.

Only one chunk is in memory at a time. Nothing is decoded here, so that a damaged event spoils no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks

CHUNK_BYTES = 512 << 10
"""Chunk size: the decoded events of a chunk fit into the processor's cache; larger chunks are a quarter slower."""

_PACKED_SHARE = 64
"""Block size for compressed files, as a part of a chunk: they unpack to 13 to 30 times their size."""

_MOST_HEAD_BYTES = 256 << 20
"""Most bytes before the events of a profile, which hold a log line per warning."""

ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[(?=\s*\{)')
"""Begin of the events; in 2020 they were the whole file."""

_FIRST_MEMBERS = (b'"ph"', b'"name"')
"""Members with which PyTorch begins an event."""
_FIRST_MEMBER = re.compile(rb'\s*(?:\{\s*\}\s*,\s*)*\{\s*("\w+")\s*:')
_END = re.compile(rb"\}\s*,?\s*\]\s*(?=[,}])")
_END_OF_ARRAY = re.compile(rb"\}\s*\]\s*\Z")
_NONE = re.compile(rb"\s*\]\s*[,}]")
_LEAST_TAIL_BYTES = 4 << 10


def unpacked(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The unpacked bytes of a file; the readable part of a cut gzip file comes before the error.

    Raises: ProfileError for a file that cannot be read or is a decompression bomb; EOFError where a gzip file is cut
    off or damaged.
    """
    try:
        with path.open("rb") as file:
            yield from unpacked_blocks(file, chunk_bytes, max(1, chunk_bytes // _PACKED_SHARE))
    except ExpansionError as error:
        raise ProfileError(f"{path} is not a profile: {error}") from error
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from error


@dataclass
class EventChunks:
    """The events of a file, chunk by chunk; `head`, `tail` and `damage` are complete once all chunks were taken.

    `head`, `tail`: the file's text before and after its events.
    `damage`: what is wrong with the file's end, None for a whole file. A chunk holds whole events, with commas and
    white space between them but none at its ends.
    """

    path: Path
    chunk_bytes: int = CHUNK_BYTES
    head: bytes = b""
    tail: bytes = b""
    damage: str | None = None
    border: re.Pattern[bytes] = re.compile(rb"(?!)")

    def __iter__(self) -> Iterator[bytes]:
        buffer = bytearray()
        parts = self._parts()
        if not self._found_events(buffer, parts):
            return
        for part in parts:
            buffer += part
            if len(buffer) >= self.chunk_bytes and (end := self._last_border(buffer)):
                yield bytes(memoryview(buffer)[:end])
                del buffer[:end]
                self._skip_comma(buffer)
        yield from self._last(bytes(buffer))

    def _parts(self) -> Iterator[bytes]:
        try:
            yield from unpacked(self.path, self.chunk_bytes)
        except EOFError as error:
            self.damage = str(error)

    def _found_events(self, buffer: bytearray, parts: Iterator[bytes]) -> bool:
        """Whether the array of events was found; `buffer` then begins with the first event."""
        for part in parts:
            buffer += part
            if (array := ARRAY.search(buffer)) and (first := _FIRST_MEMBER.match(buffer, array.end())):
                self.head = bytes(buffer[: array.end()])
                # A tool that rewrote the file may begin an event with another member.
                members = b"|".join({*_FIRST_MEMBERS, first.group(1)})
                self.border = re.compile(rb"\}\s*,\s*(?=\{\s*(?:" + members + rb")\s*:)")
                del buffer[: array.end()]
                return True
            if len(buffer) > _MOST_HEAD_BYTES:
                break
        array = ARRAY.search(buffer)
        if array and _NONE.match(buffer, array.end()):
            self.head, self.tail = bytes(buffer[: array.end()]), bytes(buffer[array.end() :])
        elif self.damage is None:
            self.damage = "it ends before its first event" if array else "it has no traceEvents"
        return False

    def _last_border(self, buffer: bytearray) -> int:
        """End of the last event that another one follows; 0 if there is none."""
        tail = _LEAST_TAIL_BYTES
        while True:
            begin = max(len(buffer) - tail, 0)
            found = [match.start() for match in self.border.finditer(buffer, begin)]
            if found:
                return found[-1] + 1
            if not begin:
                return 0
            tail *= 8

    @staticmethod
    def _skip_comma(buffer: bytearray) -> None:
        comma = buffer.index(b",")
        del buffer[: comma + 1]

    def _last(self, rest: bytes) -> Iterator[bytes]:
        """The last events, and the tail after them."""
        borders = [match.start() for match in self.border.finditer(rest)]
        end = _END_OF_ARRAY if self.head.lstrip().startswith(b"[") else _END
        found = end.search(rest, borders[-1] if borders else 0)
        if found is not None:
            self.tail = rest[found.end() :]
            yield rest[: found.start() + 1]
            return
        if self.damage is None:
            self.damage = "it is cut off"
        if borders:
            yield rest[: borders[-1] + 1]
