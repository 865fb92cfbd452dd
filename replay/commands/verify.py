"""`dxt-replay verify`: check that captures and staged twins are intact."""

from __future__ import annotations

from typing import Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import json_option
from dxt_replay.replay.options.looking import VerifyChoices


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="CAPTURE|TARGET...")
@family_options(VerifyChoices)
@json_option
def command(paths: tuple[str, ...], **choices: Any) -> int:
    """Check captures against their own digests, counts and sources, and staged twins against their manifests.

    In a capture, every file must have its digest, every row must follow the format, and the counts must agree. In a
    twin, every file must be there: a plain file with one name, with the size and the bytes that `stage` gave it. No
    other file may be there. To check the HDF5 files of a twin, name its capture too. Nothing is written. Exits 0 if
    nothing differs, 1 if something differs, 2 for wrong use.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.show.make import verified_sections

    with status("verifying"):
        result = dxt_replay.verify(*paths, **choices)
    answer(result, verified_sections)
    return 0 if result.passed else 1
