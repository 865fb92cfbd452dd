"""Changes of storage with a known direction, each with the two sides of its comparison."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.file_systems.mounted import Storage

MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From `baseline` to `candidate` the workload (a name in workloads/) becomes `expected`: slower or faster.

    `peer`: options of fio where its sequential read is measured beside it.
    """

    name: str
    workload: str
    baseline: Storage
    candidate: Storage
    expected: str = "slower"
    peer: tuple[str, ...] | None = None


def _limited(kind: str, workload: str, **limits: int) -> Change:
    shown = " ".join(f"{name}={rate}" for name, rate in limits.items())
    return Change(
        name=f"{kind}: {shown}",
        workload=workload,
        baseline=Storage(kind=kind),
        candidate=Storage(kind=kind, limits=limits),
    )


def _mounted(kind: str, options: str) -> Change:
    return Change(
        name=f"{kind}: {options}",
        workload="writing",
        baseline=Storage(kind=kind),
        candidate=Storage(kind=kind, options=options),
    )


def _synchronous(kind: str) -> Change:
    """Each write waits for a slow device; by default it is deferred."""
    slow = {"wbps": 100 * MB}
    return Change(
        name=f"{kind}: sync",
        workload="saving",
        baseline=Storage(kind=kind, limits=slow),
        candidate=Storage(kind=kind, limits=slow, options="sync"),
    )


def _read_ahead(kind: str, before: int, after: int, requests_per_s: int) -> Change:
    """On a device that answers few requests per second, so that the number of requests decides."""
    sides = [Storage(kind=kind, read_ahead_kib=kib, limits={"riops": requests_per_s}) for kib in (before, after)]
    return Change(
        name=f"{kind}: read-ahead {before} to {after} KiB",
        workload="reading",
        baseline=sides[0],
        candidate=sides[1],
        expected="slower" if after < before else "faster",
        peer=("--direct=1",),
    )


def _delayed(before_us: int, after_us: int, calls: str = "all") -> Change:
    which = "call" if calls == "all" else f"{calls} call"
    return Change(
        name=f"fuse: {before_us / 1000:g} to {after_us / 1000:g} ms a {which}",
        workload="reading",
        baseline=Storage(kind="fuse", delay_us=before_us, delayed_calls=calls),
        candidate=Storage(kind="fuse", delay_us=after_us, delayed_calls=calls),
        expected="slower" if after_us > before_us else "faster",
        peer=("--direct=0",) if calls == "metadata" else None,
    )


CHANGES = (
    _limited("ext4", "reading", rbps=50 * MB),
    _limited("xfs", "reading", rbps=50 * MB),
    _limited("btrfs", "reading", rbps=50 * MB),
    Change(
        name="ext4: rbps=50000000 lifted",
        workload="reading",
        baseline=Storage(kind="ext4", limits={"rbps": 50 * MB}),
        candidate=Storage(kind="ext4"),
        expected="faster",
    ),
    _limited("ext4", "reading", riops=500),
    _limited("xfs", "reading", riops=500),
    _limited("ext4", "writing", wbps=50 * MB),
    _limited("xfs", "writing", wbps=50 * MB),
    _limited("ext4", "writing", wiops=50),
    _synchronous("ext4"),
    _synchronous("xfs"),
    _mounted("ext4", "data=journal"),
    _mounted("btrfs", "compress-force=zlib:9"),
    _read_ahead("ext4", 128, 0, 4000),
    _read_ahead("xfs", 128, 0, 4000),
    _read_ahead("ext4", 16, 4096, 1000),
    _delayed(0, 1000),
    _delayed(0, 5000),
    _delayed(5000, 1000),
    _delayed(0, 5000, "metadata"),
    _limited("nfs", "writing", wbps=20 * MB),
    Change(
        name="ext4 to nfs",
        workload="reading",
        baseline=Storage(kind="ext4"),
        candidate=Storage(kind="nfs"),
    ),
    Change(
        name="ext4 (rbps=50000000) to tmpfs",
        workload="reading",
        baseline=Storage(kind="ext4", limits={"rbps": 50 * MB}),
        candidate=Storage(kind="tmpfs"),
        expected="faster",
    ),
)
