"""Settings of one call of the program: how much it prints, and whether it answers in JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click


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


@contextmanager
def timed_phase(name: str) -> Iterator[None]:
    """Under --verbose, print how long a phase of a command took."""
    began = time.monotonic()
    yield
    note(f"{name}: {time.monotonic() - began:.3f} s")


def add_common_options(command: click.Command) -> click.Command:
    """Give a command -v and -q."""
    if not any(option.name == "verbose" for option in command.params):
        command.params += [
            click.Option(
                ["-v", "--verbose"],
                is_flag=True,
                expose_value=False,
                callback=_set_verbose,
                help="Print versions, the time of each phase, and the traceback of an error.",
            ),
            click.Option(
                ["-q", "--quiet"],
                is_flag=True,
                expose_value=False,
                callback=_set_quiet,
                help="Print neither progress nor warnings.",
            ),
        ]
    return command


def set_json(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Callback of --json. It alone decides: the command line of a job that `record` runs may contain --json too."""
    context.ensure_object(Session).as_json = value


def set_details(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Callback of --details."""
    context.ensure_object(Session).details = value


def _set_verbose(context: click.Context, option: click.Parameter, value: bool) -> None:
    session = context.ensure_object(Session)
    first, session.verbose = value and not session.verbose, session.verbose or value
    _check(context)
    if first:
        _print_versions()


def _set_quiet(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.ensure_object(Session).quiet |= value
    _check(context)


def _check(context: click.Context) -> None:
    session = context.ensure_object(Session)
    if session.quiet and session.verbose:
        raise click.UsageError("--quiet and --verbose exclude each other: give one of them", context)


def _print_versions() -> None:
    """Print the versions that a bug report should hold."""
    from importlib.metadata import PackageNotFoundError, version

    from dxt_replay.traces.version import VERSION

    note(f"version {VERSION}, Python {sys.version.split()[0]}")
    for package in ("numpy", "pyarrow", "pandas", "h5py", "mpi4py", "plotly", "click"):
        try:
            note(f"{package} {version(package)}")
        except PackageNotFoundError:
            note(f"{package} is not installed")
