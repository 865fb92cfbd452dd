"""`python -m tests.fuzz`: mutated inputs through every reader, a table of what became of them, and what was found."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dxt_replay.replay.commands.main import EXIT_INTERRUPTED, HOMES
from dxt_replay.traces.samples import sample
from tests.fuzz.campaign import Campaign
from tests.fuzz.seeds import CAPTURE, seeds
from tests.fuzz.targets import TARGETS

COLUMNS = ("inputs", "accepted", "refused", "sealed", "commands", "found")
"""Of the table in docs/trust.md. `sealed`: inputs with a changed byte that a checksum covers. `commands`: those that
went through a whole command."""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    """Run the campaigns; status 1 where one found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", choices=TARGETS, help="this reader alone; repeatable")
    parser.add_argument("--count", type=int, default=1000, help="inputs of each target (default: 1000)")
    parser.add_argument("--seconds", type=float, default=0, help="instead of a count, this long for each target")
    parser.add_argument("--seed", type=int, default=0, help="other inputs for another number")
    parser.add_argument("--save", type=Path, help="a folder for the inputs that found something")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
            place_sound_inputs(Path(scratch))
            return run_campaigns(options, Path(scratch))
    except KeyboardInterrupt:
        print("interrupted: the readers above are done, the one after them is not", file=sys.stderr)
        return EXIT_INTERRUPTED


def place_sound_inputs(scratch: Path) -> None:
    """What commands take beside the changed input: a log, and a capture."""
    for module in HOMES.values():
        importlib.import_module(module)
    shutil.copyfile(sample("imagenet").log, scratch / "log.darshan")
    shutil.copytree(CAPTURE, scratch / "sound.capture")


def run_campaigns(options: argparse.Namespace, scratch: Path) -> int:
    """One campaign for each target, one after the other."""
    print(f"| reader | {' | '.join(COLUMNS)} | slowest | memory |\n{'|---' * (len(COLUMNS) + 3)}|", flush=True)
    found = 0
    for name in options.target or TARGETS:
        campaign = Campaign(TARGETS[name], in_child(lambda name=name: seeds(name)), scratch, options.seed)
        end = time.monotonic() + options.seconds
        while time.monotonic() < end or campaign.counts["inputs"] < options.count:
            campaign.run(200 if options.seconds else options.count)
        counts = " | ".join(f"{campaign.counts[each]:,}" for each in COLUMNS)
        costs = f"{campaign.slowest_s:.1f} s | {campaign.most_bytes / 2**20:.0f} MiB"
        print(f"| {name} | {counts} | {costs} |", *campaign.findings, sep="\n  ", flush=True)
        found += len(campaign.findings)
        for what, of_finding in campaign.findings.items() if options.save is not None else ():
            for path, data in of_finding.items():
                to = options.save / name / hashlib.sha256(what.encode()).hexdigest()[:8] / path
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(data)
    return 1 if found else 0


def in_child(make: Callable[[], Any]) -> Any:
    """What `make` returns, made in a process of its own: the threads of Arrow do not survive a fork."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if not child:
            try:
                pickle.dump(make(), file)
                file.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        file.seek(0)
        return pickle.load(file)


if __name__ == "__main__":
    sys.exit(main())
