"""Chooses the line of a timeline for each interval, so that on each line parents enclose their children."""

from __future__ import annotations

from dataclasses import dataclass, field

LANE_THREADS = 1_000_000
"""Thread ids below it are lanes; other lines have ids from it on."""

TrackKey = tuple[int, int, str]
"""(group, number in the group, name): sorts as the lines are drawn."""


@dataclass(slots=True, kw_only=True)
class _Line:
    thread: int
    open_ends: list[int] = field(default_factory=list)


class RankTracks:
    """The lines of one rank.

    Intervals of one key come in (start, -end) order. An interval that overlaps another without lying inside it goes to
    a further line of the same name, since no viewer can draw both on one."""

    def __init__(self) -> None:
        self._lines: dict[TrackKey, list[_Line]] = {}
        self._next = LANE_THREADS

    def thread(self, key: TrackKey, start_ns: int, end_ns: int, *, preferred: int | None = None) -> int:
        """Thread id of the line for [start_ns, end_ns); `preferred` is the id of the key's first line, if it is
        a lane number."""
        lines = self._lines.setdefault(key, [])
        for line in lines:
            ends = line.open_ends
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return line.thread
        if not lines and preferred is not None and 0 <= preferred < LANE_THREADS:
            thread = preferred
        else:
            thread, self._next = self._next, self._next + 1
        lines.append(_Line(thread=thread, open_ends=[end_ns]))
        return thread

    def first_thread(self, key: TrackKey) -> int:
        """Thread id of the first line of a key that has intervals."""
        return self._lines[key][0].thread

    def busy_until_ns(self, key: TrackKey) -> int:
        """An interval of `key` that starts then or later belongs on its first line."""
        lines = self._lines.get(key)
        return lines[0].open_ends[0] if lines and lines[0].open_ends else -(1 << 63)

    def lines(self) -> list[tuple[int, str]]:
        """(thread id, name) of all lines from the top down."""
        return [
            (line.thread, key[2] if number == 0 else f"{key[2]} (overlap {number})")
            for key, lines in sorted(self._lines.items())
            for number, line in enumerate(lines)
        ]
