"""Values of results as the texts of cells. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dxt_replay.traces.units import MIB, NS_PER_S, NS_PER_US, format_bytes, format_duration

_Value = TypeVar("_Value")


def or_dash(value: _Value | None, text: Callable[[_Value], str]) -> str:
    """The text of a value; `-` for None."""
    return "-" if value is None else text(value)


def seconds(value: float) -> str:
    """A duration in seconds: `0.0015` -> `1.50 ms`."""
    return format_duration(value * NS_PER_S)


def run_time(value: float | None) -> str:
    """Duration of a job, seconds; None if its log has no end, as after a signal."""
    return "not known" if value is None else seconds(value)


def microseconds(value: float) -> str:
    """A duration in microseconds: `1500` -> `1.50 ms`."""
    return format_duration(value * NS_PER_US)


def mib_s(value: float) -> str:
    """A bandwidth in MiB per second: `0.5` -> `512 KiB/s`."""
    return f"{format_bytes(value * MIB)}/s"


def percent(value: float) -> str:
    """A share in per cent: `12.3` -> `12.30 %`."""
    return f"{value:.2f} %"


def share(value: float | None) -> str:
    """A fraction in per cent: `0.123` -> `12.30 %`; `-` for None."""
    return or_dash(value, lambda part: percent(100 * part))


def recorded_training(recorded_s: float, wait_s: float | None, ratio: float | None) -> str:
    """The recorded time of a training and the ratio to it, for a sentence.

    `wait_s`: time for which the recording itself made the training wait; None if it is not known. `ratio`: without it.
    """
    text = f"recorded {seconds(recorded_s)}"
    if wait_s:
        text += f", of which it waited {seconds(wait_s)} while Darshan wrote logs"
    if ratio is None:
        return text
    return f"{text} (x {ratio:.2f} without that wait)" if wait_s else f"{text} (x {ratio:.2f})"
