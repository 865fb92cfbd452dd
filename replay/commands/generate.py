"""`dxt-replay generate`: the description of a workload to a capture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.shared_options import force_option, json_option, worker_options

if TYPE_CHECKING:
    from dxt_replay.replay.interface.generating import CheckedWorkload
    from dxt_replay.traces.workers.workers import Workers

READINGS = ("documented", "head", "v2.0", "v3.0")
"""Those of `profiler_merge.workloads.description`, which a command does not import to be listed."""


@click.command()
@click.argument("workload", required=False, metavar="WORKLOAD")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--list", "listed", is_flag=True, help="Print the shipped workloads, and generate nothing.")
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks of the job, one for each accelerator.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT.capture", help="The capture to write.")
@click.option(
    "--check",
    "run",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Compare with a recording of a real run of WORKLOAD, file by file: a capture, a Darshan log, a trace of "
    "strace, or a folder of them. Exit 1 where they differ. Without --ranks as many as RUN has; -o is optional.",
)
@click.option(
    "--reading",
    type=click.Choice(READINGS),
    help="Follow DLIO's documentation, or what its code does: main of June 2026 (head), MLPerf Storage v2.0 (v2.0) or "
    "v3.0 (v3.0).  [default: what WORKLOAD names, else documented]",
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Storage that the times assume, such as latency=100us,bandwidth=1GB/s or null.  [default: those values]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the times that DLIO draws without one.",
)
@worker_options
@force_option
@json_option
def command(
    workload: str | None,
    overrides: tuple[str, ...],
    listed: bool,
    ranks: int | None,
    output: Path | None,
    run: Path | None,
    reading: str | None,
    device: str | None,
    seed: int,
    workers: Workers,
    force: bool,
    as_json: bool,
) -> None:
    """Generate the I/O of a workload as a capture, from a description instead of a recording.

    WORKLOAD is a YAML file of DLIO, a folder with the .hydra/config.yaml of one of its runs, or a shipped workload.
    KEY=VALUE replaces a key of it, such as reader.batch_size=4 or 'train.computation_time={mean:0.5,stdev:0.1}'.
    With --check RUN, exits 1 where the generated capture is not what a real run of WORKLOAD did.
    """
    import dxt_replay
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.commands.next_command import print_next
    from dxt_replay.replay.commands.progress import count_progress
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.generate_sections import generate_sections
    from dxt_replay.replay.show.terminal import print_sections

    if listed:
        _print_list(as_json)
        return
    choices: dict[str, Any] = {
        "overrides": overrides,
        "reading": reading,
        "device": device,
        "seed": seed,
        "force": force,
    }
    if workload is not None and run is not None:
        with unwind_on_signals(), count_progress("generating", "ranks") as progress:
            checked = dxt_replay.check_workload(
                workload, run, ranks=ranks, output=output, executor=workers, on_progress=progress, **choices
            )
        _print_check(checked, as_json=as_json)
        raise SystemExit(0 if checked.check.equal else 1)
    if workload is None or ranks is None or output is None:
        missing = "WORKLOAD" if workload is None else "--ranks" if ranks is None else "-o OUT.capture"
        raise click.UsageError(f"{missing} is missing; dxt-replay generate --list prints the shipped workloads")
    with unwind_on_signals(), count_progress("generating", "ranks") as progress:
        result = dxt_replay.generate(workload, ranks, output, executor=workers, on_progress=progress, **choices)
    if as_json:
        print_json(result.as_json())
    else:
        print_sections(generate_sections(result.as_json()))
        print_next("stage", output, "--target", "twin")


def _print_check(checked: CheckedWorkload, *, as_json: bool) -> None:
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.show.check_sections import check_sections
    from dxt_replay.replay.show.terminal import print_sections

    if as_json:
        print_json(checked.as_json())
    else:
        print_sections(check_sections(checked.as_json()))


def _print_list(as_json: bool) -> None:
    from dataclasses import asdict

    import dxt_replay
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.show.generate_sections import listing_section
    from dxt_replay.replay.show.terminal import print_sections

    workloads = [asdict(each) for each in dxt_replay.workloads()]
    if as_json:
        print_json({"workloads": workloads})
    else:
        print_sections([listing_section(workloads)])
