"""docs/reference.py, which makes parts of the site, as a module."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.places import ROOT


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


REFERENCE = _loaded()
