"""Remarks on parts of a description that a capture does not follow: no key of a YAML is dropped silently."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any, Literal

NoteKind = Literal["unknown", "without effect", "read as", "not expressed", "not I/O"]
"""unknown: not a key of DLIO.
without effect: DLIO ignores it.
read as: DLIO takes it for something else than its text says.
not expressed: a capture cannot hold it.
not I/O: it changes no request."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 2


def shown(value: Any) -> str:
    """A value for a message, cut to a readable length, on one line."""
    return _SHORT.repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One remark about `key`, whose `value` is written as `shown`; `why` completes a sentence."""

    key: str
    value: str
    kind: NoteKind
    why: str

    @property
    def line(self) -> str:
        """The note on one line, such as `reader.file_access 'shared' is without effect: ...`."""
        if self.kind == "read as":
            return f"{self.key} {self.value}: {self.why}"
        return f"{self.key} {self.value} is {self.kind}: {self.why}"
