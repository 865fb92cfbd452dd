"""Reads a description by name or file: YAML with limits, references inside it, and `KEY=VALUE` of the command line.

A description is DLIO's own file, the configuration that Hydra resolved, or a shipped workload.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import READINGS, Note, Reading, Workload, WorkloadSource, shown
from dxt_replay.workloads.files import data_set_files, record_length
from dxt_replay.workloads.values import REFERENCE, SECRET, SECTIONS, workload_from_values

SHIPPED = Path(__file__).with_name("shipped")

CONFIGURATIONS = (".hydra", "", "configs", "dlio_config")
"""Folders in which a run keeps the configuration that Hydra resolved: `.hydra` for Hydra itself, the last two for
MLPerf Storage v0.5 and v3.0."""

MAX_CHARACTERS, MAX_DEPTH, MAX_EVENTS, MAX_VALUES = 1 << 20, 20, 100_000, 10_000
"""Limits of a YAML text, and of the values after its references are replaced: references to references double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWorkload:
    """A workload, and notes on the parts of its description that it does not follow."""

    workload: Workload
    notes: tuple[Note, ...]


def read_workload(source: str | Path, overrides: Sequence[str] = (), reading: Reading | None = None) -> ReadWorkload:
    """The workload of a file, of a folder with `.hydra/config.yaml`, or of a shipped name; `overrides`: `KEY=VALUE`.

    reading: None for the reading that the description requests (its key `reading`, which DLIO ignores), else
    `documented`.
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
        values = _overridden(values, key, value)
        # A capture keeps the overrides, but no access keys.
        secret = SECRET.split(".")
        kept.append(f"{override.partition('=')[0]}=..." if secret[: len(key)] == key[: len(secret)] else override)
    values = resolved(values)
    asked = values.pop("reading", None) or "documented"
    own = next((each for each in READINGS if each == asked), None)
    if own is None:
        raise UsageError(f"reading: {shown(asked)} is not one of {', '.join(READINGS)}")
    name = path.stem if path.parent == SHIPPED else str(source)
    origin = WorkloadSource(name=name, sha256=hashlib.sha256(text.encode()).hexdigest(), overrides=tuple(kept))
    workload, notes = workload_from_values(values, reading=reading or own, source=origin)
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

    Raises: UsageError for text that is not YAML, is too large or too deep, or has tags, merge or duplicate keys.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{name} has {len(text)} characters; a workload description has at most {MAX_CHARACTERS}")
    depth = 0
    try:
        for count, event in enumerate(yaml.parse(text, yaml.SafeLoader)):
            depth += isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent)
            depth -= isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent)
            if depth > MAX_DEPTH or count > MAX_EVENTS:
                limit = f"{MAX_DEPTH} levels" if depth > MAX_DEPTH else f"{MAX_EVENTS} values"
                raise UsageError(f"{name} is not a workload description: it has more than {limit}")
            if getattr(event, "tag", None) is not None:
                raise UsageError(f"{name}: tags ({event.tag}) are not read: give the value without one")
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        why = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
        raise UsageError(f"{name} is not YAML that can be read: {place}{why}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{name} is not YAML that can be read: {str(error).splitlines()[0]}") from error


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


class _Deleted:
    """The value of `~KEY`, which puts a key back to its default."""


DELETED = _Deleted()

_KEY = re.compile(r"^(\+\+|\+|~)?([A-Za-z_][\w\-]*(?:[./@][A-Za-z_][\w\-]*)*)(=|$)")
_QUOTED = re.compile(r"'((?:\\.|[^'\\])*)'|\"((?:\\.|[^\"\\])*)\"", re.DOTALL)
_ESCAPE = r"\\[\\()\[\]{}:=, \t]"
_WORDS = {
    ends: re.compile(rf"(?:{_ESCAPE}|[^{re.escape(ends)}])*", re.DOTALL) for ends in (",", ",[]{}", ",[]{}:")
}  # fmt: skip
"""Characters that end an unquoted word at the top, in a list or map, and as the key of a map -> the word."""

_WHOLE, _DIGITS = r"(?:0|[1-9](?:_?[0-9])*)", r"[0-9](?:_?[0-9])*"
_INT = re.compile(rf"[+-]?{_WHOLE}")
_FLOAT = re.compile(
    rf"[+-]?(?:(?:{_WHOLE}\.(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?[0-9]+)?|{_WHOLE}[eE][+-]?[0-9]+|inf|nan)", re.I
)


def read_override(text: str) -> tuple[list[str], Any]:
    """The parts of the key, without `workload`, and the value of `KEY=VALUE`, in the part of Hydra's grammar that users
    of DLIO need; DELETED for `~KEY`.

    Values: numbers, `true`, `false`, `null`, text with or without quotes, `[a,b]` and `{mean:1,stdev:0.1}`. A word that
    is a boolean in YAML is text here: `off` is "off". Raises: UsageError for what is not KEY=VALUE, for sweeps,
    functions and references.
    """
    match = _KEY.match(text) if len(text) <= 10_000 else None
    if match is None or (not match[3] and match[1] != "~"):
        raise UsageError(
            f"{_short(text)} is not KEY=VALUE: write SECTION.KEY=VALUE, such as reader.batch_size=4 or "
            "'train.computation_time={mean:0.5,stdev:0.1}'"
        )
    path = [part for part in re.split(r"[./]", match[2]) if part]
    path = path[1:] if path[0] == "workload" and len(path) > 1 else path
    return path, DELETED if match[1] == "~" else _Value(text, match.end()).whole()


class _Value:
    """A recursive-descent reader of one value, which begins at `at` of `text`."""

    def __init__(self, text: str, at: int) -> None:
        self._text, self._at = text, at

    def whole(self) -> Any:
        """The value, which must reach to the end of the text."""
        self._next_is("")
        if self._at == len(self._text):
            return ""
        value = self._value(0)
        if self._next_is(","):
            raise self._error("ends a value, and several values (a sweep) are not read: give one; a list is [a,b]")
        if self._at < len(self._text):
            raise self._error("is not understood: quote the value")
        return value

    def _error(self, why: str) -> UsageError:
        rest = _short(self._text[self._at :])
        return UsageError(f"{_short(self._text)}: from column {self._at + 1} on, {rest} {why}")

    def _next_is(self, mark: str) -> bool:
        """Whether `mark` follows behind spaces; both are passed."""
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) * found
        return found

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self._error(f"has more than {MAX_DEPTH} levels")
        if self._next_is("["):
            values: list[Any] = []
            while not self._next_is("]"):
                if values and not self._next_is(","):
                    raise self._error("should be a comma or ]")
                values.append(self._value(depth + 1))
            return values
        if self._next_is("{"):
            named: dict[Any, Any] = {}
            while not self._next_is("}"):
                if named and not self._next_is(","):
                    raise self._error("should be a comma or }")
                key = self._word(",[]{}:")
                if key in named or not self._next_is(":"):
                    raise self._error(f"is not a map: the key {key!r} needs one value, as in {{mean:1,stdev:0.1}}")
                named[key] = self._value(depth + 1)
            return named
        return self._word(",[]{}" if depth else ",")

    def _word(self, ends: str) -> Any:
        """Quoted text, or a word up to one of the characters `ends`: a boolean or null, a number, or text."""
        self._next_is("")
        if self._text[self._at : self._at + 1] in ("'", '"'):
            quoted = _QUOTED.match(self._text, self._at)
            if quoted is None:
                raise self._error("has no closing quote")
            self._at = quoted.end()
            return re.sub(rf"\\([\\{quoted[0][0]}])", r"\1", quoted[1] if quoted[1] is not None else quoted[2])
        found = _WORDS[ends].match(self._text, self._at)
        assert found is not None  # a word may be empty
        word = re.sub(r"(?<!\\)[ \t]+$", "", found[0])
        if re.search(r"(?<!\\)[()]|\$\{", word):
            raise self._error("would be a function or an interpolation, which are not read: give the value")
        if not word:
            raise self._error("should be a value")
        self._at = found.end()
        text = re.sub(rf"({_ESCAPE})", lambda each: each[0][1], word)
        if text != word or word.lower() not in ("true", "false", "null"):
            whole = text == word and len(word) <= 300 and _INT.fullmatch(word)
            return int(word) if whole else float(word) if text == word and _FLOAT.fullmatch(word) else text
        return {"true": True, "false": False, "null": None}[word.lower()]


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def override_text(key: str, value: Any) -> str:
    """`KEY=VALUE` that parses to `value`: null, a boolean, a number, text, or lists and maps of them."""

    def text_of(value: Any) -> str:
        if isinstance(value, Mapping):
            return f"{{{','.join(f'{text_of(name)}:{text_of(each)}' for name, each in value.items())}}}"
        if isinstance(value, list | tuple):
            return f"[{','.join(map(text_of, value))}]"
        if value is None or isinstance(value, bool):
            return "null" if value is None else str(value).lower()
        if isinstance(value, int | float):
            return repr(value)
        escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"

    return f"{key}={text_of(value)}"


def _overridden(values: Mapping[Any, Any], path: list[str], value: Any) -> dict[Any, Any]:
    """`values` with one key changed; a map is merged into a map, as Hydra does."""
    changed = dict(values)
    key, *rest = path
    old = changed.get(key)
    if rest:
        changed[key] = _overridden(old if isinstance(old, Mapping) else {}, rest, value)
    elif value is DELETED:
        changed.pop(key, None)
    else:
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        changed[key] = {**old, **value} if both else value  # type: ignore[dict-item]
    return changed


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
