"""Parses a line of strace's output: thread, call, time, result.

Forms seen in strace 4.26 to 6.11: `[pid N] ` or `N ` first or neither (-ff), `<unfinished ...>`, `<... NAME resumed>`
where the lines of several threads mix, `= 4</path>`, `= -1 ENOENT (...)`, `= ?`, and ` <0.000012>` last with -T.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

LINE = re.compile(
    rb"(?:\[pid +(\d+)\] +|(\d+) +)?(\d{9,10})\.(\d{3,9}) (?:(\w+)\(|<\.\.\. (\w+) resumed>)(.*)", re.DOTALL
)
ANY_CALL = re.compile(rb"(?:\[pid +\d+\] +|\d+ +)?(?:[\d:.]+ )?(?:\w+\(|<\.\.\. \w+ resumed>).*")
"""Also without a time, or with a time of the day."""
ENDED = re.compile(rb"(?:\[pid +(\d+)\] +|(\d+) +)?[\d.]+ \+\+\+ ")
SIGNAL = re.compile(rb"(?:\[pid +\d+\] +|\d+ +)?[\d.]* ?--- ")
_TAIL = re.compile(
    rb"(.*)\) += (0x[0-9a-f]{1,16}|-?\d{1,18}|\?)(?:<((?:[^>\\]|\\.)*)>)?(.*?)(?: <(\d{1,8})\.(\d{1,9})>)?", re.DOTALL
)
_SCALE = [10 ** (9 - digits) for digits in range(10)]
"""Nanoseconds of the last digit, by the number of decimals."""
_UNFINISHED = re.compile(rb" *<unfinished \.\.\.>\Z")
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}


class Call(NamedTuple):
    """A completed system call.

    tid: thread, from the lines or the file name.
    name: without its number or version.
    arguments: the text between the brackets. result: as a number. path: of the descriptor that is the result.
    timed: whether the duration was recorded.
    """

    tid: int
    name: bytes
    arguments: bytes
    result: int
    path: bytes | None
    start_ns: int
    end_ns: int
    timed: bool


def unescape(text: bytes) -> bytes:
    """The bytes that a quoted text or a path of strace stands for."""
    return _ESCAPE.sub(_byte, text) if b"\\" in text else text


def _byte(match: re.Match[bytes]) -> bytes:
    found = match[1]
    return bytes([int(found, 8) & 255]) if found[:1].isdigit() else _LETTERS.get(found, found)


def time_ns(seconds: bytes, fraction: bytes) -> int:
    """Nanoseconds of a decimal number."""
    return int(seconds + fraction) * _SCALE[len(fraction)]


class LineReader:
    """Turns lines into calls: joins the two halves of interrupted calls, and skips calls of unwanted names.

    `tid`: thread of the file, for lines that do not name one.
    """

    def __init__(self, wanted: Callable[[bytes], bool], tid: int) -> None:
        self._wanted, self._tid = wanted, tid
        self._open: dict[int, tuple[bytes, int, bytes]] = {}
        self.damaged = 0
        self.first_ns = 0
        self.last_ns = 0

    def call(self, line: bytes) -> Call | int | None:
        """A call, the id of an ended thread, or None for anything else; counts damage."""
        found = LINE.fullmatch(line)
        if found is None:
            return self._other(line)
        before, after, seconds, fraction, name, resumed, rest = found.groups()
        tid = int(before or after or self._tid)
        start_ns = self.last_ns = time_ns(seconds, fraction)
        if not self.first_ns:
            self.first_ns = start_ns
        if resumed is not None:
            name = resumed
            began = self._open.pop(tid, None)
            if began is None or began[0] != name:
                # It began before the trace, or before a lost stretch.
                self.damaged += began is not None and self._wanted(name)
                return None
            _, start_ns, first = began
            rest = first + rest
        if not self._wanted(name):
            return None
        if rest.endswith(b"<unfinished ...>"):
            self._open[tid] = (name, start_ns, _UNFINISHED.sub(b"", rest))
            return None
        return self._finished(tid, name, rest, start_ns)

    def _finished(self, tid: int, name: bytes, rest: bytes, start_ns: int) -> Call | None:
        found = _TAIL.fullmatch(rest)
        if found is None:
            self.damaged += 1
            return None
        arguments, result, path, _, seconds, fraction = found.groups()
        if result == b"?":
            return None
        value = int(result, 16) if result.startswith(b"0x") else int(result)
        end_ns = start_ns if seconds is None else start_ns + time_ns(seconds, fraction)
        return Call(tid, name, arguments, value, path, start_ns, end_ns, seconds is not None)

    def _other(self, line: bytes) -> int | None:
        ended = ENDED.match(line)
        if ended is not None:
            return int(ended[1] or ended[2] or self._tid)
        if line.strip() and not SIGNAL.match(line) and not line.startswith(b"strace: "):
            self.damaged += 1
        return None
