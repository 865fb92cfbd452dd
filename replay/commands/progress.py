"""Shows progress on a terminal for work that takes longer than a second; prints nothing into a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dxt_replay.replay.commands.session import current, timed_phase
from dxt_replay.traces.units import format_bytes, format_count, format_duration, ns_to_seconds

if TYPE_CHECKING:
    from dxt_replay.replay.run.feeder import Progress

QUIET_S = 1.0
_PERIOD_S = 0.2


def _is_watched() -> bool:
    """Whether stderr is a terminal, and the user did not ask for quiet."""
    return sys.stderr.isatty() and not current().quiet


class _Line:
    """One line on a terminal's stderr that is rewritten, at most five times a second, after a quiet second."""

    def __init__(self) -> None:
        self._shown = _is_watched()
        self._next = time.monotonic() + QUIET_S
        self._width = 0

    def show(self, text: Callable[[], str]) -> None:
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PERIOD_S
        line = text()
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


@contextmanager
def _line() -> Iterator[_Line]:
    line = _Line()
    try:
        yield line
    finally:
        line.clear()


@contextmanager
def byte_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (bytes done, bytes in all) that shows how far `what` has come, with rate and time left."""
    began = time.monotonic()
    with _line() as line:

        def report(done: int, total: int) -> None:
            def text() -> str:
                rate = done / (time.monotonic() - began)
                left = (total - done) / rate if rate else float("inf")
                return (
                    f"{what} {format_bytes(done)} of {format_bytes(total)}, {format_bytes(rate)}/s, {left:.0f} s left"
                )

            line.show(text)
            if done == total:
                line.clear()  # so that the next output begins a new line

        yield report


@contextmanager
def count_progress(what: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, in all) that shows how many `things`, such as ranks, are done, with the time left."""
    began = time.monotonic()
    with _line() as line:
        yield lambda done, total: line.show(lambda: _count_text(what, done, total, things, began))


@contextmanager
def phase_progress(things: Mapping[str, str]) -> Iterator[Callable[[str, int, int], None]]:
    """A callback (phase, done, in all): as `count_progress`, for work of several phases with `things` of their own."""
    phase, began = "", time.monotonic()
    with _line() as line:

        def report(now: str, done: int, total: int) -> None:
            nonlocal phase, began
            if now != phase:
                phase, began = now, time.monotonic()
            line.show(lambda: _count_text(now, done, total, things[now], began))

        yield report


def _count_text(what: str, done: int, total: int, things: str, began_s: float) -> str:
    left = (total - done) * (time.monotonic() - began_s) / done if done else float("inf")
    return f"{what} {format_count(done)} of {format_count(total)} {things}, {left:.0f} s left"


@contextmanager
def piece_progress() -> Iterator[Callable[[int, int], None]]:
    """A callback (pieces done, pieces in all) that shows how far a pass over a large capture has come."""
    with _line() as line:

        def report(done: int, total: int) -> None:
            if done < total:
                line.show(lambda: f"{format_count(done)} of {format_count(total)} pieces of the capture")
            else:
                line.clear()  # another pass, or the output of the command, may follow

        yield report


@contextmanager
def share_progress(what: str) -> Iterator[Callable[[float, float, str], None]]:
    """A callback (seconds passed, seconds in all, current work) for work of a duration given beforehand."""
    with _line() as line:
        yield lambda passed, whole, now: line.show(lambda: f"{what} {now}, {whole - passed:.0f} s left")


@contextmanager
def run_progress(shown: bool) -> Iterator[Callable[[Progress], None]]:
    """A callback that shows operations, rate, lag and time left of a running replay, when `shown`."""
    with _line() as line:
        yield (lambda progress: line.show(lambda: run_text(progress))) if shown else lambda progress: None


@contextmanager
def experiment_progress(shown: bool, runs: int) -> Iterator[Callable[[str, Progress], None]]:
    """When `shown`, a callback that shows the current one of `runs` runs, its progress and the time left for all.

    The callback takes the name of the run and its progress.
    """
    began = time.monotonic()
    names: list[str] = []
    with _line() as line:

        def report(name: str, progress: Progress) -> None:
            if name not in names[-1:]:
                names.append(name)
            if shown:
                left = time_left_text(time.monotonic() - began, len(names) - 1, runs)
                line.show(lambda: f"{name}: {run_text(progress)}{left}")

        yield report


def time_left_text(seconds: float, done: int, runs: int) -> str:
    """The time left, if the other runs take as long as the `done` ones, which took `seconds` in all."""
    if not done:
        return ""
    left = max(seconds / done * runs - seconds, 0)
    return f"; all runs: {left:.0f} s left" if left < 90 else f"; all runs: {left / 60:.0f} min left"


def run_text(progress: Progress) -> str:
    """One line of progress.

    With due times, the time left is the rest of the recorded time plus the lag; else it follows from the rate so far.
    """
    seconds = max(ns_to_seconds(progress.elapsed_ns), 1e-9)
    rate = progress.done / seconds
    if progress.lag_ns is None:
        left = f"{(progress.total - progress.done) / rate:.0f} s left" if rate else "time left unknown"
    else:
        remaining_ns = max(progress.expected_ns - progress.elapsed_ns, 0) + progress.lag_ns
        left = f"lag {format_duration(progress.lag_ns)}, {ns_to_seconds(remaining_ns):.0f} s left"
    done, total = format_count(progress.done), format_count(progress.total)
    return f"replaying {done} of {total} operations, {format_count(round(rate))}/s, {left}"


@contextmanager
def status(what: str) -> Iterator[None]:
    """Print the current work on a terminal."""
    shown = _is_watched()
    if shown:
        sys.stderr.write(f"{what} ...")
        sys.stderr.flush()
    try:
        with timed_phase(what):
            yield
    finally:
        if shown:
            sys.stderr.write("\r" + " " * (len(what) + 4) + "\r")
