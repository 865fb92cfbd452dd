"""Seconds and nanoseconds, quantities as text: the only place that rounds or formats a number."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import overload

import numpy as np

from traces.errors import UsageError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MIB = 1 << 20

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@overload
def seconds_to_ns(seconds: float) -> int: ...
@overload
def seconds_to_ns(seconds: np.ndarray) -> np.ndarray: ...
def seconds_to_ns(seconds: float | np.ndarray) -> int | np.ndarray:
    """Nearest whole nanosecond; an int64 array for an array.

    Splits off the whole seconds first, so that an epoch in a double keeps all the precision that it had.
    """
    if isinstance(seconds, np.ndarray):
        whole = np.floor(seconds)
        return whole.astype(np.int64) * NS_PER_S + np.rint((seconds - whole) * NS_PER_S).astype(np.int64)
    floor = math.floor(seconds)
    return floor * NS_PER_S + round((seconds - floor) * NS_PER_S)


def ns_to_seconds(nanoseconds: int) -> float:
    """Seconds as a float: for the edges only, never for arithmetic."""
    return nanoseconds / NS_PER_S


def format_bytes(count: float) -> str:
    """`1536` -> `1.50 KiB`; binary units, three significant digits, exact below 1 KiB."""
    if abs(count) < 1024:
        return f"{count:.0f} B" if float(count).is_integer() else f"{count:.1f} B"
    power = min(int(math.log(abs(count), 1024)), len(_BINARY) - 1)
    scaled = count / 1024**power
    if abs(scaled) >= 1023.5 and power < len(_BINARY) - 1:
        power, scaled = power + 1, scaled / 1024
    digits = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
    return f"{scaled:.{digits}f} {_BINARY[power]}"


def format_duration(nanoseconds: float) -> str:
    """`1_500` -> `1.5 us`; the largest unit that keeps the number at 1 or above, up to seconds."""
    for limit, unit, name in (
        (NS_PER_US, 1, "ns"),
        (NS_PER_MS, NS_PER_US, "us"),
        (NS_PER_S, NS_PER_MS, "ms"),
    ):
        if abs(nanoseconds) < limit:
            return f"{nanoseconds / unit:.3g} {name}"
    return f"{nanoseconds / NS_PER_S:.3f} s"


def format_count(count: int) -> str:
    """`1234567` -> `1,234,567`."""
    return f"{count:,}"


def format_slowdown(ratio: float | None, same_pct: float = 0.0) -> str:
    """A ratio of times in words: `38 % slower`, `10.0 times slower`, `20 % faster`, `5.0 times faster`.

    A change of at most `same_pct` is `about the same`; None is `-`.
    """
    if ratio is None or ratio <= 0:
        return "-"
    limit = 1 + same_pct / 100
    if 1 / limit <= ratio <= limit:
        return "about the same"
    if ratio > 1:
        return f"{ratio:.1f} times slower" if ratio >= 2 else f"{100 * (ratio - 1):.0f} % slower"
    return f"{1 / ratio:.1f} times faster" if ratio <= 0.5 else f"{100 * (1 - ratio):.0f} % faster"


def format_counted(count: int, noun: str) -> str:
    """`1` and `"file"` -> `1 file`, `2` -> `2 files`."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


_DURATIONS = {"": NS_PER_S, "s": NS_PER_S, "ms": NS_PER_MS, "us": NS_PER_US, "ns": 1, "m": 60 * NS_PER_S}


def parse_duration_ns(text: str, option: str) -> int:
    """`10`, `10s`, `1.5m`, `500ms`, `20us` or `7ns` in ns; without a unit seconds. `option`: what an error names.

    Raises: UsageError for any other text.
    """
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(number) :]
    try:
        scaled = Decimal(number) * _DURATIONS[unit]
        return int(scaled.to_integral_value())
    except (ArithmeticError, KeyError, ValueError) as error:
        raise UsageError(f"{option} {text!r} is not a time: write seconds, or a unit as in 10s, 500ms, 1.5m") from error
