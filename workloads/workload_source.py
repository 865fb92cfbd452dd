"""Finds a description by name or file: DLIO's own file, the configuration that Hydra resolved, or a shipped
workload."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import READINGS, Reading, Workload, WorkloadSource
from dxt_replay.workloads.interpolation import resolved
from dxt_replay.workloads.keys import SECRET
from dxt_replay.workloads.note import Note, shown
from dxt_replay.workloads.override_text import Override, read_override
from dxt_replay.workloads.workload_values import SECTIONS, workload_from_values
from dxt_replay.workloads.yaml_text import MAX_CHARACTERS, read_yaml

SHIPPED = Path(__file__).with_name("shipped")

CONFIGURATIONS = (".hydra", "", "configs", "dlio_config")
"""Files in which a run keeps the configuration that Hydra resolved: `.hydra` for Hydra itself, the last two for MLPerf
Storage v0.5 and v3.0."""

_HYDRA_KEYS = {"hydra", "defaults"}
"""Other top-level keys of a configuration that Hydra resolved; its `workload` is the description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWorkload:
    """A workload, and notes on the parts of its description that it does not follow."""

    workload: Workload
    notes: tuple[Note, ...]


def shipped_names() -> tuple[str, ...]:
    """The names of the workloads that come with this package, sorted."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def read_workload(source: str | Path, overrides: Sequence[str] = (), reading: Reading | None = None) -> ReadWorkload:
    """The workload of a file, of a folder with `.hydra/config.yaml`, or of a shipped name; `overrides`: `KEY=VALUE`.

    reading: None for the reading that the description requests (its key `reading`, which DLIO ignores), else
    `documented`.
    Raises: UsageError for a source that does not exist or is not a description, and as `workload_from_values`.
    """
    path = _find(str(source))
    text = _text(path)
    values = _description(read_yaml(text, str(path)), path)
    changes = [read_override(text) for text in overrides]
    for override in changes:
        values = _overridden(values, override)
    values = resolved(values)
    asked = values.pop("reading", None) or "documented"
    own = next((each for each in READINGS if each == asked), None)
    if own is None:
        raise UsageError(f"reading: {shown(asked)} is not one of {', '.join(READINGS)}")
    name = path.stem if path.parent == SHIPPED else str(source)
    digest = hashlib.sha256(text.encode()).hexdigest()
    workload, notes = workload_from_values(
        values,
        reading=reading or own,
        source=WorkloadSource(name=name, sha256=digest, overrides=_kept(overrides, changes)),
    )
    return ReadWorkload(workload=workload, notes=notes)


def _kept(texts: Sequence[str], changes: Sequence[Override]) -> tuple[str, ...]:
    """The overrides without access keys, as a capture may keep them."""
    secret = tuple(SECRET.split("."))
    hidden = [secret[: len(change.path)] == change.path[: len(secret)] for change in changes]
    return tuple(f"{text.partition('=')[0]}=..." if hide else text for text, hide in zip(texts, hidden, strict=True))


def _find(source: str) -> Path:
    """The file that `source` names. A file takes precedence over a shipped name."""
    path = Path(source)
    inside = [path / folder / "config.yaml" for folder in CONFIGURATIONS]
    found = next((each for each in [path, *inside] if each.is_file()), None)
    if found is not None:
        return found
    names = shipped_names()
    if source in names:
        return SHIPPED / f"{source}.yaml"
    if path.is_dir():
        raise UsageError(f"{source} is a folder without .hydra/config.yaml: give DLIO's YAML file")
    near = get_close_matches(source, names, n=3, cutoff=0.5)
    meant = f"did you mean {', '.join(near)}?" if near else "dxt-replay generate --list prints the shipped ones"
    raise UsageError(f"{source} is neither a file nor a shipped workload: {meant}")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(4 * MAX_CHARACTERS + 1)
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from error


def _description(document: Any, path: Path) -> Mapping[Any, Any]:
    """The sections of a document; for Hydra's, those of `workload`."""
    if isinstance(document, Mapping) and "workload" in document:
        others = {str(key) for key in document} - {"workload"} - _HYDRA_KEYS
        inner = document["workload"]
        if isinstance(inner, str):
            raise UsageError(f"{path} only names the workload {shown(inner)}: give that workload's file, or its name")
        if others:
            raise UsageError(f"{path} has {min(others)} beside workload: one of both is the description")
        document = inner
    if not isinstance(document, Mapping) or (document and not SECTIONS & {str(key) for key in document}):
        raise UsageError(
            f"{path} is not a workload description: it should have sections such as dataset, reader and train"
        )
    return document


def _overridden(values: Mapping[Any, Any], override: Override) -> dict[Any, Any]:
    """`values` with one key changed; a map is merged into a map, as Hydra does."""
    changed = dict(values)
    key, *rest = override.path
    old = changed.get(key)
    if rest:
        inner = old if isinstance(old, Mapping) else {}
        changed[key] = _overridden(inner, Override(path=tuple(rest), value=override.value, deleted=override.deleted))
    elif override.deleted:
        changed.pop(key, None)
    elif isinstance(old, Mapping) and isinstance(override.value, Mapping):
        changed[key] = {**old, **override.value}
    else:
        changed[key] = override.value
    return changed
