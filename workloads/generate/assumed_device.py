"""The assumed device of a generated run: the duration of each operation, independent of its lane and of other
operations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, NS_PER_US

DEFAULT_DEVICE = "latency=100us,bandwidth=1GB/s"

_FORMS = "null, or latency=..,bandwidth=.. as in latency=100us,bandwidth=1GB/s"
_DURATIONS = {"ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_BYTES = {
    prefix + "B": factor for prefix, factor in (("", 1), ("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
} | {prefix + "iB": factor for prefix, factor in (("K", 2**10), ("M", 2**20), ("G", 2**30), ("T", 2**40))}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]+)(/s)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedDevice:
    """latency_ns: of every operation. bytes_per_s: of a read or write, in addition to the latency; infinite for no
    limit."""

    latency_ns: int = 100 * NS_PER_US
    bytes_per_s: float = 1e9

    def durations_ns(self, op: np.ndarray, length: np.ndarray) -> np.ndarray:
        """int64 (n,): duration of each operation."""
        data = (op == READ) | (op == WRITE)
        moving = np.rint(np.where(data, length, 0) * (NS_PER_S / self.bytes_per_s))
        found: np.ndarray = moving.astype(np.int64) + self.latency_ns
        return found

    def __str__(self) -> str:
        bandwidth = "none" if math.isinf(self.bytes_per_s) else f"{self.bytes_per_s:.12g}B/s"
        return f"latency={self.latency_ns}ns,bandwidth={bandwidth}"


NULL_DEVICE = AssumedDevice(latency_ns=0, bytes_per_s=math.inf)
"""A device on which every operation takes no time."""


def parse_device(text: str) -> AssumedDevice:
    """Parse `null` or `latency=100us,bandwidth=1GB/s`; a missing value has its default.

    Raises: UsageError for anything else.
    """
    if text.strip() == "null":
        return NULL_DEVICE
    values = {"latency": 100.0 * NS_PER_US, "bandwidth": 1e9}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name == "latency":
            values[name] = _quantity(value, _DURATIONS, rate=False, text=text)
        elif name == "bandwidth":
            values[name] = math.inf if value == "none" else _quantity(value, _BYTES, rate=True, text=text)
        else:
            raise UsageError(f"--device {text}: {name!r} is not a property of a device; give {_FORMS}")
    if values["bandwidth"] <= 0:
        raise UsageError(f"--device {text}: the bandwidth must be above 0; give {_FORMS}")
    return AssumedDevice(latency_ns=round(values["latency"]), bytes_per_s=values["bandwidth"])


def _quantity(value: str, units: Mapping[str, float], *, rate: bool, text: str) -> float:
    matched = _QUANTITY.fullmatch(value)
    if matched is None or matched[2] not in units or (matched[3] is not None) != rate:
        raise UsageError(f"--device {text}: {value!r} is not a {'bandwidth' if rate else 'duration'}; give {_FORMS}")
    return float(matched[1]) * units[matched[2]]
