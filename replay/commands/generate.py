"""`dxt-replay generate`: generate a capture from the description of a workload."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import PATH, force_option, json_option, worker_options
from dxt_replay.replay.options.making import GenerateChoices

if TYPE_CHECKING:
    from dxt_replay.traces.workers import Workers


@click.command()
@click.argument("workload", required=False, metavar="WORKLOAD")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--list", "listed", is_flag=True, help="Print the shipped workloads, and generate nothing.")
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks of the job, one for each accelerator.")
@click.option("-o", "--output", type=PATH, metavar="OUT.capture", help="The capture to write.")
@family_options(GenerateChoices)
@worker_options
@force_option
@json_option
def command(
    workload: str | None,
    overrides: tuple[str, ...],
    listed: bool,
    ranks: int | None,
    output: Path | None,
    workers: Workers,
    **choices: Any,
) -> None:
    """Generate the I/O of a workload as a capture, from a description instead of a recording.

    WORKLOAD is a YAML file of DLIO, a folder with the .hydra/config.yaml of one of its runs, or a shipped workload.
    KEY=VALUE replaces a key of it, such as reader.batch_size=4 or 'train.computation_time={mean:0.5,stdev:0.1}'.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import count_progress
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.make import generate_sections, listing_section

    if listed:
        shipped = dxt_replay.workloads()
        document = {"workloads": [asdict(each) for each in shipped]}
        answer(document, lambda _: [listing_section(shipped)])
        return
    if workload is None or ranks is None or output is None:
        missing = "WORKLOAD" if workload is None else "--ranks" if ranks is None else "-o OUT.capture"
        raise click.UsageError(f"{missing} is missing; dxt-replay generate --list prints the shipped workloads")
    with unwind_on_signals(), count_progress("generating", "ranks") as progress:
        result = dxt_replay.generate(
            workload, ranks, output, overrides=overrides, executor=workers, on_progress=progress, **choices
        )
    answer(result, generate_sections, "stage", output, "--target", "twin")
