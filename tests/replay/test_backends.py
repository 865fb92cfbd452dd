"""The back ends that need nothing installed, by the contract and by what is theirs alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replay.backends.base import Backend
from replay.backends.null import NullBackend
from replay.backends.posix import PosixBackend
from tests.contract import BackendContract


class TestPosix(BackendContract):
    def make_backend(self) -> Backend:
        return PosixBackend()

    def test_never_writes_through_a_link(self, backend: Backend, path: bytes, tmp_path: Path) -> None:
        link = os.fsencode(tmp_path / "link")
        os.symlink(path, link)
        with pytest.raises(OSError, match=f"Errno {errno.ELOOP}"):
            backend.open(link, writable=True, create=True)
        backend.close(backend.open(link, writable=False, create=False))

    def test_descriptors_are_not_inherited(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=False, create=False)
        assert not os.get_inheritable(handle)
        backend.close(handle)


class TestNull(BackendContract):
    stores_data = False

    def make_backend(self) -> Backend:
        return NullBackend()

    def test_touches_no_file(self, backend: Backend, tmp_path: Path) -> None:
        handle = backend.open(os.fsencode(tmp_path / "new"), writable=True, create=True)
        assert backend.write(handle, 0, 1 << 40, memoryview(b"")) == 1 << 40
        assert backend.size(handle) == -1
        assert not list(tmp_path.iterdir())
