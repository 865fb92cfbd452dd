"""One call of the program: how much it prints, its answer as JSON or text, its progress, its workers and processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dxt_replay.traces.errors import DxtReplayError

if TYPE_CHECKING:
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.run.feeder import Progress
    from dxt_replay.replay.show.section import Section
    from dxt_replay.traces.workers import Workers

T = TypeVar("T")

OUTPUT_SCHEMA_VERSION = 1
"""Version of the objects that `--json` prints. History: 1 (0.1.0): first."""

_PLACE = "\x00rows"
"""Stands for streamed rows until they are printed: no text of a result begins with it."""

LAST_WORDS_S = 0.2
"""How long a process that ends all others waits for its message to reach the launcher."""

_QUIET_S, _PERIOD_S = 1.0, 0.2
"""When progress is first shown, and how often."""


@dataclass(slots=True, kw_only=True)
class Session:
    """Set by the options that every command has, while the command line is read.

    quiet: print neither progress nor warnings. verbose: print facts for a bug report, and the traceback of an error.
    as_json: print the answer, or the error, as one JSON object on standard output. details: print all tables.
    """

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    details: bool = False


def current() -> Session:
    """The session of the running command; without a running command, one with the default settings."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_object(Session)
    return found or Session()


def warn(message: str) -> None:
    """Print a warning on stderr, unless the user asked for quiet."""
    if not current().quiet:
        click.echo(f"dxt-replay: warning: {message}", err=True)


def note(fact: str) -> None:
    """Under --verbose, print a fact on stderr."""
    if current().verbose:
        click.echo(f"dxt-replay: {fact}", err=True)


# -------------------------------------------------------------------- callbacks of the common options
def set_json(context: click.Context, option: click.Parameter, value: bool) -> None:
    """It alone decides: the command line of a job that `record` runs may contain --json too."""
    context.ensure_object(Session).as_json = value


def set_details(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Callback of --details."""
    context.ensure_object(Session).details = value


def set_verbose(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Print the versions that a bug report should hold, once."""
    session = context.ensure_object(Session)
    first, session.verbose = value and not session.verbose, session.verbose or value
    _check(context)
    if not first:
        return
    from importlib.metadata import PackageNotFoundError, version

    from dxt_replay.traces.version import VERSION

    note(f"version {VERSION}, Python {sys.version.split()[0]}")
    for package in ("numpy", "pyarrow", "pandas", "h5py", "mpi4py", "plotly", "click"):
        try:
            note(f"{package} {version(package)}")
        except PackageNotFoundError:
            note(f"{package} is not installed")


def set_quiet(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Callback of --quiet."""
    context.ensure_object(Session).quiet |= value
    _check(context)


def _check(context: click.Context) -> None:
    session = context.ensure_object(Session)
    if session.quiet and session.verbose:
        raise click.UsageError("--quiet and --verbose exclude each other: give one of them", context)


_COMMON = (
    ("--json", "as_json", set_json, "Print the result as JSON."),
    ("--details", "details", set_details, "Print all tables and figures."),
    ("-v/--verbose", "verbose", set_verbose, "Print versions, the time of each phase, and an error's traceback."),
    ("-q/--quiet", "quiet", set_quiet, "Print the answer alone: no progress, no warnings."),
)


def common_options(*, hidden: bool) -> list[click.Parameter]:
    """The options of every command. `hidden`: only the help of the program lists them."""
    return [
        click.Option(
            [*flags.split("/"), name],
            is_flag=True,
            is_eager=name == "as_json",
            expose_value=False,
            callback=callback,
            hidden=hidden,
            help=text,
        )
        for flags, name, callback, text in _COMMON
        if hidden or name in ("verbose", "quiet")
    ]


# ----------------------------------------------------------------------------------------- the answer
def answer(result: Any, show: str, *following: str | os.PathLike[str]) -> None:
    """Print a result, or a JSON object: as JSON under --json, else as text and the next command.

    `show`: the function below `replay` that makes its sections, as "module.function".
    """
    if current().as_json:
        print_json(result if isinstance(result, Mapping) else result.as_json())
        return
    module, _, name = show.rpartition(".")
    sections: Callable[[Any], Sequence[Section]] = getattr(import_module(f"dxt_replay.replay.{module}"), name)
    print_answer(sections(result))
    if following:
        print_next(*following)


def print_answer(sections: Sequence[Section]) -> None:
    """Print the tables of a result: without --details those in brief, under --quiet the answer alone."""
    from dxt_replay.replay.show.section import in_brief
    from dxt_replay.replay.show.terminal import print_sections

    session = current()
    short = list(sections) if session.details else in_brief(sections)
    print_sections(short[:1] if session.quiet and len(short) != len(sections) else short)


def print_next(*words: str | os.PathLike[str]) -> None:
    """Print `next: dxt-replay WORDS`, quoted for a shell, below an empty line; nothing under --quiet."""
    from dxt_replay.traces.text import printable

    if not current().quiet:
        click.echo(f"\nnext: dxt-replay {printable(shlex.join(os.fspath(word) for word in words))}")


def given_options(names: Collection[str]) -> list[str]:
    """The options among `names` that the user gave to the running command, as words for the next command."""
    context = click.get_current_context()
    words: list[str] = []
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is not click.core.ParameterSource.DEFAULT
        if option.name in names and given:
            value = context.params[option.name]
            words += [word for one in (value if option.multiple else [value]) for word in (option.opts[-1], str(one))]
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedRows:
    """A list of an object for `print_json` that is too large to be in memory. `members`: the text of its members with
    each line behind the indentation given, in pieces."""

    members: Callable[[str], Iterable[str]]


def print_json(result: Mapping[str, Any]) -> None:
    """Print one object, `schema_version` first, keys as given, on one indented page of ASCII. A list that is
    `StreamedRows` is in memory a piece at a time.

    Raises: ValueError for nan and infinity, which JSON does not have: the object must hold None instead.
    """
    streamed: list[StreamedRows] = []

    def place(value: Any) -> str:
        if not isinstance(value, StreamedRows):
            raise TypeError(f"{type(value).__name__} cannot be written as JSON")
        streamed.append(value)
        return _PLACE

    text = json.dumps({"schema_version": OUTPUT_SCHEMA_VERSION, **result}, indent=2, allow_nan=False, default=place)
    before, *others = text.split(json.dumps(_PLACE)) if streamed else [text]
    for rows, after in zip(streamed, others, strict=True):
        click.echo(before, nl=False)
        line = before[before.rfind("\n") + 1 :]
        indent = " " * (len(line) - len(line.lstrip(" ")))
        empty = True
        for piece in rows.members(f"{indent}  "):
            click.echo(f"[\n{piece}" if empty else piece, nl=False)
            empty = False
        click.echo("[]" if empty else f"\n{indent}]", nl=False)
        before = after
    click.echo(before)


# ------------------------------------------------------------------------------------------- progress
class _Line:
    """One line on a terminal's stderr that is rewritten, at most five times a second, after a quiet second."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown and _is_watched()
        self._next = time.monotonic() + _QUIET_S
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


def _is_watched() -> bool:
    """Whether a command runs, its stderr is a terminal, and the user did not ask for quiet."""
    running = click.get_current_context(silent=True) is not None
    return running and sys.stderr.isatty() and not current().quiet


@contextmanager
def _line(*, shown: bool = True) -> Iterator[_Line]:
    line = _Line(shown=shown)
    try:
        yield line
    finally:
        line.clear()


@contextmanager
def status(what: str) -> Iterator[None]:
    """Print the current work on the terminal of a command; under --verbose, how long it took."""
    shown, began = _is_watched(), time.monotonic()
    if shown:
        sys.stderr.write(f"{what} ...")
        sys.stderr.flush()
    try:
        yield
        note(f"{what}: {time.monotonic() - began:.3f} s")
    finally:
        if shown:
            sys.stderr.write("\r" + " " * (len(what) + 4) + "\r")


@contextmanager
def reported(given: T | None, shown: AbstractContextManager[T]) -> Iterator[T]:
    """The callback of a caller in Python, else one that shows progress on the terminal of a command."""
    if given is not None:
        yield given
        return
    with shown as callback:
        yield callback


@contextmanager
def byte_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (bytes done, bytes in all) that shows how far `what` has come, with rate and time left."""
    from dxt_replay.traces.units import format_bytes

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
def phase_progress(things: Mapping[str, str]) -> Iterator[Callable[[str, int, int], None]]:
    """A callback (phase, done, in all) that shows how many `things` of the phase are done, with the time left."""
    from dxt_replay.traces.units import format_count

    phase, began = "", time.monotonic()
    with _line() as line:

        def report(now: str, done: int, total: int) -> None:
            nonlocal phase, began
            if now != phase:
                phase, began = now, time.monotonic()
            left = (total - done) * (time.monotonic() - began) / done if done else float("inf")
            line.show(lambda: f"{now} {format_count(done)} of {format_count(total)} {things[now]}, {left:.0f} s left")

        yield report


@contextmanager
def count_progress(what: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, in all): as `phase_progress`, for work of one phase."""
    with phase_progress({what: things}) as report:
        yield lambda done, total: report(what, done, total)


@contextmanager
def share_progress(what: str) -> Iterator[Callable[[float, float, str], None]]:
    """A callback (seconds passed, seconds in all, current work) for work of a duration given beforehand."""
    with _line() as line:
        yield lambda passed, whole, now: line.show(lambda: f"{what} {now}, {whole - passed:.0f} s left")


@contextmanager
def run_progress(*, shown: bool) -> Iterator[Callable[[Progress], None]]:
    """A callback that shows operations, rate, lag and time left of a running replay, when `shown`."""
    with _line(shown=shown) as line:
        yield lambda progress: line.show(lambda: run_text(progress))


@contextmanager
def experiment_progress(runs: int, *, shown: bool) -> Iterator[Callable[[str, Progress], None]]:
    """A callback (name of a run, its progress) that shows the current one of `runs` runs, and the time left for all."""
    began = time.monotonic()
    names: list[str] = []
    with _line(shown=shown) as line:

        def report(name: str, progress: Progress) -> None:
            if name not in names[-1:]:
                names.append(name)
            done, seconds = len(names) - 1, time.monotonic() - began
            rest = max(seconds / done * runs - seconds, 0) if done else 0
            left = f"; all runs: {rest:.0f} s left" if rest < 90 else f"; all runs: {rest / 60:.0f} min left"
            line.show(lambda: f"{name}: {run_text(progress)}{left if done else ''}")

        yield report


def run_text(progress: Progress) -> str:
    """One line of progress.

    With due times, the time left is the rest of the recorded time plus the lag; else it follows from the rate so far.
    """
    from dxt_replay.traces.units import format_count, format_duration, ns_to_seconds

    seconds = max(ns_to_seconds(progress.elapsed_ns), 1e-9)
    rate = progress.done / seconds
    if progress.lag_ns is None:
        left = f"{(progress.total - progress.done) / rate:.0f} s left" if rate else "time left unknown"
    else:
        remaining_ns = max(progress.expected_ns - progress.elapsed_ns, 0) + progress.lag_ns
        left = f"lag {format_duration(progress.lag_ns)}, {ns_to_seconds(remaining_ns):.0f} s left"
    done, total = format_count(progress.done), format_count(progress.total)
    return f"replaying {done} of {total} operations, {format_count(round(rate))}/s, {left}"


# ------------------------------------------------------------------------------ workers and processes
@contextmanager
def workers(count: int | None, cluster: str | None) -> Iterator[Workers | None]:
    """The workers of --workers and --dask. Under mpiexec only the first process runs a command; the others get None,
    once they have worked for it."""
    from dxt_replay.traces.units import format_count

    if cluster is not None and count is not None:
        raise click.UsageError("--workers and --dask exclude each other: the cluster has its own number of workers")
    if cluster is None:
        from dxt_replay.replay.ranks.mpi import rank_workers

        started: AbstractContextManager[Workers | None] = rank_workers(count)
    else:
        from dxt_replay.traces.workers import dask_workers

        started = dask_workers(cluster)
    with started as chosen, _line() as line:

        def report(done: int, total: int) -> None:
            if done < total:
                line.show(lambda: f"{format_count(done)} of {format_count(total)} pieces of the capture")
            else:
                line.clear()  # another pass, or the output of the command, may follow

        if chosen is not None:
            chosen.on_choice, chosen.on_progress = note, report
        yield chosen


@contextmanager
def ending_together(comm: Communicator) -> Iterator[None]:
    """A known error reaches all processes of mpiexec, and the first one prints it; any other in one process ends all.

    MPI has ended before the result is printed: where its reader has gone, as in `| head`, the launcher dies at once and
    MPI's memory in /dev/shm would stay.
    """
    from dxt_replay.replay.ranks.stopping import Terminated

    try:
        with _interruptible(comm):
            yield
    except DxtReplayError as error:
        from dxt_replay.replay.ranks.mpi import is_known_to_all

        if comm.rank and is_known_to_all(error):
            raise SystemExit(error.exit_status) from error
        if comm.size > 1 and not is_known_to_all(error):
            _end_all(comm, f"dxt-replay: error: process {comm.rank}: {error}")
        raise
    except (KeyboardInterrupt, Terminated):
        if comm.size > 1:
            _end_all(comm, f"dxt-replay: process {comm.rank} received a signal to stop and ends the replay")
        raise
    except Exception as error:
        if comm.size == 1:
            raise
        _end_all(comm, f"{traceback.format_exc()}dxt-replay: process {comm.rank} failed and ends the replay")
        raise SystemExit(DxtReplayError.exit_status) from error
    comm.leave()


@contextmanager
def _interruptible(comm: Communicator) -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt again: `dxt_replay.__main__` lets it end the process."""
    ends_process = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends_process:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ends_process and comm.size > 1:  # at the end of MPI each process waits for all others
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_all(comm: Communicator, last_words: str) -> None:
    """End all processes. Print the message in one write, and give the launcher time to read it before it ends."""
    click.echo(last_words, err=True)
    time.sleep(LAST_WORDS_S)
    comm.abort()
