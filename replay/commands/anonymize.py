"""`dxt-replay anonymize`: a capture to one that can be shared."""

from __future__ import annotations

from pathlib import Path

import click

from dxt_replay.replay.commands.shared_options import PATH, capture_argument, force_option, json_option, output_option
from dxt_replay.traces.errors import UsageError

MOST_KEY_BYTES = 1 << 20


@click.command()
@capture_argument("capture")
@output_option("OUT.capture", "The capture to write, such as shared.capture.")
@click.option(
    "--key-file",
    type=PATH,
    metavar="FILE",
    help="Make the names with the key in this file, such as 32 random bytes.",
)
@force_option
@json_option
def command(capture: Path, output: Path, key_file: Path | None, force: bool) -> None:
    """Write a capture (or a .darshan log) without names, so that it can be given to others.

    Parts of paths, dataset names and the application's own span names become keyed hashes; hosts, user, program, job
    id, environment, warnings and dates go. Operations, times, sizes, steps and known file extensions stay.
    Without a key a random one is made and not kept: then nobody can test a guess.
    With the same key for a recording and its replays, `compare` still knows them.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.make import anonymized_sections

    key = None if key_file is None else _read_key(key_file)
    with unwind_on_signals(), status("anonymizing"):
        result = dxt_replay.anonymize(capture, output, key=key, force=force)
    answer(result, anonymized_sections, "summary", output)


def _read_key(path: Path) -> bytes:
    """The bytes of the key file. Raises: UsageError."""
    try:
        with path.open("rb") as file:
            key = file.read(MOST_KEY_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--key-file {path} cannot be read: {error.strerror or error}") from error
    if not 0 < len(key) <= MOST_KEY_BYTES:
        raise UsageError(f"--key-file {path} holds no key, or more than 1 MiB: write 32 random bytes to it")
    return key
