"""Writes dxt_replay/schemas/*.json: `python docs/write_schemas.py`. mypy tells the types of what `as_json` makes.

A key that is shown to people has the name and the description of its figure (`replay/show`). The description of every
other key is written by hand in these files, and kept.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from mypy import build, nodes, types
from mypy.main import process_options

from dxt_replay.profiler_merge.analysis.tables import COLUMNS, TABLES
from dxt_replay.replay.commands.session import OUTPUT_SCHEMA_VERSION
from dxt_replay.replay.show import compare, make, predict, run, summary
from dxt_replay.replay.show.section import Figure, described

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "dxt_replay" / "schemas"
Schema = dict[str, Any]

RESULTS = {
    "anonymize": "replay.anonymize.Anonymized",
    "calibrate": "replay.calibration.calibration.Calibration",
    "calibrate-results": "replay.calibration.published.Published",
    "capacity": "replay.capacity.Capacity",
    "compare": "replay.compare.comparison.Comparison",
    "compare-floor": "replay.compare.noise.NoiseFloor",
    "doctor": "replay.doctor.Diagnosis",
    "export": "profiler_merge.export.exported.Exported",
    "fit": "replay.commands.sharing.FittedWorkload",
    "generate": "replay.commands.making.GeneratedCapture",
    "history": "replay.regress.history.History",
    "merge": "profiler_merge.merge.MergeResult",
    "merge-each": "replay.jobs.MergedJobs",
    "record": "replay.commands.making.Recorded",
    "regress": "replay.regress.comparison.Regression",
    "report": "replay.commands.looking.Report",
    "run": "replay.run.result.RunResult",
    "run-repeat": "replay.run.result.Repeats",
    "simulate": "replay.commands.predicting.Simulated",
    "stage": "replay.commands.replaying.Staged",
    "summary": "profiler_merge.analysis.named_tables.Views",
    "summary-jobs": "replay.jobs.JobSummaries",
    "transform": "replay.transform.rewrite.Transformed",
    "verify": "replay.verify.Verified",
}
"""Name of the schema -> class of the result, below dxt_replay."""

COMMANDS = {
    "calibrate-results": "calibrate RESULTS",
    "compare-floor": "compare --floor",
    "merge-each": "merge --each",
    "run-repeat": "run --repeat",
    "summary-jobs": "summary JOBS",
}
"""Name of the schema -> command, where they differ."""

FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "summary": summary.FIGURES,
    "run": run.FIGURES,
    "compare": compare.FIGURES,
    **predict.FIGURES,
    **make.FIGURES,
}
"""Name of the schema -> what its object shows to people."""

WITHOUT_IO = re.compile(r"(operations|bytes|io_time_s)/.*|files|in_flight_s|other_io_s|loop/(io_|storage_).*")
"""Keys of `summary` that are null if no I/O was recorded (`without_io`)."""

PLAIN = {"plain", "asdict", "_without_io"}
"""Functions that make the plain value of their argument, or one of the same keys."""


class Reader:
    """Schemas of the values of expressions, by the types that mypy infers."""

    def __init__(self, built: build.BuildResult) -> None:
        self._types = built.types
        self._files = built.files
        self._inside: set[str] = set()

    def of_result(self, path: str) -> Schema:
        """Of what `as_json` of a class returns."""
        module, _, name = f"dxt_replay.{path}".rpartition(".")
        info = self._files[module].names[name].node
        assert isinstance(info, nodes.TypeInfo)
        return self._of_method(info, "as_json")

    def _of_method(self, info: nodes.TypeInfo, name: str) -> Schema:
        method = info.get_method(name)
        assert isinstance(method, nodes.FuncDef), (info.fullname, name)
        return self._of_function(method)

    def _of_function(self, function: nodes.FuncDef) -> Schema:
        """The union of what it returns; a local variable is what was assigned to it, with its later keys."""
        if function.fullname in self._inside:
            return {}
        self._inside.add(function.fullname)
        known: dict[str, Schema] = {}
        returned: list[Schema] = []
        self._follow(function.body.body, known, returned, always=True)
        self._inside.remove(function.fullname)
        return union(returned)

    def _follow(
        self, body: Iterable[nodes.Statement], known: dict[str, Schema], returned: list[Schema], *, always: bool
    ) -> None:
        for line in body:
            if isinstance(line, nodes.AssignmentStmt) and isinstance(target := line.lvalues[0], nodes.NameExpr):
                known[target.name] = self.of(line.rvalue, known)
            elif isinstance(line, nodes.AssignmentStmt) and isinstance(target := line.lvalues[0], nodes.IndexExpr):
                place = self._place(target, known)
                if place is not None:
                    add(place[0], place[1], self.of(line.rvalue, known), always=always)
            elif isinstance(line, nodes.DelStmt):
                listed = line.expr.items if isinstance(line.expr, nodes.TupleExpr) else [line.expr]
                for place in (self._place(each, known) for each in listed if isinstance(each, nodes.IndexExpr)):
                    if place is not None:
                        place[0]["required"].remove(place[1])
                        if always:
                            del place[0]["properties"][place[1]]
            elif isinstance(line, nodes.IfStmt):
                for block in [*line.body, *([line.else_body] if line.else_body else [])]:
                    self._follow(block.body, known, returned, always=False)
            elif isinstance(line, nodes.ReturnStmt) and line.expr is not None:
                returned.append(self.of(line.expr, known))

    def _place(self, target: nodes.IndexExpr, known: Mapping[str, Schema]) -> tuple[Schema, str] | None:
        """The object and the key that `target` stands for."""
        if not isinstance(target.index, nodes.StrExpr):
            return None
        if isinstance(target.base, nodes.NameExpr):
            return known[target.base.name], target.index.value
        above = self._place(target.base, known) if isinstance(target.base, nodes.IndexExpr) else None
        return None if above is None else (above[0]["properties"][above[1]], target.index.value)

    def of(self, value: nodes.Expression, known: Mapping[str, Schema]) -> Schema:
        """Of the value of an expression."""
        if isinstance(value, nodes.NameExpr) and value.name in known:
            return known[value.name]
        if isinstance(value, nodes.DictExpr):
            return self._of_dict(value, known)
        if isinstance(value, nodes.ConditionalExpr):
            return union([self.of(value.if_expr, known), self.of(value.else_expr, known)])
        if isinstance(value, nodes.ListComprehension):
            return {"type": "array", "items": self.of(value.generator.left_expr, {})}
        if isinstance(value, nodes.DictionaryComprehension):
            return {"type": "object", "additionalProperties": self.of(value.value, {})}
        if isinstance(value, nodes.ListExpr) and value.items:
            return {"type": "array", "items": union([self.of(each, known) for each in value.items])}
        if isinstance(value, nodes.MemberExpr) and value.name == "value":
            kind = types.get_proper_type(self._types.get(value.expr))
            if isinstance(kind, types.Instance) and kind.type.is_enum:
                return of_instance(kind)
        if isinstance(value, nodes.CallExpr):
            found = self._of_call(value, known)
            if found is not None:
                return found
        return of_type(self._types.get(value, types.AnyType(types.TypeOfAny.special_form)))

    def _of_dict(self, value: nodes.DictExpr, known: Mapping[str, Schema]) -> Schema:
        made: Schema = {"type": "object", "properties": {}, "required": []}
        for key, each in value.items:
            inner = self.of(each, known)
            if key is None:
                if "properties" not in inner:
                    made["additionalProperties"] = inner.get("additionalProperties", True)
                for name, below in inner.get("properties", {}).items():
                    add(made, name, below, always=name in inner["required"])
            elif isinstance(key, nodes.StrExpr):
                add(made, key.value, inner, always=True)
            else:
                made["additionalProperties"] = inner
        return made

    def _of_call(self, call: nodes.CallExpr, known: Mapping[str, Schema]) -> Schema | None:
        callee, arguments = call.callee, call.args
        name = callee.name if isinstance(callee, (nodes.NameExpr, nodes.MemberExpr)) else ""
        if name in {*PLAIN, "dict", "list"} and arguments:
            found = self.of(arguments[0], known)
            return found if name in {*PLAIN, "dict"} or found.get("type") == "array" else None
        if name == "sum" and isinstance(arguments[0], nodes.GeneratorExpr):
            return self.of(arguments[0].left_expr, known)
        if name == "replace" and arguments:
            return of_type(self._types[arguments[0]])
        if isinstance(callee, nodes.MemberExpr) and callee.expr in self._types:
            receivers = [
                types.get_proper_type(each) for each in types.flatten_nested_unions([self._types[callee.expr]])
            ]
            methods = [
                (each.type, each.type.get_method(name)) for each in receivers if isinstance(each, types.Instance)
            ]
            if methods and all(isinstance(method, nodes.FuncDef) and vague(method) for _, method in methods):
                return union([self._of_function(method) for _, method in methods])  # type: ignore[arg-type]
        node = callee.node if isinstance(callee, nodes.RefExpr) else None
        return self._of_function(node) if isinstance(node, nodes.FuncDef) and vague(node) else None


def vague(function: nodes.FuncDef) -> bool:
    """Whether a function of the project says less of its result than its body does."""
    return function.fullname.startswith("dxt_replay.") and "Any" in str(getattr(function.type, "ret_type", ""))


def add(made: Schema, name: str, value: Schema, *, always: bool) -> None:
    """Give an object a key. `always`: whether each such object has it."""
    made["properties"][name] = value
    if always and name not in made["required"]:
        made["required"].append(name)


def of_type(given: types.Type) -> Schema:
    """Of the plain value (`traces.plain.plain`) of a type; {} where anything is allowed."""
    found = types.get_proper_type(given)
    if isinstance(found, types.UnionType):
        return union([of_type(each) for each in found.items])
    if isinstance(found, types.NoneType):
        return {"type": "null"}
    if isinstance(found, types.LiteralType):
        return {"const": found.value}
    if isinstance(found, types.TupleType):
        if found.partial_fallback.type.fullname != "builtins.tuple":
            return of_type(found.partial_fallback)
        return {"type": "array", "items": union([of_type(each) for each in found.items])}
    return of_instance(found) if isinstance(found, types.Instance) else {}


SCALARS = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}
LISTS = {"builtins.list", "builtins.tuple", "typing.Sequence", "typing.Collection", "typing.Iterable"}
TABLES_OF_KEYS = {"builtins.dict", "typing.Mapping", "collections.Counter"}


def of_instance(found: types.Instance) -> Schema:
    info = found.type
    if info.fullname.removeprefix("builtins.") in SCALARS:
        return {"type": SCALARS[info.name]}
    if info.is_enum:
        members = [member(info, name) for name in info.enum_members]
        return {"type": "string"} if None in members else {"enum": members}
    if info.fullname in LISTS:
        return {"type": "array", "items": of_type(found.args[0])}
    if info.fullname in TABLES_OF_KEYS:
        return {"type": "object", "additionalProperties": of_type(found.args[-1])}
    if info.fullname.startswith("pathlib.") or info.fullname == "datetime.datetime":
        return {"type": "string"}
    if info.fullname == "numpy.ndarray":
        return {"type": "array"}
    if "dataclass" in info.metadata:
        fields = [each["name"] for each in info.metadata["dataclass"]["attributes"]]
        inner = {name: of_type(info.get(name).type) for name in fields}  # type: ignore[union-attr, arg-type]
        return {"type": "object", "properties": inner, "required": list(inner)}
    return {}


def member(info: nodes.TypeInfo, name: str) -> Any:
    """The value of an enum's member; None if it is no literal."""
    kind = types.get_proper_type(info.names[name].type)
    value = kind.last_known_value if isinstance(kind, types.Instance) else None
    return None if value is None else value.value


def union(schemas: Iterable[Schema]) -> Schema:
    """A schema of what any of them allows."""
    found: list[Schema] = []
    for each in schemas:
        found += [one for one in each.get("anyOf", [each]) if one not in found]
    if not found or {} in found:
        return {}
    scalars = [one["type"] for one in found if set(one) == {"type"}]
    flat = [kind for each in scalars for kind in ([each] if isinstance(each, str) else each)]
    others = [one for one in found if set(one) != {"type"}]
    if flat:
        kinds = sorted(set(flat), key=["integer", "number", "string", "boolean", "array", "object", "null"].index)
        if {"integer", "number"} <= set(kinds):
            kinds.remove("integer")
        others.append({"type": kinds[0] if len(kinds) == 1 else kinds})
    return others[0] if len(others) == 1 else {"anyOf": others}


def of_arrow(kind: pa.DataType) -> Schema:
    """Of a cell of a table, which may be empty."""
    if pa.types.is_list(kind):
        return union([{"type": "array", "items": of_arrow(kind.value_type)}, {"type": "null"}])
    name = "boolean" if pa.types.is_boolean(kind) else "integer" if pa.types.is_integer(kind) else "number"
    known = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return {"type": [name if known else "string", "null"]}


def rows(schema: pa.Schema) -> Schema:
    inner = {field.name: {"description": COLUMNS[field.name].meaning, **of_arrow(field.type)} for field in schema}
    return {"type": "array", "items": {"type": "object", "properties": inner, "required": list(inner)}}


def nullable_without_io(schema: Schema, above: str = "") -> Schema:
    """A summary in which the keys of `WITHOUT_IO` may be null."""
    if "anyOf" in schema:
        return union([nullable_without_io(each, above) for each in schema["anyOf"]])
    inner = {name: nullable_without_io(each, f"{above}{name}/") for name, each in schema.get("properties", {}).items()}
    for name in inner:
        if WITHOUT_IO.fullmatch(f"{above}{name}"):
            inner[name] = union([inner[name], {"type": "null"}])
    return {**schema, "properties": inner} if inner else schema


def titled(schema: Schema, shown: Iterable[Figure]) -> Schema:
    """A schema, in which the keys of figures have their titles and descriptions."""
    for key, label, meaning in described(shown):
        found = schema_of(schema, key)
        if found is not None and "title" not in found:
            found["title"] = label
            found["description"] = meaning or (found.get("description") if "." not in key else "") or label
    return schema


def schema_of(schema: Schema, key: str) -> Schema | None:
    """The schema of a key with dots; None if there is none."""
    found: Schema | None = schema
    for name in key.split("."):
        choices = [] if found is None else found.get("anyOf", [found])
        found = next((each["properties"][name] for each in choices if name in each.get("properties", {})), None)
    return found


def document(name: str, schema: Schema) -> Schema:
    """The whole schema of a command, with the descriptions that the shipped file has: these are written by hand."""
    path = FOLDER / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"properties": {}}
    described = {key: each["description"] for key, each in before["properties"].items() if "description" in each}
    keys = {key: {**({"description": described[key]} if key in described else {}), **each}
            for key, each in schema["properties"].items()}  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"dxt-replay {COMMANDS.get(name, name)} --json",
        **({"description": before["description"]} if "description" in before else {}),
        **schema,
        "properties": {"schema_version": {"const": OUTPUT_SCHEMA_VERSION}, **keys},
        "required": ["schema_version", *schema["required"]],
    }


def schemas() -> dict[str, Schema]:
    """Name -> schema of the object that `--json` prints."""
    sources, options = process_options(["--config-file", str(ROOT / "setup.cfg")])
    options.export_types, options.incremental, options.cache_dir, options.preserve_asts = True, False, os.devnull, True
    reader = Reader(build.build([each for each in sources if not str(each.module).startswith("benchmarks")], options))
    made = {name: reader.of_result(path) for name, path in RESULTS.items()}
    made["summary"] = nullable_without_io(made["summary"])
    tables = {name: rows(table.schema) for name, table in TABLES.items()}
    tables["findings"] = {"type": "array", "items": reader.of_result("profiler_merge.analysis.finding.Finding")}
    for name, column in tables["findings"]["items"]["properties"].items():
        tables["findings"]["items"]["properties"][name] = {"description": COLUMNS[name].meaning, **column}
    made["summary"]["properties"]["tables"] = {"type": "object", "properties": tables}
    for name in ("calibrate", "calibrate-results"):
        made[name]["properties"] = {"output": {"type": "string"}, **made[name]["properties"]}
    return {name: titled(document(name, schema), FIGURES.get(name, ())) for name, schema in made.items()}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (folder / f"{name}.json").write_text(text(schema), encoding="utf-8")


def text(schema: Schema) -> str:
    """The document, a line for each key of the object."""
    keys = ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in schema["properties"].items())
    whole = json.dumps({**schema, "properties": "KEYS"}, indent=1)
    return (
        re.sub(r'\[\s+("[^]]*")\s+\]', lambda found: f"[{' '.join(found[1].split())}]", whole).replace(
            '"KEYS"', f"{{\n{keys}\n }}"
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
