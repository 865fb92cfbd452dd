"""`dxt-replay fit`: convert a capture to a DLIO workload description."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import (
    capture_argument,
    force_option,
    json_option,
    output_option,
    part_options,
)
from dxt_replay.replay.options.making import FitChoices

if TYPE_CHECKING:
    from dxt_replay.replay.interface.captures import NamedPart


@click.command()
@capture_argument("capture")
@output_option("OUT.yaml", "The description, which DLIO and `dxt-replay generate` read.")
@family_options(FitChoices)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PCT",
    help="Exit 1 when the generated I/O is less similar to the capture than this, such as 95.",
)
@part_options
@force_option
@json_option
def command(capture: NamedPart, output: Path, fail_under: float | None, **choices: Any) -> None:
    """Write the DLIO workload whose I/O is nearest to a capture.

    A comment on each line of the YAML says how the value was found. The first line says how similar the generated I/O
    is to the capture: the cosine of the factors of `compare` that storage does not decide. For all measures, generate a
    capture and give both to `compare --different-runs`. The capture needs training steps: merge logs with a profile
    first.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.show.make import fit_sections

    with status("fitting"):
        fitted = dxt_replay.fit(capture, output, **choices)
    answer(fitted, fit_sections)
    if fail_under is not None and (fitted.similarity is None or 100 * fitted.similarity < fail_under):
        raise SystemExit(1)
