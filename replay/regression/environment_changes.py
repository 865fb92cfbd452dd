"""Describes the differences between the environments of two experiments. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from dxt_replay.replay.regression.machine_environment import MachineEnvironment
from dxt_replay.replay.regression.target_environment import TargetEnvironment
from dxt_replay.traces.units import format_bytes

_NAMES = {
    "host": "machine",
    "cpu": "processor",
    "cpus": "processors in use",
    "memory_bytes": "memory",
    "file_system": "file system",
    "mount_point": "mount point",
    "source": "mounted from",
    "read_ahead_kib": "read-ahead of the mount, KiB",
    "target": "target",
    "maps": "real data",
    "device.name": "device",
    "device.model": "model of the device",
    "device.scheduler": "I/O scheduler",
    "device.rotational": "device is rotational",
    "device.read_ahead_kib": "read-ahead of the device, KiB",
    "device.queue_requests": "requests in the queue of the device",
}
"""Field -> what a person calls it; others have their own name."""

_HARDWARE = ("host", "cpu", "cpus", "memory_bytes")
_BYTES = ("memory_bytes",)
_SMALL_SHARE = 0.01
"""Memory that differs by less, as a kernel may reserve, is the same."""


def machine_changes(before: MachineEnvironment, after: MachineEnvironment) -> list[str]:
    """`kernel 6.1.0 -> 6.8.0` and the like."""
    return list(_changes(_flat(asdict(before)), _flat(asdict(after))))


def hardware_changed(before: MachineEnvironment, after: MachineEnvironment) -> bool:
    """Whether the host, its processors or its memory differ. Kernel and limits do not count, because they may be the
    reason why the file systems changed."""
    earlier, later = asdict(before), asdict(after)
    return any(True for _ in _changes(*({name: each[name] for name in _HARDWARE} for each in (earlier, later))))


def target_changes(before: TargetEnvironment, after: TargetEnvironment) -> list[str]:
    """The same of the file system, its mount and its device; `mount option noatime added` and the like."""
    known, found = asdict(before), asdict(after)
    if before.device is None or after.device is None or before.device.name != after.device.name:
        known["device"], found["device"] = ({"name": one.device and one.device.name} for one in (before, after))
    earlier, later = set(known.pop("options")), set(found.pop("options"))
    options = [f"mount option {option} added" for option in sorted(later - earlier)]
    options += [f"mount option {option} removed" for option in sorted(earlier - later)]
    return [*_changes(_flat(known), _flat(found)), *options]


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Fields of mappings within as `outer.inner`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        earlier, later = before.get(name), after.get(name)
        if earlier == later or (not earlier and not later) or _alike(name, earlier, later):
            continue
        yield f"{_named(name)} {_text(name, earlier)} -> {_text(name, later)}"


def _alike(name: str, earlier: Any, later: Any) -> bool:
    return name in _BYTES and bool(earlier) and bool(later) and abs(later - earlier) < _SMALL_SHARE * earlier


def _named(name: str) -> str:
    group, _, rest = name.partition(".")
    if group in ("versions", "settings"):
        return rest
    return f"limit {rest}" if group == "limits" else _NAMES.get(name, name)


def _text(name: str, value: Any) -> str:
    if value is None or value in ("", (), []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    return format_bytes(value) if name in _BYTES else str(value)
