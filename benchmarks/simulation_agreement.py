"""Does `simulate` with a calibrated storage model agree with `run --pace steps` on that very storage?

For each target (the plain file system, throttles of bytes and of requests, a file system whose calls take 5 ms, and one
with libfuse's defaults, which drop the pages of a file at each open) the storage is calibrated once. Each capture is
then simulated on the model, and replayed there several times, cold. The captures are the two that come with the
package, or those of `--recordings DIR`, in which each folder holds a `job.darshan` and its profiles in `profile`.

Throttles need root and the block I/O controller, the slow file system needs a C compiler and libfuse3: what is missing
is named and left out.

    python -m benchmarks.simulation_agreement [--json] [--target DIR] [--recordings DIR] [--captures A,B]
        [--targets A,B] [--minutes 2] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import dxt_replay
from benchmarks.slowed_storage import CannotThrottleError, delayed, run_command, throttled

BUNDLED = ("imagenet", "cosmictagger")
BYTES_PER_S, REQUESTS_PER_S, DELAY_US = 10_000_000, 100, 5000
LIMIT_PCT = 10.0
"""Largest difference of the simulated time from the replayed one, per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A storage. shown: a context that gives the directory as this storage shows it. group: a context that gives the
    control group that a process must join, or None."""

    name: str
    shown: Callable[[Path], AbstractContextManager[Path]]
    group: Callable[[Path], AbstractContextManager[Path | None]]


@contextmanager
def _as_it_is(folder: Path) -> Iterator[Path]:
    yield folder


@contextmanager
def _no_group(folder: Path) -> Iterator[Path | None]:
    yield None


TARGETS = (
    Target(name="plain", shown=_as_it_is, group=_no_group),
    Target(
        name=f"{BYTES_PER_S / 1e6:.0f} MB/s",
        shown=_as_it_is,
        group=lambda folder: throttled(folder, BYTES_PER_S),
    ),
    Target(
        name=f"{REQUESTS_PER_S} requests/s",
        shown=_as_it_is,
        group=lambda folder: throttled(folder, requests_per_s=REQUESTS_PER_S),
    ),
    Target(name=f"{DELAY_US / 1000:.0f} ms a call", shown=lambda folder: delayed(folder, DELAY_US), group=_no_group),
    Target(
        name="FUSE defaults",
        shown=lambda folder: delayed(folder, DELAY_US, pages="dropped"),
        group=_no_group,
    ),
)


def measure(
    folder: Path | None = None,
    *,
    recordings: Path | None = None,
    captures: Sequence[str] = (),
    targets: Sequence[str] = (),
    minutes: float = 2.0,
    repeats: int = 3,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Per target and capture: simulated and replayed seconds, and the difference in per cent of the replayed ones."""
    rows, skipped = [], {}
    with tempfile.TemporaryDirectory(prefix="dxt-replay-agreement-", dir=folder) as scratch:
        merged = _merged(Path(scratch), recordings, captures)
        data = Path(scratch, "data")
        data.mkdir()
        for name, capture in merged.items():
            (data / name).mkdir()
            run_command("stage", str(capture), "--target", str(data / name))
        for target in TARGETS:
            if targets and target.name not in targets:
                continue
            try:
                with target.shown(data) as place:
                    model = Path(scratch, "measured.json")
                    with target.group(data) as procs:
                        options = ("-o", str(model), "--minutes", str(minutes), "--force", "-q")
                        run_command("calibrate", "--target", str(place), *options, procs=procs)
                    for name, capture in merged.items():
                        rows.append(_row(target, name, capture, place / name, model, data, repeats))
                        report(_line(rows[-1]))
            except CannotThrottleError as error:
                skipped[target.name] = str(error)
    return {"rows": rows, "skipped": skipped, "required_pct": LIMIT_PCT, "worst_pct": _worst(rows)}


def _merged(scratch: Path, recordings: Path | None, wanted: Sequence[str]) -> dict[str, Path]:
    """The captures by name, each merged from its log and profiles."""
    found = {}
    folders = [] if recordings is None else sorted(path.parent for path in recordings.glob("*/job.darshan"))
    sources = {path.name: (path / "job.darshan", [path / "profile"]) for path in folders}
    for name in () if sources else BUNDLED:
        sample = dxt_replay.sample(name)
        sources[name] = (Path(sample.log), [Path(profile) for profile in sample.profiles])
    unknown = set(wanted) - sources.keys()
    if unknown:
        raise SystemExit(f"there is no capture {unknown.pop()!r}: choose {', '.join(sources)}")
    for name in wanted or sources:
        log, profiles = sources[name]
        found[name] = scratch / f"{name}.capture"
        dxt_replay.merge(log, found[name], profiles=profiles)
    return found


def _row(target: Target, name: str, capture: Path, twin: Path, model: Path, data: Path, repeats: int) -> dict[str, Any]:
    predicted = dxt_replay.simulate(capture, model).as_json()
    replayed = []
    for _ in range(repeats):
        output = str(model.with_name("replay.capture"))
        with target.group(data) as procs:
            arguments = ("--target", str(twin), "-o", output, "--force", "--pace", "steps", "--cold", "--json")
            printed = run_command("run", str(capture), *arguments, procs=procs)
        replayed.append(json.loads(printed)["elapsed_s"])
    typical = median(replayed)
    return {
        "target": target.name,
        "capture": name,
        "recorded_s": predicted["recorded_s"],
        "free_storage_s": predicted["free_storage_s"],
        "simulated_s": predicted["elapsed_s"],
        "interval_s": predicted["interval_s"],
        "replayed_s": replayed,
        "held": sum(predicted["interval_s"][0] <= each <= predicted["interval_s"][1] for each in replayed),
        "difference_pct": 100.0 * (predicted["elapsed_s"] / typical - 1.0),
    }


def _worst(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for row in rows:
        worst[row["target"]] = max(worst.get(row["target"], 0.0), abs(row["difference_pct"]))
    return worst


_HEAD = (
    f"{'target':<15} {'capture':<18} {'no storage':>10} {'simulated':>9} {'interval':>15} {'replayed':>22} "
    f"{'differs':>8} {'held':>5}"
)


def _line(row: dict[str, Any]) -> str:
    low, high = row["interval_s"]
    ran = sorted(row["replayed_s"])
    replayed = f"{median(ran):.2f} ({ran[0]:.2f} - {ran[-1]:.2f})"
    return (
        f"{row['target']:<15} {row['capture']:<18} {row['free_storage_s']:>9.2f}s {row['simulated_s']:>8.2f}s "
        f"{f'{low:.2f} - {high:.2f}':>15} {replayed:>22} {row['difference_pct']:>+7.1f}% "
        f"{row['held']:>3}/{len(ran)}"
    )


def table(result: dict[str, Any]) -> str:
    """The result as a table for people."""
    lines = [_HEAD, *map(_line, result["rows"])]
    lines += [f"{name}: at most {worst:.1f} % apart" for name, worst in result["worst_pct"].items()]
    held, ran = sum(row["held"] for row in result["rows"]), sum(len(row["replayed_s"]) for row in result["rows"])
    lines.append(f"{held} of {ran} replays lie in the interval of their prediction")
    lines += [f"{name}: not measured: {why}" for name, why in result["skipped"].items()]
    return "\n".join([*lines, f"(required: {result['required_pct']:.0f} %)"])


def main() -> int:
    """Measure and print; always exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--target", type=Path, help="directory on the storage to be measured and throttled")
    parser.add_argument("--recordings", type=Path, help="directory with a folder for each recorded job")
    parser.add_argument("--captures", default="", help="names, with commas between them; all if absent")
    parser.add_argument(
        "--targets", default="", help=f"of {', '.join(target.name for target in TARGETS)}; all if absent"
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="time of each calibration")
    parser.add_argument("--repeats", type=int, default=3, help="replays of each capture on each target")
    given = parser.parse_args()
    result = measure(
        given.target,
        recordings=given.recordings,
        captures=[name for name in given.captures.split(",") if name],
        targets=[name.strip() for name in given.targets.split(",") if name],
        minutes=given.minutes,
        repeats=given.repeats,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(json.dumps(result, indent=2) if given.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
