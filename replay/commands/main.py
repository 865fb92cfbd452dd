"""The command line. Only `main` catches errors. A command is imported when it is used, so `--help` is fast."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import click

from dxt_replay.replay.commands.session import OUTPUT_SCHEMA_VERSION, Session, common_options
from dxt_replay.traces.errors import DxtReplayError, exhausted
from dxt_replay.traces.version import VERSION

PROGRAM = "dxt-replay"

COMPLETION_VARIABLE = "_DXT_REPLAY_COMPLETE"
"""The shell sets it when it asks for completions; the line in `README.md` that switches them on sets it too."""

COMMAND_GROUPS = {
    "Record": {
        "record": ("making", "Run a job under a tracer and record it as a capture."),
        "merge": ("making", "Merge Darshan logs, other traces and profiles into a capture."),
        "generate": ("making", "Generate a capture from the description of a workload."),
    },
    "Look": {
        "summary": ("looking", "Print operations, bytes, times and patterns of a capture."),
        "report": ("looking", "Write a page with timelines and charts of a capture."),
    },
    "Replay": {
        "demo": ("demo", "Replay a bundled capture, from the logs to the comparison."),
        "doctor": ("replaying", "Examine this machine and a directory for what a replay needs."),
        "stage": ("replaying", "Build the twin data set that a replay reads."),
        "run": ("replaying", "Replay a capture."),
    },
    "Judge": {
        "compare": ("judging", "Compare a replay with its source."),
        "verify": ("judging", "Check that captures and staged twins are intact."),
        "regress": ("judging", "Test whether one file system is slower than another."),
        "history": ("judging", "Show results of regress over time and where they changed."),
    },
    "Predict": {
        "transform": ("predicting", "Predict the job with other request sizes, readers or ranks."),
        "simulate": ("predicting", "Predict how long a capture takes on described storage."),
        "calibrate": ("predicting", "Measure a file system as a model for simulate."),
        "capacity": ("capacities", "Find how many accelerators a storage carries."),
    },
    "Share": {
        "export": ("sharing", "Convert a capture for other tools (Perfetto, Darshan, CSV, fio)."),
        "fit": ("sharing", "Convert a capture to a DLIO workload description."),
        "anonymize": ("sharing", "Remove all names from a capture, to give it to others."),
    },
}
"""Section of the overview -> name of each command, the module here that has it, and one line."""

COMMANDS = {name: line for group in COMMAND_GROUPS.values() for name, (_, line) in group.items()}
"""Name -> one line."""

HOMES = {name: f"{__package__}.{home}" for group in COMMAND_GROUPS.values() for name, (home, _) in group.items()}
"""Name -> the module that adds the command to `FACES`."""

MEANT = {
    "replay": "run",
    "predict": "simulate",
    "trace": "record",
    "plot": "report",
    "show": "summary",
    "diff": "compare",
    "convert": "export",
    "check": "verify",
    "glossary": "summary (the words are on the page docs/glossary.md)",
}
"""What somebody may type -> the command."""

OLD_OPTIONS = (
    ("summary report stage run regress fit", "--ranks", "--part {}=..."),
    ("summary report stage run regress fit simulate", "--from --until --steps", "--part {}=..."),
    ("summary report", "--path --exclude --op --api", "--part {}=..."),
    ("summary", "--findings", "--show findings"),
    ("summary", "--csv --parquet", "-o FILE.{}"),
    ("run simulate", "--compute-speed --io-speed", "--speed, or `transform --compute-speed`"),
    ("run regress", "--direct", "--api direct"),
    ("run", "--explain", "`summary --show dependencies`"),
    ("regress", "--speed --compute-speed --io-speed --compute --timeout", "an option of `run` alone"),
    ("regress", "--alpha --warmup --seed --metric", "fixed (docs/regression.md)"),
    ("regress", "--against", "--baseline RECORD.json"),
    ("regress", "--baseline-map --candidate-map", "--map baseline:PREFIX=DIR or candidate:PREFIX=DIR"),
    ("regress", "--junit --markdown --html", "--report FILE, by the suffix .xml, .md or .html"),
    ("simulate", "--runs --check-seconds", "a keyword of dxt_replay.simulate alone"),
    ("history", "--fail-regression", "the default"),
    ("generate", "--reading", "one: DLIO's main, for PyTorch that of MLPerf Storage v3.0 (docs/workloads.md)"),
    ("demo", "--warm", "an option of `run` alone"),
    ("demo", "--keep", "what `stage` does: the twin stays"),
)
"""Commands, their options of earlier releases, and what answers now. For one release."""

OLD_VARIABLES = {
    "--from": "BEGIN", "--csv": "CSV_FILE", "--parquet": "PARQUET_FILE", "--baseline-map": "BASELINE_MAPS",
    "--candidate-map": "CANDIDATE_MAPS", "--timeout": "TIMEOUT_S",
}  # fmt: skip
"""Names of such options in the environment, behind DXT_REPLAY_COMMAND_, where they are not the option's own."""

EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED = 130, 141  # what a shell reports for a program that SIGINT (SIGPIPE) ended
_STDERR = 2  # the number of standard error
_OUTPUT_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Error numbers of writing to a full disk, beyond a limit, or to a closed descriptor."""


class _OutputClosed(Exception):
    """The reader of the output has gone. Not an OSError, which click would turn into status 1: a failed comparison."""


class _Commands(click.Group):
    """A group whose commands are imported one by one, when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        importlib.import_module(HOMES[cmd_name])
        from dxt_replay.replay.commands.face import FACES

        return FACES[cmd_name]()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = next((word for word in words if word in COMMANDS), None)
            command = self.get_command(ctx, name) if name is not None else None
            of_command = command.params if command is not None else ()
            if not any(error.option_name in (*option.opts, *option.secondary_opts) for option in of_command):
                raise
            more = f"`{PROGRAM} {name} ... {error.option_name}`"
            message = f"{error.option_name} is an option of {name}: give it after the command, as in {more}"
            raise click.UsageError(message, ctx) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = [MEANT[args[0]]] if args[0] in MEANT else get_close_matches(args[0], COMMANDS, n=1)
            more = f"did you mean {near[0]}?" if near else f"choose {', '.join(COMMANDS)}"
            raise click.UsageError(f"{args[0]!r} is not a command: {more}", ctx)
        for option, now in old_options(args[0]).items():
            for name in (option[2:], OLD_VARIABLES.get(option, option[2:])):
                variable = f"DXT_REPLAY_{args[0]}_{name}".upper().replace("-", "_")
                if variable in os.environ:
                    raise click.UsageError(f"{variable} is set, and {option} is now {now}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, group in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", line) for name, (_, line) in group.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _OutputClosed from error
        return result


@click.group(
    cls=_Commands,
    no_args_is_help=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": "DXT_REPLAY",
    },
)
@click.version_option(VERSION, prog_name=PROGRAM)
def cli() -> None:
    """Replay the I/O of deep-learning jobs on any file system, without the application.

    It merges a Darshan log with DXT and the framework's profiles into a capture, replays the capture with the original
    timing, and compares the two. `dxt-replay demo` shows all of it.
    """


cli.params += common_options(hidden=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv when None). Returns the exit status: 0 done, 1 a comparison or run failed,
    2 wrong use or bad input."""
    _print_any_text()
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments and COMPLETION_VARIABLE not in os.environ:
        click.echo(cli.get_help(click.Context(cli, info_name=PROGRAM, **cli.context_settings)), err=True)
        return DxtReplayError.exit_status
    if sys.stdout is None:
        click.echo(f"{PROGRAM}: error: standard output is closed: give it a file or /dev/null", err=True)
        return DxtReplayError.exit_status
    session = Session(as_json="--json" in arguments)
    try:
        status = cli.main(args=arguments, prog_name=PROGRAM, standalone_mode=False, obj=session)
        return status if isinstance(status, int) else 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except click.Abort:
        return EXIT_INTERRUPTED
    except _OutputClosed:
        _discard_output()
        return EXIT_OUTPUT_CLOSED
    except click.ClickException as error:
        _complain(session, "UsageError", _message(error), _usage(error))
    except DxtReplayError as error:
        if session.verbose:
            traceback.print_exc()
        _complain(session, type(error).__name__, str(error))
        return error.exit_status
    except MemoryError:
        message = "out of memory: this machine has too little for the capture, or a limit (ulimit -v) is set too low"
        _complain(session, "MemoryError", message)
    except (OSError, RuntimeError) as error:
        # The stream was open: an error of opening names the file. Only standard output fails like this, because the
        # other outputs raise TargetError.
        if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_REFUSED:
            _discard_output()
            click.echo(f"{PROGRAM}: error: cannot write to standard output: {error.strerror}", err=True)
        elif (remedy := exhausted(error)) is None:
            raise
        elif isinstance(error, OSError):
            _complain(session, "OSError", f"{error.strerror} ({error.filename or 'no file'}): {remedy}")
        else:
            _complain(session, "RuntimeError", f"{error}: {remedy}")
    return DxtReplayError.exit_status


def _message(error: click.ClickException) -> str:
    """What is wrong: of an option of an earlier release the new one, of one that is missing what it means."""
    command = getattr(getattr(error, "ctx", None), "info_name", None) or ""
    if isinstance(error, click.NoSuchOption) and (now := old_options(command).get(error.option_name)):
        return f"{error.option_name} is now {now}"
    if isinstance(error, click.MissingParameter) and (about := getattr(error.param, "help", None)):
        return f"{error.format_message().rstrip('.')}: {about}"
    return error.format_message()


def old_options(command: str) -> dict[str, str]:
    """Options of earlier releases of a command, and what answers now."""
    rows = [(options.split(), now) for commands, options, now in OLD_OPTIONS if command in commands.split()]
    return {option: now.format(option[2:]) for options, now in rows for option in options}


def _usage(error: click.ClickException) -> str | None:
    """How the command is called, and where its options are listed."""
    context = getattr(error, "ctx", None)
    if context is None:
        return None
    usage = " ".join(context.command.collect_usage_pieces(context))
    return f"usage: {context.command_path} {usage}; `{context.command_path} --help` lists the options"


def _complain(session: Session, kind: str, message: str, hint: str | None = None) -> None:
    """Print the error on stderr, further lines of it indented; under --json also as one object on standard output."""
    from dxt_replay.traces.text import printable

    click.echo(f"{PROGRAM}: error: " + "\n  ".join(map(printable, message.splitlines())), err=True)
    if hint is not None:
        click.echo(f"{PROGRAM}: {printable(hint)}", err=True)
    if session.as_json:
        error = {"type": kind, "message": message, **({} if hint is None else {"hint": hint})}
        click.echo(json.dumps({"schema_version": OUTPUT_SCHEMA_VERSION, "error": error}, indent=2))


class _Lossy(io.TextIOWrapper):
    """Standard error that loses messages instead of failing when it is closed or its disk is full."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def _print_any_text() -> None:
    """Escape characters that the terminal's encoding lacks: recorded paths may hold any."""
    if sys.stderr is None:  # closed: keep its descriptor number from the next file that is opened
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDERR)
        if nowhere != _STDERR:
            os.close(nowhere)
        sys.stderr = open(_STDERR, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    elif sys.__stderr__ is not None and sys.stderr is sys.__stderr__:  # a test or a notebook may have replaced it
        sys.stderr = _Lossy(sys.__stderr__.buffer, encoding=sys.__stderr__.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let the interpreter's last flush go nowhere (the recipe of Python's documentation on SIGPIPE)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
