"""`dxt-replay simulate`: predict how long a capture takes on storage that a model describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import (
    capture_argument,
    details_option,
    json_option,
    time_options,
    worker_options,
)
from dxt_replay.replay.options.choices import SimulateChoices
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from dxt_replay.replay.interface.captures import NamedPart
    from dxt_replay.traces.workers import Workers

MOST_COUNTS = 64
"""Most numbers of ranks in one scaling table."""


@click.command()
@capture_argument("capture")
@click.option(
    "--storage",
    required=True,
    metavar="MODEL",
    help="Storage model: a YAML or JSON file, or a shipped model: null, nvme, theta_lustre.",
)
@family_options(SimulateChoices)
@time_options
@worker_options
@details_option
@json_option
def command(capture: NamedPart, ranks: str | None, workers: Workers, **choices: Any) -> None:
    """Predict how long a capture would take on storage that a model describes.

    Only --check touches a file system.

    The operations of `run --pace steps` go through a storage model (docs/storage-models.md explains its keys). If the
    model states an uncertainty or a jitter, the predicted time has an interval. For a recorded job the interval
    includes an error of 10 % of the causal model. The page cache is empty at the start.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import phase_progress, status
    from dxt_replay.replay.show.predict import simulation_sections

    counts = rank_counts(ranks) if ranks is not None else []
    said = "simulating" if choices["check"] is None else "simulating, and replaying the first seconds"
    things = {"deriving": "ranks", "simulating": "operations"}
    with status(said), phase_progress(things) as progress:
        result = dxt_replay.simulate(capture, ranks=counts, executor=workers, on_progress=progress, **choices)
    answer(result, simulation_sections)


def rank_counts(text: str) -> list[int]:
    """The numbers of `128,256,...,8192`. Three dots continue the ratio of the two numbers before, or their difference.

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
    """The numbers that three dots stand for."""
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
