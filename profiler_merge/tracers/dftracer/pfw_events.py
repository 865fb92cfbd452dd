"""The events of a .pfw file, one JSON object per line, in the forms of dlio_profiler (2023), DFTracer 1.0 and 2.x.

Numbers are texts in the oldest form, `ph` is a number in the newest, hashes are numbers or hexadecimal texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dxt_replay.profiler_merge.tracers.text_lines import Damage, text_lines
from dxt_replay.traces.errors import MissingDependencyError

try:
    import msgspec
except ImportError as error:  # pragma: no cover
    raise MissingDependencyError("msgspec", "reading a DFTracer trace", "pip install msgspec") from error

_Value = int | str | None


class Arguments(msgspec.Struct, gc=False):
    """The needed arguments. The file is `fhash`, else `fname`."""

    ret: _Value = None
    fd: _Value = None
    fhash: _Value = None
    fname: str | None = None
    count: _Value = None
    size: _Value = None
    offset: _Value = None
    whence: _Value = None
    flags: _Value = None
    mode: _Value = None
    length: _Value = None
    name: str | None = None
    value: _Value = None
    ppid: _Value = None
    cwd: _Value = None
    newpath: _Value = None
    hostname: str | None = None
    hhash: _Value = None


class PfwEvent(msgspec.Struct, gc=False):
    """An event. `ts`, `dur`: in the unit of the trace, by default microseconds."""

    name: str = ""
    cat: str = ""
    id: int | str = -1
    pid: int | str = 0
    tid: int | str = 0
    ts: int | str = 0
    dur: int | str = 0
    ph: int | str = ""
    args: Arguments | None = None


_DECODE = msgspec.json.Decoder(PfwEvent).decode


def pfw_events(path: Path, damage: Damage, wanted: Callable[[bytes], bool] | None = None) -> Iterator[PfwEvent]:
    """The events of a file in its order, which is that of completion; only of `wanted` lines if that is given.

    Damaged lines are counted in `damage`, and a file that is cut off is named there. Raises: LogError.
    """
    for line in text_lines(path, damage):
        text = line.strip(b" \t\r,")
        if text in (b"", b"[", b"]") or (wanted is not None and not wanted(text)):
            continue
        try:
            yield _DECODE(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            damage.lines += 1


def number(value: int | str | None, missing: int = -1) -> int:
    """The number that a value is or spells; `missing` if it is neither."""
    if isinstance(value, int):
        return value
    try:
        return missing if value is None else int(value)
    except ValueError:
        return missing
