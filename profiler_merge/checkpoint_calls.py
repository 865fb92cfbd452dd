"""Marks the calls of torch.distributed.checkpoint in the profile: saves, saves in the background, waits and loads.

Needs the standard library alone, like `recording`, which does without this file where it is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

ANNOTATIONS = {"save": "checkpoint", "async_save": "checkpoint_async", "load": "restore"}
"""Functions of torch.distributed.checkpoint, and what their calls are called in the profile."""

WAIT = "checkpoint_wait"
"""The annotation of a wait for a save that goes on in the background."""

Annotate = Callable[[Callable[..., Any], str], Callable[..., Any]]
"""Returns a function whose calls have an annotation of this name."""


def watch(annotate: Annotate) -> list[tuple[ModuleType, str, Any]]:
    """Replace the functions in each module that has them under their names, if the program has imported them.

    Returns the arguments of `setattr` that undo it.
    """
    checkpoint = sys.modules.get("torch.distributed.checkpoint")
    replaced: list[tuple[ModuleType, str, Any]] = []
    for name, annotation in ANNOTATIONS.items():
        function = vars(checkpoint).get(name) if checkpoint is not None else None
        if function is None:
            continue
        marked = annotate(function, annotation)
        if name == "async_save":
            marked = _with_marked_waits(marked, annotate)
        for module in list(sys.modules.values()):  # `from torch.distributed.checkpoint import save` is common
            # `vars` asks no module to import what it imports late.
            if isinstance(module, ModuleType) and vars(module).get(name) is function:
                replaced.append((module, name, function))
                setattr(module, name, marked)
    return replaced


def _with_marked_waits(save: Callable[..., Any], annotate: Annotate) -> Callable[..., Any]:
    """`async_save`, with an annotation around each wait for the future that it returns."""

    @wraps(save)
    def saving(*arguments: Any, **named: Any) -> Any:
        started = save(*arguments, **named)
        done = getattr(started, "upload_completion", started)  # newer releases may return two futures
        for wait in ("result", "exception"):
            if hasattr(done, wait):
                setattr(done, wait, annotate(getattr(done, wait), WAIT))
        return started

    return saving
