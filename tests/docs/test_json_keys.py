"""The shipped schemas explain every key of what the commands print with --json, and none that they do not print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

import dxt_replay
from tests.places import ROOT
from tests.schemas import check, schema

BY_NAME_OF_SOMETHING = {
    "errors",
    "close_errors",
    "counted",
    "latency_by_operation_us",
    "metrics",
    "model",
    "changes",
    "keys",
    "kinds",
}
"""Objects whose keys are data."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Command -> the object that it prints about the bundled capture imagenet."""
    folder = tmp_path_factory.mktemp("keys")
    sources, capture, twin = dxt_replay.sample("imagenet"), folder / "i.capture", folder / "twin"
    merged = dxt_replay.merge(sources.log, capture, profiles=sources.profiles)
    twin.mkdir(exist_ok=True)
    dxt_replay.stage(capture, twin)
    run = dxt_replay.run(capture, twin, folder / "r.capture", pace="none")
    part = dxt_replay.part(capture, steps="0-2")
    transformed = dxt_replay.transform(capture, folder / "t.capture", compute_speed=2)
    regression = dxt_replay.regress(part, twin, twin, repeats=1, pace="none", cold=False, record=folder / "r.json")
    target = folder / "target"
    target.mkdir()
    (folder / "loads").mkdir()
    results = {
        "fit": dxt_replay.fit(capture, folder / "fitted.yaml"),
        "generate": dxt_replay.generate("default", 1, folder / "w.capture", overrides=["reader.x=1"]),
        "merge": merged,
        "run": run,
        "compare": dxt_replay.compare(capture, folder / "r.capture"),
        "regress": regression,
        "history": dxt_replay.history(folder / "r.json"),
        "transform": transformed,
        "anonymize": dxt_replay.anonymize(capture, folder / "a.capture"),
        "simulate": dxt_replay.simulate(capture, "theta_lustre", ranks=[2], runs=1),
        "capacity": dxt_replay.capacity(capture, folder / "loads", utilisation_pct=1, most=1, storage="null"),
        "verify": dxt_replay.verify(capture.path if isinstance(capture, dxt_replay.Capture) else capture, twin),
    }
    results["doctor"] = dxt_replay.doctor(target)
    calibrated = {"output": "", **dxt_replay.calibrate(target, minutes=1 / 30).as_json()}
    return {name: result.as_json() for name, result in results.items()} | {"calibrate": calibrated}


def explained(command: str) -> Mapping[str, str]:
    """Key -> meaning, as the schema has them."""
    document = schema(command.replace(" --", "-"))
    return {key: each["description"] for key, each in document["properties"].items() if key != "schema_version"}


@pytest.mark.parametrize(
    "command",
    [
        "calibrate",
        "fit",
        "generate",
        "merge",
        "run",
        "compare",
        "regress",
        "history",
        "transform",
        "anonymize",
        "simulate",
        "capacity",
        "verify",
        "doctor",
    ],
)
def test_the_keys_of_a_command_are_explained(printed: Mapping[str, Any], command: str) -> None:
    meanings = explained(command)
    assert list(meanings) == list(printed[command])
    for key, value in printed[command].items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and key not in BY_NAME_OF_SOMETHING:
            missing = {name for name in inner if f"`{name}`" not in meanings[key]}
            assert not missing, key
    check(command.replace(" --", "-"), printed[command])


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\S+?)\)", index)
    assert all((ROOT / "docs" / link).exists() for link in links)
    files = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    pages = {str(path) for path in files if path.parts[0] != "_build"}
    assert pages - {"README.md"} <= set(links)
