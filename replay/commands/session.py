"""One call of the program: how much it prints, its answer as JSON or text, its progress, its workers and processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.traces.errors import DxtReplayError

if TYPE_CHECKING:
    from dxt_replay.replay.ranks.mpi import Communicator
    from dxt_replay.replay.run.feeder import Progress
    from dxt_replay.replay.show.section import Section
    from dxt_replay.traces.workers import Workers

OUTPUT_SCHEMA_VERSION = 1
"""Version of the objects that `--json` prints. History: 1 (0.1.0): first."""

LAST_WORDS_S = 0.2  # for the message of a process that ends all others to reach the launcher
_QUIET_S, _PERIOD_S = 1.0, 0.2  # when progress is first shown, and how often


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
    return (None if context is None else context.find_object(Session)) or Session()


def warn(message: str) -> None:
    """Print a warning on stderr, unless the user asked for quiet."""
    if not current().quiet:
        click.echo(f"dxt-replay: warning: {message}", err=True)


def note(fact: str) -> None:
    """Under --verbose, print a fact on stderr."""
    if current().verbose:
        click.echo(f"dxt-replay: {fact}", err=True)


# ---------------------------------------------------------------------------------- the common options
def _set(context: click.Context, option: click.Parameter, value: bool) -> None:
    session, name = context.ensure_object(Session), option.name or ""
    if name in ("as_json", "details"):  # the option alone decides: the job that `record` runs may have a --json too
        setattr(session, name, value)
        return
    first = value and name == "verbose" and not session.verbose
    setattr(session, name, getattr(session, name) or value)
    if session.quiet and session.verbose:
        raise click.UsageError("--quiet and --verbose exclude each other: give one of them", context)
    if first:  # the versions that a bug report should hold
        from importlib.metadata import PackageNotFoundError, version

        from dxt_replay.traces.version import VERSION

        note(f"version {VERSION}, Python {sys.version.split()[0]}")
        for package in ("numpy", "pyarrow", "pandas", "h5py", "mpi4py", "plotly", "click"):
            try:
                note(f"{package} {version(package)}")
            except PackageNotFoundError:
                note(f"{package} is not installed")


_COMMON = {
    "as_json": (["--json"], "Print the result as JSON."),
    "details": (["--details"], "Print all tables and figures."),
    "verbose": (["-v", "--verbose"], "Print versions, the time of each phase, and an error's traceback."),
    "quiet": (["-q", "--quiet"], "Print the answer alone: no progress, no warnings."),
}


def common_options(*, hidden: bool) -> list[click.Parameter]:
    """The options of every command. `hidden`: only the help of the program lists them."""
    alike: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _set, "hidden": hidden}
    return [
        click.Option([*flags, name], is_eager=name == "as_json", help=text, **alike)
        for name, (flags, text) in _COMMON.items()
        if hidden or name in ("verbose", "quiet")
    ]


# ----------------------------------------------------------------------------------------- the answer
def answer(result: Any, *following: str | os.PathLike[str]) -> None:
    """Print a result: as JSON under --json, else as text and the next command."""
    if current().as_json:
        print_json(result.as_json())
        return
    from dxt_replay.replay.show.notebook import sections_of

    print_answer(sections_of(result))
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


def print_json(result: Mapping[str, Any]) -> None:
    """Print one object, `schema_version` first, keys as given, on one indented page of ASCII.

    Raises: ValueError for nan and infinity, which JSON does not have: the object must hold None instead.
    """
    click.echo(json.dumps({"schema_version": OUTPUT_SCHEMA_VERSION, **result}, indent=2, allow_nan=False))


# ------------------------------------------------------------------------------------------- progress
Report = Callable[..., Any]
Text = Callable[..., str]
"""Makes one line of progress from the arguments of a callback; empty when the work is done."""


def _is_watched() -> bool:
    """Whether a command runs, its stderr is a terminal, and the user did not ask for quiet."""
    running = click.get_current_context(silent=True) is not None
    return running and sys.stderr.isatty() and not current().quiet


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
def progress(text: Text, given: Report | None = None, *, shown: bool = True) -> Iterator[Report]:
    """The callback `given` of a caller in Python, else one that shows `text` on the terminal of a command: one line
    that is rewritten at most five times a second, after a quiet second."""
    shown, next_s, width = shown and given is None and _is_watched(), time.monotonic() + _QUIET_S, 0

    def report(*now: Any) -> None:
        nonlocal next_s, width
        line = text(*now) if shown else ""  # each time: some texts count what they are told
        if not line:
            clear()
        elif time.monotonic() >= next_s:
            next_s = time.monotonic() + _PERIOD_S
            sys.stderr.write("\r" + line.ljust(width))
            sys.stderr.flush()
            width = len(line)

    def clear() -> None:
        nonlocal width
        if width:
            sys.stderr.write("\r" + " " * width + "\r")
            sys.stderr.flush()
        width = 0

    try:
        yield given or report
    finally:
        clear()


def of_bytes(what: str) -> Text:
    """Of bytes done and in all."""
    from dxt_replay.traces.units import format_bytes

    began = time.monotonic()

    def text(done: int, total: int) -> str:
        rate = done / (time.monotonic() - began)
        left = (total - done) / rate if rate else float("inf")
        return f"{what} {format_bytes(done)} of {format_bytes(total)}, {format_bytes(rate)}/s, {left:.0f} s left"

    return text


def of_phases(things: Mapping[str, str]) -> Text:
    """Of a phase, and how many of its `things` are done and in all."""
    from dxt_replay.traces.units import format_count

    phase, began = "", time.monotonic()

    def text(now: str, done: int, total: int) -> str:
        nonlocal phase, began
        if now != phase:
            phase, began = now, time.monotonic()
        left = (total - done) * (time.monotonic() - began) / done if done else float("inf")
        return f"{now} {format_count(done)} of {format_count(total)} {things[now]}, {left:.0f} s left"

    return text


def of_things(what: str, things: str) -> Text:
    """Of things done and in all."""
    text = of_phases({what: things})
    return lambda done, total: text(what, done, total)


def of_experiment(runs: int) -> Text:
    """Of the name of one of `runs` runs and its progress."""
    began = time.monotonic()
    names: list[str] = []

    def text(name: str, progress: Progress) -> str:
        if name not in names[-1:]:
            names.append(name)
        done, seconds = len(names) - 1, time.monotonic() - began
        rest = max(seconds / done * runs - seconds, 0) if done else 0
        left = f"; all runs: {rest:.0f} s left" if rest < 90 else f"; all runs: {rest / 60:.0f} min left"
        return f"{name}: {of_run(progress)}{left if done else ''}"

    return text


def of_run(progress: Progress) -> str:
    """Operations, rate, lag and time left of a replay: with due times the rest of the recorded time plus the lag, else
    by the rate so far."""
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

    def text(done: int, total: int) -> str:  # another pass, or the output of the command, may follow
        return f"{format_count(done)} of {format_count(total)} pieces of the capture" if done < total else ""

    with started as chosen, progress(text) as report:
        if chosen is not None:
            chosen.on_choice, chosen.on_progress = note, report
        yield chosen


@contextmanager
def ending_together(comm: Communicator) -> Iterator[None]:
    """A known error reaches all processes of mpiexec, and the first one prints it; any other in one process ends all.

    MPI has ended before the result is printed: where its reader has gone, as in `| head`, the launcher dies at once and
    MPI's memory in /dev/shm would stay. Ctrl-C raises KeyboardInterrupt again: `dxt_replay.__main__` lets it end the
    process.
    """
    from dxt_replay.replay.ranks.mpi import is_known_to_all
    from dxt_replay.replay.ranks.stopping import Terminated

    ends_process = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends_process:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except DxtReplayError as error:
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
    finally:
        if ends_process and comm.size > 1:  # at the end of MPI each process waits for all others
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    comm.leave()


def _end_all(comm: Communicator, last_words: str) -> None:
    """End all processes. Print the message in one write, and give the launcher time to read it before it ends."""
    click.echo(last_words, err=True)
    time.sleep(LAST_WORDS_S)
    comm.abort()
