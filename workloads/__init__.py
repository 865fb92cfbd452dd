"""Workload descriptions (DLIO's YAML, or a shipped name): read here, made into captures, and fitted to captures.

`dxt_replay.workloads` is also the public function that lists the shipped ones. Python binds a package to its name when
the first module of it is imported, so this package does what the function does when it is called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dxt_replay.workloads.source import ListedWorkload


class _CalledAsFunction(ModuleType):
    def __call__(self) -> tuple[ListedWorkload, ...]:
        """The shipped workloads: see `dxt_replay.replay.commands.making.workloads`."""
        from dxt_replay.workloads.source import shipped_workloads

        return shipped_workloads()


sys.modules[__name__].__class__ = _CalledAsFunction
