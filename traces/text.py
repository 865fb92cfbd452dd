"""Makes foreign text (paths, names in profiles) safe to show, and cuts lists to a readable length."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path


def printable(text: Path | bytes | str) -> str:
    r"""`text` for a person: line breaks, control characters, direction marks and bytes that are not UTF-8 become
    escapes.

    The result cannot command a terminal nor break a line of a message. HTML needs `html.escape` besides.
    """
    shown = os.fsdecode(text)
    return "".join(c if c.isprintable() else escaped(c) for c in shown)


def escaped(text: str) -> str:
    r"""All characters of `text` as Python escapes (`\x1b`, `\udc80`)."""
    return text.encode("unicode_escape", "surrogatepass").decode()


def program_of(command: str) -> str:
    """The script or module that a Python command runs, else the first word of the command."""
    words = command.split()
    if not words or not Path(words[0]).name.startswith("python"):
        return words[0] if words else ""
    for before, word in pairwise(words):
        if before in ("-m", "-c") or (not word.startswith("-") and before not in ("-W", "-X")):
            return word
    return words[0]


_SECRET = (
    r"[\w.-]*(?:keys?|token|auth|pwd|pass(?:words?|wd|phrase)?|secrets?|credentials?|signature|sig)(?:[-_.][\w.-]*)?"
)
_SECRETS = (
    (re.compile(rf"((?:\A|\s)--?{_SECRET}\s+)(?!-)\S+", re.IGNORECASE), r"\1***"),
    (re.compile(rf"(\b{_SECRET}[\"']?\s*[=:]\s*[\"']?)[^\s\"'&]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(\b(?:bearer|authorization: *\w+)\s+)[^\s\"']+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(://)(?:[^\s/@:]*:[^\s@]*|[^\s/]*)@"), r"\1***@"),
)
"""An option and the next word, NAME=VALUE or "NAME": VALUE, the word of an HTTP header, and the user in an address."""


def without_secrets(command: str) -> str:
    """A command line without the values behind names such as key, token, password and secret.

    without_secrets("train.py --api-key X DB_PASSWORD=Y s3://me:Z@host/a")
    # "train.py --api-key *** DB_PASSWORD=*** s3://***@host/a"
    """
    for pattern, kept in _SECRETS:
        command = pattern.sub(kept, command)
    return command


def listed(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`: the first `most` names and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


UNITS = {
    "_ns": "ns", "_us": "us", "_mib_s": "MiB/s", "_pct": "%", "_share": "0 to 1", "_bytes": "bytes", "_s": "s",
}  # fmt: skip
"""Ending of the name of a column or metric -> unit of its values."""


def unit_of(name: str) -> str:
    """The unit in the name of a column or metric; empty for counts and texts."""
    if name.startswith("bytes") or name.endswith("_bytes_read"):
        return "bytes"
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")
