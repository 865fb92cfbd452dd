"""The options that say how a capture is replayed, which `run` and `regress` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

PACES = ("timed", "think", "steps", "none")
APIS = ("auto", "posix", "stdio", "mpiio", "hdf5", "null")
"""As in `traces.replay_record`, which would take its time to be imported for a `--help`."""


def _timeout_s(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    from dxt_replay.traces.units import NS_PER_S, parse_duration_ns

    return parse_duration_ns(value, "--timeout") / NS_PER_S


def timeout_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Option --timeout DURATION, which the command gets as `timeout_s`."""
    return click.option("--timeout", "timeout_s", metavar="DURATION", callback=_timeout_s, help=text)


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
    timeout_option("Give up a run that takes longer, and print where it hangs: 90, 10m, 2h."),
)


def replay_options(*, pace: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of `replay.interface.RunChoices`, under the same names.

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
