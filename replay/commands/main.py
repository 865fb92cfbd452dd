"""The command line. `main` alone catches errors; a command is imported when it is asked for, so `--help` is fast."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from traces.errors import DxtReplayError
from traces.version import VERSION

PROGRAM = "dxt-replay"

COMMANDS = {
    "demo": "The main job on the bundled captures, end to end.",
    "merge": "Darshan logs and profiles to a capture.",
    "summary": "Operations, bytes, times and patterns of a capture.",
    "report": "The same as a page to look at, with timelines.",
    "stage": "Build the twin data set of a capture.",
    "run": "Replay a capture.",
    "compare": "How faithful a replay is.",
    "regress": "Whether one file system is slower than another.",
    "export": "A capture for other tools: Perfetto, Darshan, CSV, fio.",
}
"""Name -> one line for the overview; `replay.commands.NAME` offers `command`."""

EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141
"""As a shell reports a program that SIGINT (SIGPIPE) ended."""


class _OutputClosed(Exception):
    """Whoever reads the output has gone. Not an OSError: click would turn that into status 1, a failed comparison."""


class _Commands(click.Group):
    """A group whose commands are imported one by one, when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"replay.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _OutputClosed from error
        return result


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name=PROGRAM)
def cli() -> None:
    """Replay the I/O of deep-learning jobs on any file system, without the application.

    A capture is made from a Darshan log with DXT and the framework's profiles, replayed with the original timing, and
    compared with its replay. `dxt-replay demo` shows all of it.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv when None). Returns the exit status: 0 done, 1 a comparison or run failed,
    2 wrong use or bad input."""
    _print_any_text()
    try:
        status = cli.main(args=None if argv is None else list(argv), prog_name=PROGRAM, standalone_mode=False)
        return status if isinstance(status, int) else 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except click.ClickException as error:
        error.show()
        return DxtReplayError.exit_status
    except DxtReplayError as error:
        _complain(str(error))
        return error.exit_status
    except MemoryError:
        _complain("out of memory: this machine has too little for the capture, or a limit (ulimit -v) is set too low")
        return DxtReplayError.exit_status
    except click.Abort:
        return EXIT_INTERRUPTED
    except _OutputClosed:
        _discard_output()
        return EXIT_OUTPUT_CLOSED


def _complain(message: str) -> None:
    click.echo(f"{PROGRAM}: error: {message}", err=True)


def _print_any_text() -> None:
    """Recorded paths may hold characters that the terminal's encoding lacks: they are escaped, never a failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let the interpreter's last flush go nowhere (the recipe of Python's documentation on SIGPIPE)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
