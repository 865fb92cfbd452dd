"""SHA-256 digests of a capture's files, kept in `capture.json`; `index.parquet` has those of the parts.

`capture.json` also holds its own digest, computed with those 64 digits set to zeros. The digests detect damage, not
forgery.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DOCUMENT = "capture.json"

_NO_DIGEST = "0" * 64
_OWN_DIGEST = re.compile(rb'"capture\.json": "([0-9a-f]{64})"')
"""Pattern of the digest of `capture.json`: the first match, since no free text comes before the digests."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises: OSError when it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digests_beside(paths: Iterable[Path]) -> Callable[[Path], str]:
    """Start a thread that hashes these files; hashing needs no interpreter lock.

    The returned function waits for the digest of a path. Raises: OSError where a file cannot be read.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="digests")
    found = {path: thread.submit(file_digest, path) for path in paths}
    thread.shutdown(wait=False)
    return lambda path: found[path].result()


def gathered_digests(directory: Path) -> dict[str, str]:
    """Name -> digest of every Parquet file in `directory`; `capture.json` has none yet."""
    return {DOCUMENT: _NO_DIGEST, **{path.name: file_digest(path) for path in sorted(directory.glob("*.parquet"))}}


def sealed(text: str) -> str:
    """The text of `capture.json` with its own digest in the place that `gathered_digests` left for it."""
    own = hashlib.sha256(text.encode()).hexdigest()
    return text.replace(f'"{DOCUMENT}": "{_NO_DIGEST}"', f'"{DOCUMENT}": "{own}"', 1)


def own_digests(text: bytes) -> tuple[str, str] | None:
    """The digest stated in `capture.json` and the one computed from its bytes; None if it states none."""
    match = _OWN_DIGEST.search(text)
    if match is None:
        return None
    without = text[: match.start(1)] + _NO_DIGEST.encode() + text[match.end(1) :]
    return match[1].decode(), hashlib.sha256(without).hexdigest()
