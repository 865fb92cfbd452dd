"""`dxt-replay verify`: check that captures and staged twins are intact."""

from __future__ import annotations

from pathlib import Path

import click

from dxt_replay.replay.commands.shared_options import PATH, json_option


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="CAPTURE|TARGET...")
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="A log, profile or capture that a capture was made from; those beside the capture are found. Repeatable.",
)
@click.option("--sizes-only", is_flag=True, help="Look at kinds and sizes of a twin's files, not at their bytes: fast.")
@click.option(
    "--most",
    type=click.IntRange(1, 1000),
    default=20,
    metavar="N",
    show_default=True,
    help="List at most this many differences of each capture or target.",
)
@json_option
def command(paths: tuple[Path, ...], sources: tuple[Path, ...], sizes_only: bool, most: int) -> int:
    """Check captures against their own digests, counts and sources, and staged twins against their manifests.

    In a capture, every file must have its digest, every row must follow the format, and the counts must agree. In a
    twin, every file must be there: a plain file with one name, with the size and the bytes that `stage` gave it. No
    other file may be there. To check the HDF5 files of a twin, name its capture too. Nothing is written. Exits 0 if
    nothing differs, 1 if something differs, 2 for wrong use.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.show.verify_sections import verified_sections

    with status("verifying"):
        result = dxt_replay.verify(*paths, sources=sources, sizes_only=sizes_only)
    answer(result, lambda verified: verified_sections(verified, most))
    return 0 if result.passed else 1
