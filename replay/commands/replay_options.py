"""The options that say how a capture is replayed: those that `run` and `regress` share, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from replay.plan.pacing import Pacing
    from replay.run.options import RunOptions
    from traces.schema import Source
    from traces.store.reader import Capture

PACES = ("timed", "think", "steps", "none")
APIS = ("auto", "posix", "stdio", "mpiio", "hdf5", "null")
"""As in `traces.replay_record`, which would take its time to be imported for a `--help`."""

_OPTIONS = (
    click.option("--speed", type=float, default=1.0, show_default=True, help="Replay faster: 2 halves every gap."),
    click.option(
        "--compute-speed",
        type=float,
        metavar="FLOAT",
        help="Shorten compute alone: 2 halves it (--pace steps, think).  [default: --speed]",
    ),
    click.option(
        "--io-speed",
        type=float,
        metavar="FLOAT",
        help="Shorten the gaps between operations alone (--pace steps, think).  [default: --speed]",
    ),
    click.option(
        "--compute",
        type=click.Choice(["sleep", "spin", "skip"]),
        default="sleep",
        show_default=True,
        help="Replay computation as sleep, as a busy processor (spin), or not at all (skip).",
    ),
    click.option(
        "--api",
        type=click.Choice(APIS),
        default="auto",
        show_default=True,
        help="Issue operations through this interface; auto: the one that each was recorded at; null: no I/O at all.",
    ),
    click.option(
        "--reconstruct/--no-reconstruct",
        default=True,
        show_default=True,
        help="Replay the operations that were reconstructed from counters, or leave them out.",
    ),
    click.option("--direct", is_flag=True, help="Issue POSIX operations past the page cache (O_DIRECT)."),
    click.option(
        "--vectored",
        type=int,
        default=0,
        metavar="N",
        help="Issue POSIX operations as preadv and pwritev of N buffers each.",
    ),
)


def replay_options(*, pace: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options `pace`, `speed`, `compute_speed`, `io_speed`, `compute`, `api`, `reconstruct`, `direct`, `vectored`.

    `pace`: the default; None where the capture decides.
    """
    by_capture = "" if pace else "  [default: steps where the capture has training steps, else think]"
    paced = click.option(
        "--pace",
        type=click.Choice(PACES),
        default=pace,
        show_default=pace is not None,
        help="Issue an operation at its original time (timed), its original think time after the previous one (think), "
        f"when the training loop allows it (steps), or at once (none).{by_capture}",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed((paced, *_OPTIONS)):
            command = option(command)
        return command

    return decorate


def pacing_of(chosen: Mapping[str, Any], pace: str) -> Pacing:
    """The pacing that the options `chosen` come to. Raises: UsageError for speeds that do not fit."""
    from replay.plan.pacing import Pace, Pacing

    return Pacing(
        pace=Pace(pace),
        speed=chosen["speed"],
        compute_speed=chosen["compute_speed"],
        io_speed=chosen["io_speed"],
    )


def run_options_of(
    chosen: Mapping[str, Any],
    pacing: Pacing,
    source: Capture,
    *,
    target: Path,
    maps: Iterable[str],
    sources: tuple[Source, ...],
) -> RunOptions:
    """What a run on `target` is to do. `maps`: PREFIX=DIR each. `sources`: see `RunOptions`. Raises: UsageError."""
    from replay.run.options import RunOptions
    from replay.run.process_files import IoOptions, mpi_hints
    from replay.twin.placement import parse_map

    return RunOptions(
        target=target,
        pacing=pacing,
        compute=chosen["compute"],
        maps=tuple(parse_map(text) for text in maps),
        cold=chosen["cold"],
        api=chosen["api"],
        reconstruct=chosen["reconstruct"],
        io=IoOptions(direct=chosen["direct"], pieces=chosen["vectored"], hints=mpi_hints(source)),
        sources=sources,
        force=chosen["force"],
    )
