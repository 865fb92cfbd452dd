"""`dxt-replay stage`: build the twin data set of a capture under a target."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import capture_argument, json_option, part_options
from dxt_replay.replay.options.choices import StageChoices

if TYPE_CHECKING:
    from dxt_replay.replay.interface.captures import NamedPart


@click.command()
@capture_argument("capture")
@click.option("--target", required=True, metavar="DIR", help="Directory, or s3:// URL, for the twin.")
@family_options(StageChoices, "dry_run")
@click.option("--remove", is_flag=True, help="Remove everything that was staged under the target, and nothing else.")
@family_options(StageChoices, "sparse", "maps", "workers", "timeout_s")
@part_options
@json_option
def command(
    capture: NamedPart,
    target: str,
    dry_run: bool,
    remove: bool,
    sparse: bool,
    maps: tuple[str, ...],
    workers: int | None,
    timeout_s: float | None,
) -> None:
    """Stage a twin of the recorded data set of a capture (or a .darshan log) under a target directory.

    Each file that the capture reads is made as large as its accesses need. Its data do not compress.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import given_options, print_next
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.commands.progress import byte_progress
    from dxt_replay.replay.commands.session import current
    from dxt_replay.replay.target.targets import check_there, target_named
    from dxt_replay.traces.units import format_counted

    as_json = current().as_json
    if remove:
        removed = dxt_replay.unstage(target)
        if as_json:
            print_json({"target": str(target), "removed": removed})
        else:
            click.echo(f"Removed {format_counted(removed, 'file')} from {target}")
        return
    if not dry_run:
        check_there(target_named(target))
    planned = dxt_replay.stage(capture, target, maps=maps, sparse=sparse, dry_run=True)
    if not as_json:
        for line in planned.plan.lines(dry_run=dry_run):
            click.echo(line)
    if not dry_run:
        with byte_progress("staging") as progress:
            began = time.monotonic()
            planned = planned.carry_out(workers=workers, timeout_s=timeout_s, on_progress=progress)
        if not as_json:
            click.echo(planned.plan.done_line(time.monotonic() - began))
            again = given_options({"maps", "ranks", "begin", "until", "steps"})
            print_next("run", capture.path, "--target", target, *again, "-o", "replay.capture")
    if as_json:
        print_json(planned.as_json())
