"""`dxt-replay simulate`: how long a capture would take on a storage that is only described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.shared_options import PATH, capture_argument, json_option, time_options
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from dxt_replay.replay.interface.captures import NamedPart

MOST_COUNTS = 64
"""Most numbers of ranks in one scaling table."""


@click.command()
@capture_argument("capture")
@click.option(
    "--storage",
    required=True,
    metavar="MODEL",
    help="Storage model: a YAML or JSON file, or a shipped one: null, nvme, theta_lustre.",
)
@click.option(
    "--ranks",
    metavar="LIST",
    help="Predict for these numbers of ranks too, such as 128,256,...,8192: each further set of the recorded ranks "
    "reads files of its own.",
)
@click.option(
    "--strong",
    is_flag=True,
    help="Share the recorded work among the ranks of --ranks, as transform --ranks does it.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Simulate N runs with different seeds, where the model has jitter.",
)
@click.option("--speed", type=float, default=1.0, show_default=True, help="Shorten every gap: 2 halves it.")
@click.option("--compute-speed", type=float, metavar="FLOAT", help="Shorten compute alone.  [default: --speed]")
@click.option(
    "--io-speed", type=float, metavar="FLOAT", help="Shorten the gaps between operations alone.  [default: --speed]"
)
@click.option(
    "--reconstruct/--no-reconstruct",
    default=True,
    show_default=True,
    help="Simulate the operations that were reconstructed from counters, or leave them out.",
)
@click.option(
    "--check",
    type=PATH,
    metavar="TARGET",
    help="Replay seconds of the capture in this directory of the real storage, widen the interval by what they took, "
    "and refuse where they contradict the model. What is written there is removed again.",
)
@click.option(
    "--check-seconds",
    type=float,
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the replay of --check is predicted to take.",
)
@time_options
@json_option
def command(capture: NamedPart, ranks: str | None, **choices: Any) -> None:
    """Predict how long a capture would take on a storage that is only described.

    No file system is touched, except by --check.

    The same items as with `run --pace steps` go through a storage model (docs/simulation.md explains its keys). Where
    the model states an uncertainty or a jitter, the time has an interval. That of a recorded job includes an error of
    10 % of the causal model. The page cache is empty at the start.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.show.simulation_sections import simulation_sections

    counts = rank_counts(ranks) if ranks is not None else []
    with status("simulating" if choices["check"] is None else "simulating, and replaying the first seconds"):
        result = dxt_replay.simulate(capture, ranks=counts, **choices)
    answer(result, simulation_sections)


def rank_counts(text: str) -> list[int]:
    """The numbers of `128,256,...,8192`: three dots go on by the ratio, or else the difference, of the two before.

    Raises: UsageError for anything else.
    """
    words = [word.strip() for word in text.split(",")]
    counts: list[int] = []
    for place, word in enumerate(words):
        if word == "..." and len(counts) >= 2 and place + 1 < len(words) and words[place + 1].isdecimal():
            counts += _between(counts[-2], counts[-1], int(words[place + 1]), text)
        elif word.isdecimal() and int(word) > 0:
            counts.append(int(word))
        else:
            raise UsageError(f"--ranks {text!r}: give numbers of ranks, such as 128,256,...,8192")
    if len(counts) > MOST_COUNTS:
        raise UsageError(f"--ranks {text!r} has {len(counts)} numbers; the limit is {MOST_COUNTS}")
    return counts


def _between(first: int, second: int, last: int, text: str) -> list[int]:
    """What lies between the second and the last number of a row that goes on."""
    if second <= first or last <= second:
        raise UsageError(f"--ranks {text!r}: the numbers around ... must ascend")
    doubled, value = second % first == 0, second
    found: list[int] = []
    while len(found) <= MOST_COUNTS:
        value = value * (second // first) if doubled else value + (second - first)
        if value >= last:
            break
        found.append(value)
    return found
