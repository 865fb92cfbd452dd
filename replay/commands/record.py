"""`dxt-replay record`: run a job under a tracer, and merge its logs and profiles into a capture."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import PATH, force_option, json_option
from dxt_replay.replay.options.making import RecordChoices

if TYPE_CHECKING:
    from dxt_replay.replay.interface.recordings import Recorded


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "-o",
    "--output",
    default="run.capture",
    show_default=True,
    type=PATH,
    metavar="OUT.capture",
    help="The capture to write.",
)
@family_options(RecordChoices)
@force_option
@json_option
def command(
    words: tuple[str, ...],
    output: Path,
    **choices: Any,
) -> None:
    """Record the I/O and the training steps of a job, and merge both into a capture.

    Put `dxt-replay record --` before your command, as in `dxt-replay record -- python train.py`. Behind mpiexec,
    mpirun, srun, aprun, jsrun or `flux run` only the ranks and their worker processes are traced. For another launcher
    write {} before the program of the ranks. The job keeps its input, output, signals and exit status. Results go to
    stderr; under --json the job's output goes there too. After Ctrl-C the recording up to then is merged.
    """
    import dxt_replay
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.commands.session import current

    with _hint_when_interrupted():
        stdout = 2 if current().as_json else None
        recorded = dxt_replay.record(words, output, stdout=stdout, **choices)
    if current().as_json:
        print_json(recorded.as_json())
    _report(recorded)
    if recorded.job.ended.status or recorded.problem is not None:
        from dxt_replay.traces.errors import DxtReplayError

        raise SystemExit(recorded.job.ended.status or DxtReplayError.exit_status)


@contextlib.contextmanager
def _hint_when_interrupted() -> Iterator[None]:
    """Explain how to go on after a Ctrl-C outside the job: while its logs were merged, or before it started."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("dxt-replay: interrupted: what was recorded stays, and `dxt-replay merge` merges it", err=True)
        raise


def _first_lines(capture: Path) -> list[str]:
    """The first lines of `summary`; what is wrong where there are none."""
    import dxt_replay
    from dxt_replay.replay.interface.analyses import limit_of
    from dxt_replay.replay.show.summary import headline
    from dxt_replay.traces.errors import DxtReplayError

    try:
        opened = dxt_replay.open_capture(capture)
        return headline(dxt_replay.summary(opened), limit_of(opened, curve=False))
    except DxtReplayError as error:
        return [str(error)]


def _report(recorded: Recorded) -> None:
    """Print the result and the next command on stderr: standard output is the job's."""
    from dxt_replay.replay.commands.answer import print_next
    from dxt_replay.replay.commands.session import current, warn
    from dxt_replay.replay.show.make import record_sections
    from dxt_replay.replay.show.section import prose
    from dxt_replay.replay.show.terminal import print_sections

    if signal.SIGINT in recorded.job.ended.signals and recorded.capture is not None:
        click.echo("dxt-replay: the job was interrupted: the capture holds what it did until it ended", err=True)
    if recorded.problem is not None:
        click.echo(f"dxt-replay: error: {recorded.problem}", err=True)
    if current().as_json:
        return
    for text in recorded.warnings:
        warn(text)
    if not current().quiet:
        with contextlib.redirect_stdout(sys.stderr):
            costs = [] if recorded.capture is None else [prose("What storage costs", _first_lines(recorded.capture))]
            print_sections([*record_sections(recorded), *costs])
            print_next(*recorded.next_words)
