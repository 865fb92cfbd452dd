"""Does `regress` find changes of known direction on real file systems, and how often does it raise a false alarm?

For each change, two file systems that differ in it alone are made on loop devices, and `dxt-replay regress` compares
them with the fewest pairs that can be significant. Then two directories of one file system are compared again and again
(A/A), with the machine as it is and with a processor kept busy: each verdict of a difference is a false alarm.

Needs root and loop devices; names and skips what the kernel or the machine lacks. Mounts live in a mount namespace of
its own, images are unlinked as soon as a device holds them, and devices detach with their last user: if it is killed,
they vanish with its last process. Exits 1 if a change was not found or more false alarms came than promised.

    python -m benchmarks.file_systems [--only A,B] [--pairs 6] [--aa 30] [--minutes M] [--target DIR] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.run_all import RESULTS
from benchmarks.slowed_storage import CannotThrottleError, delayed, limited, run_command

MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
"""Commands that make a file system on a device."""

KINDS = (*MAKE, "tmpfs", "fuse")
"""Kinds of file systems; fuse presents an ext4 through a passthrough."""

WORKLOADS = ("reading", "writing", "saving")
IMAGE_BYTES = 1 << 30
OWN_NAMESPACE = "DXT_REPLAY_OWN_MOUNTS"
ALPHA = 0.05
"""Largest share of false alarms that `regress` promises."""

VERDICTS = {"slower": "regression", "faster": "improvement"}


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A file system to make. options: of mount. read_ahead_kib: of the device; the kernel's choice where None. limits:
    of the device, names of `slowed_storage.LIMITS`. delay_us, calls: of the passthrough, as in `delayed`."""

    kind: str
    options: str = ""
    read_ahead_kib: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    delay_us: int = 0
    calls: str = "all"


EXT4, XFS, BTRFS, FUSE = (Storage(kind=kind) for kind in ("ext4", "xfs", "btrfs", "fuse"))
SLOW_WRITES = {"wbps": 100_000_000}


def _limits(base: Storage, **limits: int) -> Storage:
    return replace(base, limits=limits)


def _read_ahead(base: Storage, kib: int, requests_per_s: int) -> Storage:
    """On a device that answers few requests per second, so that the number of requests decides."""
    return replace(base, read_ahead_kib=kib, limits={"riops": requests_per_s})


def _delay(us: int, calls: str = "all") -> Storage:
    return replace(FUSE, delay_us=us, calls=calls)


CHANGES: dict[str, tuple[str, Storage, Storage, str]] = {
    "ext4: rbps=50000000": ("reading", EXT4, _limits(EXT4, rbps=50_000_000), "slower"),
    "xfs: rbps=50000000": ("reading", XFS, _limits(XFS, rbps=50_000_000), "slower"),
    "btrfs: rbps=50000000": ("reading", BTRFS, _limits(BTRFS, rbps=50_000_000), "slower"),
    "ext4: rbps=50000000 lifted": ("reading", _limits(EXT4, rbps=50_000_000), EXT4, "faster"),
    "ext4: riops=500": ("reading", EXT4, _limits(EXT4, riops=500), "slower"),
    "xfs: riops=500": ("reading", XFS, _limits(XFS, riops=500), "slower"),
    "ext4: wbps=50000000": ("writing", EXT4, _limits(EXT4, wbps=50_000_000), "slower"),
    "xfs: wbps=50000000": ("writing", XFS, _limits(XFS, wbps=50_000_000), "slower"),
    "ext4: wiops=50": ("writing", EXT4, _limits(EXT4, wiops=50), "slower"),
    "ext4: sync": (
        "saving", _limits(EXT4, **SLOW_WRITES), replace(EXT4, limits=SLOW_WRITES, options="sync"), "slower"),
    "xfs: sync": ("saving", _limits(XFS, **SLOW_WRITES), replace(XFS, limits=SLOW_WRITES, options="sync"), "slower"),
    "ext4: data=journal": ("writing", EXT4, replace(EXT4, options="data=journal"), "slower"),
    "btrfs: compress-force=zlib:9": ("writing", BTRFS, replace(BTRFS, options="compress-force=zlib:9"), "slower"),
    "ext4: read-ahead 128 to 0 KiB": ("reading", _read_ahead(EXT4, 128, 4000), _read_ahead(EXT4, 0, 4000), "slower"),
    "xfs: read-ahead 128 to 0 KiB": ("reading", _read_ahead(XFS, 128, 4000), _read_ahead(XFS, 0, 4000), "slower"),
    "ext4: read-ahead 16 to 4096 KiB": (
        "reading", _read_ahead(EXT4, 16, 1000), _read_ahead(EXT4, 4096, 1000), "faster"),
    "fuse: 0 to 1 ms a call": ("reading", FUSE, _delay(1000), "slower"),
    "fuse: 0 to 5 ms a call": ("reading", FUSE, _delay(5000), "slower"),
    "fuse: 5 to 1 ms a call": ("reading", _delay(5000), _delay(1000), "faster"),
    "fuse: 0 to 5 ms a metadata call": ("reading", _delay(0, "metadata"), _delay(5000, "metadata"), "slower"),
    "ext4 (rbps=50000000) to tmpfs": ("reading", _limits(EXT4, rbps=50_000_000), Storage(kind="tmpfs"), "faster"),
}  # fmt: skip
"""Name -> workload, baseline, candidate, what the workload becomes: slower or faster."""


class UnavailableError(Exception):
    """This machine lacks something that a file system needs; the message names it."""


# File systems


def why_unavailable(kind: str) -> str | None:
    """Why a file system of this kind cannot be made here; None if it can."""
    if os.geteuid():
        return "it needs root"
    under = "ext4" if kind == "fuse" else kind
    for module in (kind, "loop"):
        if shutil.which("modprobe"):
            subprocess.run(["modprobe", "-q", module], check=False, stderr=subprocess.DEVNULL)
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text(encoding="ascii").splitlines()}
    for needed in {kind, under} - known:
        return f"this kernel has no {needed}"
    if under in MAKE and shutil.which(MAKE[under][0]) is None:
        return f"{MAKE[under][0]} is not installed"
    if under in MAKE and not Path("/dev/loop-control").exists():
        return "this kernel has no loop devices"
    return None


@contextmanager
def mounted(storage: Storage, scratch: Path) -> Iterator[tuple[Path, str | None]]:
    """The file system's root, and major:minor of its device; its image is made in `scratch`.

    Raises: UnavailableError, CannotThrottleError.
    """
    if why := why_unavailable(storage.kind):
        raise UnavailableError(why)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mounted-", dir=scratch)))
        if storage.kind == "tmpfs":
            _mount(stack, "tmpfs", "tmpfs", f"size={IMAGE_BYTES}", place)
            yield place, None
            return
        kind = "ext4" if storage.kind == "fuse" else storage.kind
        with tempfile.NamedTemporaryFile(prefix="image-", dir=scratch) as image:
            image.truncate(IMAGE_BYTES)
            # Without direct I/O the page cache of the image would hold a second copy of the data, which nothing drops.
            device = _run("losetup", "--find", "--show", "--direct-io=on", image.name)
        try:
            _run(*MAKE[kind], device)
            _mount(stack, kind, device, storage.options, place)
        finally:
            _run("losetup", "--detach", device)  # when anyone unmounts it
        queue = Path("/sys/class/block", Path(device).name)
        if storage.read_ahead_kib is not None:  # of the device, and of the file systems (btrfs) that have their own
            number = place.stat().st_dev
            own = Path(f"/sys/class/bdi/{os.major(number)}:{os.minor(number)}/read_ahead_kb")
            for setting in (queue / "queue" / "read_ahead_kb", own):
                if setting.exists():
                    setting.write_text(str(storage.read_ahead_kib), encoding="ascii")
        if storage.kind == "fuse":
            place = stack.enter_context(delayed(place, storage.delay_us, storage.calls))
        yield place, (queue / "dev").read_text(encoding="ascii").strip()


def _mount(stack: ExitStack, kind: str, device: str, options: str, place: Path) -> None:
    """Mount it until the stack ends; lazily unmounted if it is still in use, so that it goes with its last user."""
    _run("mount", "-t", kind, *(("-o", options) if options else ()), device, str(place))
    unmount = f'umount "{place}" 2> /dev/null || umount --lazy "{place}"'
    stack.callback(_run, "sh", "-c", unmount)


def _run(*command: str) -> str:
    """Standard output of a command. Raises: UnavailableError with its message if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


# Comparisons


def regress(capture: Path, baseline: Path, candidate: Path, pairs: int, procs: Path | None = None) -> dict[str, Any]:
    """The verdict of `dxt-replay regress` on the deciding metric, and its evidence."""
    sides = ("--baseline", str(baseline), "--candidate", str(candidate), "--repeats", str(pairs))
    result = json.loads(run_command("regress", str(capture), *sides, "--json", "-q", procs=procs, statuses=(0, 1)))
    metric = result["metrics"][result["primary"]]
    return {name: result[name] for name in ("verdict", "reason", "warnings")} | {
        name: metric[name] for name in ("ratio", "ci", "baseline", "candidate")
    }


def measure_change(name: str, captures: Mapping[str, Path], pairs: int, scratch: Path) -> dict[str, Any]:
    """The verdict on a change. Raises: UnavailableError, CannotThrottleError."""
    workload, baseline, candidate, expected = CHANGES[name]
    with mounted(baseline, scratch) as (before, one), mounted(candidate, scratch) as (after, other):
        sides = {one: baseline.limits, other: candidate.limits}
        limits = {device: each for device, each in sides.items() if device is not None and each}
        with limited(limits) if limits else nullcontext() as procs:
            found = regress(captures[workload], before / "twin", after / "twin", pairs, procs)
    return {"change": name, "workload": workload, "expected": expected, **found}


def measure_same(
    kind: str, captures: Mapping[str, Path], comparisons: int, pairs: int, scratch: Path
) -> Iterator[dict[str, Any]]:
    """A/A: `regress` between two new directories of one file system, `comparisons` times, a workload after the other.

    Raises: UnavailableError, CannotThrottleError.
    """
    with mounted(Storage(kind=kind), scratch) as (folder, _):
        for number in range(comparisons):
            workload = WORKLOADS[number % len(WORKLOADS)]
            places = [folder / f"{number}-{name}" for name in "ab"]
            found = regress(captures[workload], places[0], places[1], pairs)
            for place in places:
                shutil.rmtree(place)
            yield {"kind": kind, "workload": workload, **found}


@contextmanager
def _busy_processor() -> Iterator[None]:
    spinning = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(spinning) as process:
        try:
            yield
        finally:
            process.kill()


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All comparisons that were asked for, until the time is over."""
    until = time.monotonic() + 60 * given.minutes
    changes: list[dict[str, Any]] = []
    same: dict[str, list[dict[str, Any]]] = {}
    skipped: dict[str, str] = {}

    def wanted(name: str) -> bool:
        if time.monotonic() > until:
            skipped[name] = f"the {given.minutes:g} minutes were over"
        return name not in skipped and (not given.only or name.startswith(tuple(given.only)))

    with tempfile.TemporaryDirectory(prefix="dxt-replay-file-systems-", dir=given.target) as folder:
        scratch = Path(folder)
        captures = {name: scratch / f"{name}.capture" for name in WORKLOADS}
        for name, capture in captures.items():
            description = Path(__file__).with_name("file_system_workloads") / f"{name}.yaml"
            run_command("generate", str(description), "--ranks", "1", "-o", str(capture))
        for name in filter(wanted, CHANGES):
            try:
                changes.append(measure_change(name, captures, given.pairs, scratch))
                print(_line(changes[-1]), file=sys.stderr, flush=True)
            except (UnavailableError, CannotThrottleError) as error:
                skipped[name] = str(error)
        for state in ("idle", "busy"):
            for number, kind in enumerate(KINDS if wanted(f"aa-{state}") else ()):
                share = given.aa * (number + 1) // len(KINDS) - given.aa * number // len(KINDS)
                try:
                    with _busy_processor() if state == "busy" else nullcontext():
                        for row in measure_same(kind, captures, share, given.pairs, scratch):
                            same.setdefault(state, []).append(row)
                            if not wanted(f"aa-{state}"):
                                break
                except (UnavailableError, CannotThrottleError) as error:
                    skipped[f"aa-{state}, {kind}"] = str(error)
    return conclude(changes, same, skipped)


# The table


def promise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """False alarms of a series: number, the probability of at least as many at the promised share, and whether the
    promise is kept: at most as many as promised, or no more than chance explains at that share."""
    alarms, trials = sum(row["verdict"] in VERDICTS.values() for row in rows), len(rows)
    terms = (math.comb(trials, n) * ALPHA**n * (1 - ALPHA) ** (trials - n) for n in range(alarms, trials + 1))
    chance = min(math.fsum(terms), 1.0)
    kept = alarms <= ALPHA * trials or chance >= ALPHA
    return {"comparisons": trials, "false_alarms": alarms, "probability": chance, "kept": kept}


def conclude(
    changes: Sequence[Mapping[str, Any]], same: Mapping[str, Sequence[Mapping[str, Any]]], skipped: Mapping[str, str]
) -> dict[str, Any]:
    """The whole result. same: A/A comparisons by the state of the machine. skipped: what was not measured, and why."""
    rows = [{**row, "found": row["verdict"] == VERDICTS[row["expected"]]} for row in changes]
    series = {state: promise(found) for state, found in same.items()}
    passed = all(row["found"] for row in rows) and all(one["kept"] for one in series.values())
    return {"changes": rows, "same": dict(same), "series": series, "skipped": dict(skipped), "passed": passed}


def _line(row: Mapping[str, Any]) -> str:
    """As a line of docs/pictures/verdicts.csv, and the verdict where it is not the expected one."""
    low, high = row["ci"]
    interval = "-" if low is None or high is None else f"{low:.2f} to {high:.2f}"
    missed = "" if row["verdict"] == VERDICTS[row["expected"]] else f";NOT FOUND: {row['verdict']}"
    return f"{row['change']};{row['workload']};{row['ratio']:.2f} x;{interval}{missed}"


def table(result: Mapping[str, Any]) -> str:
    """The result for people."""
    lines = ["change;workload;time;95 % interval", *map(_line, result["changes"])]
    for state, found in result["series"].items():
        kept = "kept" if found["kept"] else "BROKEN"
        alarms = f"{found['false_alarms']} false alarms (promised: at most {100 * ALPHA:g} %: {kept})"
        lines.append(f"{found['comparisons']} A/A comparisons, {state} machine: {alarms}")
    return "\n".join([*lines, *(f"{name}: not measured: {why}" for name, why in result["skipped"].items())])


def _stop(signum: int, frame: object) -> None:
    """Unwind at the first signal; later ones must not disturb the clean-up."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(128 + signum)


def main() -> int:
    """Measure and print: 0, or 1 if a verdict was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*CHANGES, "aa-idle", "aa-busy"]
    parser.add_argument("--only", default="", help=f"how names begin, with commas between them, of: {', '.join(names)}")
    parser.add_argument("--pairs", type=int, default=6, help="of a comparison; fewer than 6 cannot be significant")
    parser.add_argument("--aa", type=int, default=30, help="A/A comparisons for each state of the machine")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no comparison begins")
    parser.add_argument("--target", type=Path, help="directory for the images  [default: /dev/shm, which is memory]")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "file_systems.json", help="default: %(default)s")
    given = parser.parse_args()
    given.only = [start.strip() for start in given.only.split(",") if start.strip()]
    for start in given.only:
        if not any(name.startswith(start) for name in names):
            parser.error(f"no comparison begins with {start!r}: --help lists them")
    if OWN_NAMESPACE not in os.environ:
        os.environ[OWN_NAMESPACE] = "1"
        again = [sys.executable, "-m", "benchmarks.file_systems", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "--", *again])
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, _stop)
    given.target = given.target or (Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    result = measure(given)
    given.output.parent.mkdir(exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    print(table(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
