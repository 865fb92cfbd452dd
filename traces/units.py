"""Seconds and nanoseconds, and quantities as text: the only place that rounds or formats a number."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import overload

import numpy as np

from dxt_replay.traces.errors import UsageError

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

    Splits off the whole seconds first, so that an epoch in a double keeps its full precision.
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
    """`1536` -> `1.50 KiB`; binary units, three significant digits, whole numbers below 1 KiB exact."""
    if abs(count) < 1024:
        return f"{count:.0f} B" if float(count).is_integer() else f"{_three_digits(count)} B"
    power = min(int(math.log(abs(count), 1024)), len(_BINARY) - 1)
    scaled = count / 1024**power
    if abs(scaled) >= 1023.5 and power < len(_BINARY) - 1:
        power, scaled = power + 1, scaled / 1024
    return f"{_three_digits(scaled)} {_BINARY[power]}"


def format_duration(nanoseconds: float) -> str:
    """`1_500` -> `1.50 us`; the largest unit that keeps the number at 1 or above, up to seconds."""
    if abs(nanoseconds) < 999.5:
        return f"{nanoseconds:.3g} ns"
    for unit, name in ((NS_PER_US, "us"), (NS_PER_MS, "ms")):
        if abs(nanoseconds / unit) < 999.5:
            return f"{_three_digits(nanoseconds / unit)} {name}"
    return f"{nanoseconds / NS_PER_S:.3f} s"


def _three_digits(value: float) -> str:
    """`2.00`, `25.2`, `906`: three digits, so that the rows of a column are equally wide."""
    size = abs(value)
    return f"{value:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


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
        return f"{_times(ratio)} slower" if ratio >= 2 else f"{100 * (ratio - 1):.0f} % slower"
    return f"{_times(1 / ratio)} faster" if ratio <= 0.5 else f"{100 * (1 - ratio):.0f} % faster"


def format_rate_change(ratio: float | None, same_pct: float = 0.0) -> str:
    """A ratio of bandwidths in words: `41 % higher`, `6.4 times as high`, `29 % lower`; else as format_slowdown."""
    if ratio is None or ratio <= 0:
        return "-"
    limit = 1 + same_pct / 100
    if 1 / limit <= ratio <= limit:
        return "about the same"
    if ratio < 1:
        return f"{100 * (1 - ratio):.0f} % lower"
    return f"{_times(ratio)} as high" if ratio >= 2 else f"{100 * (ratio - 1):.0f} % higher"


def format_signed(value: float, digits: int) -> str:
    """`+0.12`, `-0.12`, and `0.00` without a sign for a value that rounds to zero."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 100 else f"{ratio:,.0f} times"


def format_counted(count: int, noun: str) -> str:
    """`1` and `"file"` -> `1 file`, `2` -> `2 files`."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


_DURATIONS = {
    "": NS_PER_S, "s": NS_PER_S, "ms": NS_PER_MS, "us": NS_PER_US, "ns": 1, "m": 60 * NS_PER_S, "h": 3600 * NS_PER_S
}  # fmt: skip


def parse_duration_ns(text: str, option: str) -> int:
    """`10`, `10s`, `1.5m`, `2h`, `500ms`, `20us` or `7ns` in ns; without a unit seconds. `option`: what an error names.

    Raises: UsageError for any other text.
    """
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(number) :]
    try:
        scaled = Decimal(number) * _DURATIONS[unit]
        return int(scaled.to_integral_value())
    except (ArithmeticError, KeyError, ValueError) as error:
        raise UsageError(f"{option} {text!r} is not a time: write seconds, or a unit as in 10s, 500ms, 1.5m") from error


_BYTES = {"": 1, "B": 1, **{f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}} | {
    f"{letter}B": 1000**n for n, letter in enumerate("KMGT", 1)
}


def parse_bytes(text: str, option: str) -> int:
    """`65536`, `64KiB`, `1MiB` or `1MB` in bytes, at least 1. `option`: what an error names.

    Raises: UsageError for any other text.
    """
    number = text.strip().rstrip("KMGTiB")
    unit = text.strip()[len(number) :]
    try:
        scaled = int(Decimal(number) * _BYTES[unit])
    except (ArithmeticError, KeyError, ValueError):
        scaled = 0
    if not 1 <= scaled <= 1 << 50:
        raise UsageError(f"{option} {text!r} is not a size: write bytes, or a unit as in 64KiB or 1MiB")
    return scaled
