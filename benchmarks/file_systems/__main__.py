"""Does `regress` find changes of known direction on real file systems, and how often does it raise a false alarm?

For each change, two file systems that differ in it alone are made on loop devices, and `dxt-replay regress` compares
them with the fewest pairs that can be significant. Then two directories of one file system are compared again and
again (A/A), with the machine as it is and with a processor kept busy: each verdict of a difference is a false alarm.

Needs root and loop devices; names and skips what the kernel or the machine lacks. Removes everything again, also after
Ctrl-C. Exits 1 if a change was not found or the promised share of false alarms was exceeded.

    python -m benchmarks.file_systems [--only A,B] [--pairs 6] [--aa 30] [--minutes M] [--target DIR]
        [-o FILE] [--json | --markdown]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.file_systems.changes import CHANGES
from benchmarks.file_systems.measuring import busy_processor, generate, measure_change, measure_same
from benchmarks.file_systems.mounted import UnavailableError, own_namespace, why_unavailable
from benchmarks.file_systems.verdict_table import change_line, conclude, markdown, same_line, table
from benchmarks.run_all import RESULTS
from benchmarks.slowed_storage import CannotThrottleError

KINDS = ("ext4", "xfs", "btrfs", "tmpfs", "fuse", "nfs")
STATES: Mapping[str, Callable[[], AbstractContextManager[None]]] = {"idle": nullcontext, "busy": busy_processor}
"""States of the machine during A/A comparisons."""

IN_MEMORY = Path("/dev/shm")


class Measurement:
    """The requested comparisons, and the results so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._chosen = arguments
        self._until = time.monotonic() + 60 * arguments.minutes
        self.changes: list[dict[str, Any]] = []
        self.same: dict[str, list[dict[str, Any]]] = {}
        self.skipped: dict[str, str] = {}

    def measure(self) -> dict[str, Any]:
        """Run all comparisons, until the time is over."""
        with tempfile.TemporaryDirectory(prefix="dxt-replay-file-systems-", dir=self._chosen.target) as folder:
            scratch = Path(folder)
            captures = generate(scratch)
            self._measure_changes(captures, scratch)
            for state in STATES:
                if self._is_wanted(f"aa-{state}"):
                    self._measure_same(state, captures, scratch)
        return conclude(self.changes, self.same, self.skipped)

    def _is_wanted(self, name: str) -> bool:
        return not self._chosen.only or any(name.startswith(start) for start in self._chosen.only)

    def _is_over(self, name: str) -> bool:
        if time.monotonic() > self._until:
            self.skipped[name] = f"the {self._chosen.minutes:g} minutes were over"
        return name in self.skipped

    def _measure_changes(self, captures: dict[str, Path], scratch: Path) -> None:
        for change in CHANGES:
            if not self._is_wanted(change.name) or self._is_over(change.name):
                continue
            try:
                row = measure_change(change, captures[change.workload], self._chosen.pairs, scratch, _announce)
            except (UnavailableError, CannotThrottleError) as error:
                self.skipped[change.name] = str(error)
                continue
            self.changes.append(row)
            _report(change_line(row))

    def _measure_same(self, state: str, captures: dict[str, Path], scratch: Path) -> None:
        lacking = {kind: why for kind in KINDS if (why := why_unavailable(kind)) is not None}
        self.skipped |= {f"aa-{state}, {kind}": why for kind, why in lacking.items()}
        kinds = [kind for kind in KINDS if kind not in lacking]
        rows = self.same.setdefault(state, [])
        with STATES[state]():
            for number, kind in enumerate(kinds):
                share = (self._chosen.aa * (number + 1)) // len(kinds) - (self._chosen.aa * number) // len(kinds)
                try:
                    for row in measure_same(kind, captures, share, self._chosen.pairs, scratch):
                        rows.append(row)
                        _report(f"{state}: {same_line(row)}")
                        if self._is_over(f"aa-{state}, rest"):
                            return
                except (UnavailableError, CannotThrottleError) as error:
                    self.skipped[f"aa-{state}, {kind}"] = str(error)


def _announce(name: str) -> None:
    _report(f"comparing {name} ...")


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stop(signum: int, frame: object) -> None:
    """Unwind at the first signal; later ones must not disturb the clean-up."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(128 + signum)


def main() -> int:
    """Measure and print: 0, or 1 if a verdict was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*(change.name for change in CHANGES), *(f"aa-{state}" for state in STATES)]
    parser.add_argument("--only", default="", help=f"how names begin, with commas between them, of: {', '.join(names)}")
    parser.add_argument("--pairs", type=int, default=6, help="of a comparison; fewer than 6 cannot be significant")
    parser.add_argument("--aa", type=int, default=30, help="A/A comparisons for each state of the machine")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no comparison begins")
    parser.add_argument("--target", type=Path, help="directory for the images  [default: /dev/shm, which is memory]")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "file_systems.json", help="default: %(default)s")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the result as JSON")
    form.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    given = parser.parse_args()
    given.only = [start.strip() for start in given.only.split(",") if start.strip()]
    for start in given.only:
        if not any(name.startswith(start) for name in names):
            parser.error(f"no comparison begins with {start!r}: --help lists them")
    own_namespace([sys.executable, "-m", "benchmarks.file_systems", *sys.argv[1:]])
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, _stop)
    given.target = given.target or (IN_MEMORY if IN_MEMORY.is_dir() else None)
    result = Measurement(given).measure()
    given.output.parent.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2, allow_nan=False)
    given.output.write_text(text + "\n", encoding="utf-8")
    print(text if given.json else markdown(result) if given.markdown else table(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
