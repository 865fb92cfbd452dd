"""Changes the clients of object stores as the job imports them, and imports none itself."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .log import FOLDER_VARIABLE, begin
from .socket_hooks import of_sockets

_HOOKS = {
    "botocore.client": "botocore_hooks:of_client",
    "botocore.awsrequest": "botocore_hooks:of_connections",
    "botocore.httpsession": "botocore_hooks:of_session",
    "aiobotocore.client": "aiobotocore_hooks:of_client",
    "aiobotocore.httpsession": "aiobotocore_hooks:of_session",
    "obstore": "obstore_hooks:of_module",
    "s3torchconnector._s3client._s3client": "s3torch_hooks:of_client",
    "webdataset.gopen": "webdataset_hooks:of_gopen",
}
"""Module -> the function that changes it after it was imported."""


class _Finder:
    """Finds the modules of _HOOKS as the other finders do, and has them changed when they are loaded."""

    def __init__(self) -> None:
        self._busy: set = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """As `importlib.abc.MetaPathFinder`; None for all other modules."""
        if name not in _HOOKS or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            _change(name, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _change(name: str, module: Any) -> None:
    """Change a module. A client of an unknown version stays as it is: the job matters more than its recording."""
    file, _, function = _HOOKS[name].partition(":")
    begin()
    try:
        getattr(import_module("." + file, __package__), function)(module)
    except Exception as error:
        sys.stderr.write("dxt-replay: requests through %s are not recorded: %r\n" % (name, error))


def install() -> None:
    """Record the requests of this process and the bytes of its connections, if there is a folder for them."""
    if os.environ.get(FOLDER_VARIABLE):
        of_sockets(socket)
        sys.meta_path.insert(0, _Finder())
