"""Reads a description by name or file: YAML with limits, references inside it, and `KEY=VALUE` of the command line.

A description is DLIO's own file, the configuration that Hydra resolved, or a shipped workload.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Note, Workload, WorkloadSource, shown
from dxt_replay.workloads.files import data_set_files, record_length
from dxt_replay.workloads.values import REFERENCE, SECRET, SECTIONS, SPELLINGS, workload_from_values

SHIPPED = Path(__file__).with_name("shipped")

CONFIGURATIONS = (".hydra", "", "configs", "dlio_config")
"""Folders in which a run keeps the configuration that Hydra resolved: `.hydra` for Hydra itself, the last two for
MLPerf Storage v0.5 and v3.0."""

MAX_CHARACTERS, MAX_YAML_VALUES, MAX_VALUES = 1 << 20, 100_000, 10_000
"""Limits of a YAML text, and of the values after its references are replaced: references to references double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWorkload:
    """A workload, and notes on the parts of its description that it does not follow."""

    workload: Workload
    notes: tuple[Note, ...]


def read_workload(source: str | Path, overrides: Sequence[str] = ()) -> ReadWorkload:
    """The workload of a file, of a folder with `.hydra/config.yaml`, or of a shipped name; `overrides`: `KEY=VALUE`.

    Raises: UsageError for a source that does not exist or is not a description, and as `workload_from_values`.
    """
    path = _find(str(source))
    try:
        with path.open("rb") as file:
            text = file.read(4 * MAX_CHARACTERS + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from error
    values, kept = _description(read_yaml(text, str(path)), path), []
    for override in overrides:
        key, value = read_override(override)
        name = ".".join(key)
        right = SPELLINGS.get(name, name)
        for other in {right, *(each for each, of in SPELLINGS.items() if of == right)} - {name}:
            values = _without(values, other.split("."))  # the file may spell the key in another way
        values = overridden(values, key, value)
        # A capture keeps the overrides, but no access keys.
        secret = SECRET.split(".")
        kept.append(f"{override.partition('=')[0]}=..." if secret[: len(key)] == key[: len(secret)] else override)
    name = path.stem if path.parent == SHIPPED else str(source)
    origin = WorkloadSource(name=name, sha256=hashlib.sha256(text.encode()).hexdigest(), overrides=tuple(kept))
    workload, notes = workload_from_values(resolved(values), origin)
    return ReadWorkload(workload=workload, notes=notes)


def shipped_names() -> tuple[str, ...]:
    """The names of the workloads that come with this package, sorted."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


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


def _description(document: Any, path: Path) -> Mapping[Any, Any]:
    """The sections of a document; for Hydra's, those of `workload`."""
    if isinstance(document, Mapping) and "workload" in document:
        others = {str(key) for key in document} - {"workload", "hydra", "defaults"}
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


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of OmegaConf, which DLIO uses: YAML 1.1 (`off` is a boolean), but `1e-3` is a
    number and `2024-01-01` is text. Merge keys, whose expansion is not bounded, and duplicate keys are errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of `node`. Raises: yaml.YAMLError for a duplicate key."""
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            names = [self.construct_object(key, deep=True) for key, _value in node.value]
            twice = next(name for position, name in enumerate(names) if name in names[:position])
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} is given twice", node.start_mark)
        return mapping

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Raises: yaml.YAMLError for a merge key."""
        for key, _value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                why = "merge keys (<<) are not read: write the keys out"
                raise yaml.constructor.ConstructorError(None, None, why, key.start_mark)


_FLOAT_TAG = "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:timestamp", _FLOAT_TAG)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _FLOAT_TAG,
    re.compile(
        r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
        |\.[0-9_]+(?:[eE][-+][0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
        re.X,
    ),
    list("-+0123456789."),
)


def read_yaml(text: str, name: str) -> Any:
    """The value of the one YAML document in `text`; errors contain `name`. An alias shares its target's value.

    Raises: UsageError for text that is not YAML, is too large or too deep, or has merge or duplicate keys.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{name} has {len(text)} characters; a workload description has at most {MAX_CHARACTERS}")
    try:
        value = yaml.load(text, _Loader)
        if _written_out(value, {}) > MAX_YAML_VALUES:
            raise UsageError(f"{name} has more than {MAX_YAML_VALUES} values with its aliases written out")
        return value
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        why = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
        raise UsageError(f"{name} is not YAML that can be read: {place}{why}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{name} is not YAML that can be read: {str(error).splitlines()[0]}") from error


def _written_out(value: Any, known: dict[int, int]) -> int:
    """Number of values where each alias is a copy: a few lines of aliases of aliases stand for millions."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = 1 + sum(_written_out(each, known) for each in _members(value))
    return known[id(value)]


def _members(value: dict[Any, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


_REFERENCE = re.compile(r"(?<!\\)\$\{\s*(\.*)([\w-]+(?:\.[\w-]+|\[\w+\])*)\s*\}")


def resolved(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """`values` with each reference to one of its keys (`${dataset.num_files_train}`) replaced, as OmegaConf does.

    Names are absolute, or relative with leading dots (`${.key}` is a neighbour); `workload` may lead. A value that is
    one reference has the type of its target. References to the run (`${hydra:...}`), to a missing key and to itself
    stay. Raises: UsageError for references that expand to more than MAX_VALUES values.
    """
    left = MAX_VALUES

    def value_at(value: Any, path: tuple[str, ...], depth: int) -> Any:
        nonlocal left
        if isinstance(value, Mapping):
            return {key: value_at(inner, (*path, str(key)), depth) for key, inner in value.items()}
        if isinstance(value, list):
            return [value_at(inner, (*path, str(number)), depth) for number, inner in enumerate(value)]
        if not isinstance(value, str) or REFERENCE not in value or depth > 30:
            return value
        left -= 1 + len(value) // 100
        if left < 0:
            raise UsageError(f"the references (${{...}}) of the description come to more than {MAX_VALUES} values")
        whole = _REFERENCE.fullmatch(value)
        if whole:
            return referent(whole, path, depth)
        return _REFERENCE.sub(lambda match: str(referent(match, path, depth)), value)

    def referent(match: re.Match[str], path: tuple[str, ...], depth: int) -> Any:
        dots, name = match.groups()
        if len(dots) > len(path):
            return match[0]
        target = (*(path[: len(path) - len(dots)] if dots else ()), *re.findall(r"[\w-]+", name))
        if not dots and target[0] == "workload" and "workload" not in values:
            target = target[1:]
        found: Any = values
        for part in target:
            if isinstance(found, list):
                inside = part.isdecimal() and len(part) < 9 and int(part) < len(found)
                found = found[int(part)] if inside else None
            else:
                of = found if isinstance(found, Mapping) else {}
                found = next((inner for key, inner in of.items() if str(key) == part), None)
        return match[0] if found is None or path[: len(target)] == target else value_at(found, target, depth + 1)

    return {key: value_at(value, (str(key),), 0) for key, value in values.items()}


_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w\-]*(?:[./@][A-Za-z_][\w\-]*)*)(=|$)")
_INT = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)")
_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9](?:_?\d)*)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:inf|nan)", re.IGNORECASE)
_WORDS = {"": "", "true": True, "false": False, "null": None}


def read_override(text: str) -> tuple[list[str], Any]:
    """The parts of the key, without `workload`, and the value of `KEY=VALUE`, as Hydra reads them; None for `~KEY`,
    which puts the key back to its default, as null does.

    Values: numbers, `true`, `false`, `null`, text with or without quotes, and `[a,b]` and `{mean:1,stdev:0.1}` as in
    YAML. A word that is a boolean in YAML is text here: `off` is "off".
    Raises: UsageError for what is not KEY=VALUE, for sweeps, functions and references.
    """
    match = _KEY.match(text) if len(text) <= 10_000 else None
    short = repr(text if len(text) <= 80 else f"{text[:77]}...")
    if match is None or (not match[3] and match[1] != "~"):
        raise UsageError(
            f"{short} is not KEY=VALUE: write SECTION.KEY=VALUE, such as reader.batch_size=4 or "
            "'train.computation_time={mean:0.5,stdev:0.1}'"
        )
    path = [part for part in re.split(r"[./]", match[2]) if part]
    path = path[1:] if path[0] == "workload" and len(path) > 1 else path
    if match[1] == "~":
        return path, None
    value = text[match.end() :].strip()
    if value[:1] in ("[", "{", "'", '"'):
        # YAML wants a space behind the colon of a map, Hydra does not.
        return path, read_yaml(re.sub(r"(?<=[\w'\"]):(?=\S)", ": ", value) if value[0] == "{" else value, short)
    if "," in value or re.search(r"[()]|\$\{", value):
        raise UsageError(
            f"{short}: several values (a sweep), functions and references are not read: give one value; a list is "
            "[a,b], and text with such characters stands in quotes"
        )
    if value.lower() in _WORDS:
        return path, _WORDS[value.lower()]
    if _INT.fullmatch(value) and len(value) <= 300:
        return path, int(value)
    return path, float(value) if _FLOAT.fullmatch(value) else value


def override_text(key: str, value: Any) -> str:
    """`KEY=VALUE` that parses to `value`: null, a boolean, a number, text, or lists and maps of them."""
    return f"{key}={json.dumps(value, separators=(',', ':'))}"


def overridden(values: Mapping[Any, Any], path: list[str], value: Any) -> dict[Any, Any]:
    """`values` with one key changed; a map is merged into a map, as Hydra does."""
    key, *rest = path
    old = values.get(key)
    if rest:
        value = overridden(old if isinstance(old, Mapping) else {}, rest, value)
    elif isinstance(old, Mapping) and isinstance(value, Mapping):
        value = {**old, **value}
    return {**values, key: value}


def _without(values: Mapping[Any, Any], path: list[str]) -> dict[Any, Any]:
    key, *rest = path
    if rest and isinstance(inner := values.get(key), Mapping):
        return {**values, key: _without(inner, rest)}
    return {name: value for name, value in values.items() if rest or name != key}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedWorkload:
    """A shipped workload. Without training (checkpoints alone), `format` is empty and the later fields are 0 or None.

    compute_s: mean computation time of a step. needs_bytes_per_s: batch size * record length / compute_s, the rate at
    which a rank that never waits reads; None without computation.
    """

    name: str
    title: str
    format: str
    files: int
    bytes: int
    batch_size: int
    compute_s: float
    needs_bytes_per_s: float | None


def shipped_workloads() -> tuple[ListedWorkload, ...]:
    """All shipped workloads, by name."""
    return tuple(map(_listed, shipped_names()))


def _listed(name: str) -> ListedWorkload:
    workload = read_workload(name).workload
    with (SHIPPED / f"{name}.yaml").open(encoding="utf-8") as file:
        title = file.readline().lstrip("# ").rstrip("\n.")
    trains, batch_size = workload.workflow.train, workload.reader.batch_size
    train, evaluation = data_set_files(workload)
    sets = [train, *([evaluation] if workload.workflow.evaluation else [])] if trains else []
    compute_s = workload.train.computation_time.mean_s if trains else 0.0
    return ListedWorkload(
        name=name,
        title=title,
        format=workload.dataset.format if trains else "",
        files=sum(map(len, sets)),
        bytes=sum(each.total_bytes for each in sets),
        batch_size=batch_size if trains else 0,
        compute_s=compute_s,
        needs_bytes_per_s=batch_size * record_length(workload.dataset) / compute_s if compute_s else None,
    )
