"""A capture held against its own digests and counts, and against the files that it was made from.

Damage is looked for in the bytes first: a table whose digest differs is named and not opened.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dxt_replay.replay.verifying.capture_contents import content_parts
from dxt_replay.replay.verifying.checked import CheckedPart, in_threads
from dxt_replay.traces.errors import CaptureError, UnreadableError, exhausted, unreadable
from dxt_replay.traces.schema import CaptureInfo, Source
from dxt_replay.traces.store.checks import is_ours, read_info
from dxt_replay.traces.store.digests import DOCUMENT, file_digest, own_digests
from dxt_replay.traces.store.index import part_digests
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import foreign_name
from dxt_replay.traces.text import printable

SHA256 = "SHA-256"
_ABSENT = "not there"
_OLD = f"{DOCUMENT} has no digests, as an earlier release wrote it: checked by counts alone"
_DIGESTED_VERSION = 4
"""Schema version since which every capture is written with digests."""


def capture_parts(path: Path, sources: Sequence[Path]) -> list[CheckedPart]:
    """The rows of a capture; `sources`: files that it may have been made from, besides those that lie beside it."""
    document = CheckedPart(part=DOCUMENT, unit="file")
    info = _check_document(path, document)
    digests = CheckedPart(part="digests", unit="file")
    if info is None:
        digests.note = f"not checked: {DOCUMENT} cannot be used"
        return [document, digests]
    expected = {**info.digests, **part_digests(path)} if info.digests else {}
    if expected:
        _check_digests(path, expected, digests)
    elif not is_ours(path, info):
        digests.note = f"{DOCUMENT} has no digests, as another program wrote it: checked by its rows alone"
    elif info.schema_version >= _DIGESTED_VERSION:
        digests.differs(DOCUMENT, "digests", f"{SHA256} of every file", "none: they were removed, or never written")
    else:
        digests.note = _OLD
    _check_names(path, expected, digests)
    return [document, digests, *_contents(path, digests), _check_sources(path, info, sources)]


def _check_document(path: Path, part: CheckedPart) -> CaptureInfo | None:
    """The contents of `capture.json`; None if it cannot be used."""
    try:
        if not stat.S_ISREG(os.stat(path / DOCUMENT).st_mode):  # a FIFO would be waited for
            raise OSError("not a regular file")
        text = (path / DOCUMENT).read_bytes()
        part.checked, part.bytes = 1, len(text)
        own = own_digests(text)
        if own is not None and own[0] != own[1]:
            part.differs(DOCUMENT, SHA256, *own)
        info = read_info(path)
        if own is None and info.digests:
            part.differs(DOCUMENT, SHA256, "its own digest among the digests", "none")
        for name in sorted(_unknown_keys(json.loads(text))):
            part.differs(DOCUMENT, "key", "a key that this release knows", printable(name))
        return info
    except FileNotFoundError:
        part.differs(DOCUMENT, "file", "a file", _ABSENT)
    except OSError as error:
        if exhausted(error) is not None:
            raise unreadable(error, path / DOCUMENT) from error
        part.differs(DOCUMENT, "file", "a file that can be read", error.strerror or error)
    except UnreadableError:
        raise
    except CaptureError as error:
        part.differs(DOCUMENT, "contents", "what docs/capture-format.md describes", printable(str(error)))
    return None


def _unknown_keys(document: dict[str, Any]) -> set[str]:
    return document.keys() - {column.name for column in fields(CaptureInfo)}


def _check_digests(path: Path, expected: Mapping[str, str], part: CheckedPart) -> None:
    names = sorted(name for name in expected if name != DOCUMENT)
    for name, (found, size) in zip(names, in_threads(lambda name: _digest(path / name), names), strict=True):
        part.checked += 1
        part.bytes += size
        if found != expected[name]:
            part.differs(name, SHA256, expected[name], found)


def _digest(file: Path) -> tuple[str, int]:
    """(digest, bytes) of a file; why there is no digest in its place. Raises: UnreadableError."""
    try:
        if file.is_symlink() or not file.is_file():
            return (_ABSENT if not file.is_symlink() else "a symbolic link"), 0
        return file_digest(file), file.stat().st_size
    except OSError as error:
        if exhausted(error) is not None:
            raise unreadable(error, file) from error
        return error.strerror or str(error), 0


def _check_names(path: Path, expected: Mapping[str, str], part: CheckedPart) -> None:
    """Files that do not belong to the capture, or came to it after it was written."""
    try:
        there = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()}
        foreign = foreign_name(path)
    except OSError as error:
        raise unreadable(error, path) from error
    added = there - expected.keys() - {DOCUMENT} if expected else set()
    for name in sorted(added | ({foreign} if foreign is not None else set())):
        part.differs(printable(name), "file", _ABSENT, "there, and not part of the capture")


def _contents(path: Path, digests: CheckedPart) -> list[CheckedPart]:
    if any(each.what == SHA256 for each in digests.differences):
        note = "not read, since a digest differs"
        return [CheckedPart(part="tables", unit="row", note=note)]
    tables = CheckedPart(part="tables", unit="row")
    try:
        capture = open_capture(path)
    except UnreadableError:
        raise
    except CaptureError as error:
        tables.differs(".", "contents", "tables that can be read", printable(str(error)))
        return [tables]
    return content_parts(capture)


def _check_sources(path: Path, info: CaptureInfo, given: Sequence[Path]) -> CheckedPart:
    """The files that the capture was made from, those given and those that lie beside it under their names."""
    part = CheckedPart(part="sources", unit="file")
    if info.made_by.get("anonymized"):
        part.note = "the capture is anonymized: its sources cannot be known from it"
        return part
    wanted = {source.sha256: source for source in info.sources}
    found: set[str] = set()
    for file in given:
        _check_source(file, _content_of(file), wanted, found, part)
    for source in wanted.values():
        beside = path.absolute().parent / source.name
        if source.sha256 not in found and Path(source.name).name == source.name and beside.exists():
            content = _content_of(beside)
            if content.is_file():
                _check_source(beside, content, wanted, found, part)
    missing = [source.name for source in wanted.values() if source.sha256 not in found]
    if missing and not part.different:
        part.note = (
            f"{len(missing)} of {len(wanted)} not at hand, such as {printable(missing[0])}: give it with --source"
        )
    return part


def _content_of(source: Path) -> Path:
    """The file whose digest stands for a source: of a capture, its `capture.json`."""
    return source / DOCUMENT if source.is_dir() else source


def _check_source(file: Path, content: Path, wanted: dict[str, Source], found: set[str], part: CheckedPart) -> None:
    digest, size = _digest(content)
    part.checked += 1
    part.bytes += size
    if digest in wanted:
        found.add(digest)
        return
    named = [source.sha256 for source in wanted.values() if source.name == file.name]
    expected = named[0] if named else "the digest of one of the capture's sources"
    part.differs(printable(file), SHA256, expected, digest)
