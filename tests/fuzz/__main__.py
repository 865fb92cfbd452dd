"""`python -m tests.fuzz`: mutated inputs through every reader, a table of what became of them, and what was found."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dxt_replay.replay.commands.main import EXIT_INTERRUPTED, HOMES
from dxt_replay.traces.samples import sample
from tests.fuzz.campaign import Campaign, Tally
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run the campaigns; status 1 where one found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", choices=TARGETS, help="this reader alone; repeatable")
    parser.add_argument("--count", type=int, default=1000, help="inputs of each target (default: 1000)")
    parser.add_argument("--seconds", type=float, default=0, help="instead of a count, this long for each target")
    parser.add_argument("--seed", type=int, default=0, help="other inputs for another number")
    parser.add_argument("--seeds", type=Path, help="a folder of logs and traces to begin with, too")
    parser.add_argument("--save", type=Path, help="a folder for the inputs that found something")
    parser.add_argument("--bombs", action="store_true", help="the decompression bombs instead")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as scratch:
            place_sound_inputs(Path(scratch))
            if options.bombs:
                return run_bombs(Path(scratch))
            return run_campaigns(options, Path(scratch))
    except KeyboardInterrupt:
        print("interrupted: the readers above are done, the one after them is not", file=sys.stderr)
        return EXIT_INTERRUPTED


def place_sound_inputs(scratch: Path) -> None:
    """What commands take beside the changed input: a log, and a capture."""
    from tests.fuzz.seeds import small_capture

    for module in HOMES.values():
        importlib.import_module(module)
    shutil.copyfile(sample("imagenet").log, scratch / "log.darshan")
    in_child(lambda: shutil.move(small_capture(scratch), scratch / "sound.capture"))


def run_campaigns(options: argparse.Namespace, scratch: Path) -> int:
    """One campaign for each target, one after the other."""
    from tests.fuzz.seeds import seeds

    print(HEAD, flush=True)
    found = 0
    for name in options.target or TARGETS:
        pool = in_child(lambda name=name: seeds(name, options.seeds))
        campaign = Campaign(TARGETS[name], pool, scratch, options.seed)
        end = time.monotonic() + options.seconds
        campaign.run(options.count if not options.seconds else len(pool))
        while options.seconds and time.monotonic() < end:
            campaign.run(200)
        print(row(name, campaign.tally), flush=True)
        for finding in campaign.findings.values():
            found += 1
            print(f"  {finding.what} | {finding.where} | {finding.command}", flush=True)
            if options.save is not None:
                _save(options.save / name, finding.files, finding.what + finding.where)
    return 1 if found else 0


def run_bombs(scratch: Path) -> int:
    """Each decompression bomb through the reader and a command."""
    from tests.fuzz.seeds import bombs

    print(HEAD, flush=True)
    found = 0
    for title, (name, files) in in_child(bombs).items():
        campaign = Campaign(TARGETS[name], [files], scratch)
        campaign.try_all([files])
        print(row(title, campaign.tally), flush=True)
        for finding in campaign.findings.values():
            found += 1
            print(f"  {finding.what} | {finding.where} | {finding.command}", flush=True)
    return 1 if found else 0


COLUMNS = ("reader", "inputs", "accepted", "refused", "checksum", "commands", "new lines", "slowest", "memory", "found")
"""Of the table: `checksum` counts inputs in which a byte was changed that a checksum covers, `commands` those that went
through a whole command, `new lines` those that reached lines which no input before them had reached."""

HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def row(name: str, tally: Tally) -> str:
    """A row of the table in docs/trust.md."""
    counts = (tally.inputs, tally.accepted, tally.refused, tally.sealed, tally.commands, tally.new)
    costs = (f"{tally.slowest_s:.1f} s", f"{tally.most_bytes / 2**20:.0f} MiB", f"{tally.findings.total()}")
    return f"| {' | '.join((name, *(f'{count:,}' for count in counts), *costs))} |"


def in_child(make: Callable[[], Any]) -> Any:
    """What `make` returns, made in a process of its own: the threads of Arrow do not survive a fork."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(receive)
        with os.fdopen(send, "wb") as stream:
            pickle.dump(make(), stream)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


def _save(folder: Path, files: Any, what: str) -> None:
    name = hashlib.sha256(what.encode()).hexdigest()[:8]
    for path, data in files.items():
        to = folder / name / path
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
