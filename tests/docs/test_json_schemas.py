"""The outputs of the commands meet dxt_replay/schemas; tests of `record` and of replays' logs check theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.tables import TABLES
from tests.places import PYTHON_PATH, ROOT, recorded
from tests.schemas import FOLDER, NAMES, check, closed, schema


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Schema -> an object that its command prints about the bundled capture imagenet, or a Darshan log."""
    folder = tmp_path_factory.mktemp("schemas")
    capture, twin, log = folder / "i.capture", folder / "twin", recorded("darshan-logs/sample-dxt-simple.darshan")
    sources = dxt_replay.sample("imagenet")
    merged = dxt_replay.merge(sources.log, capture, profiles=sources.profiles)
    repeats = dxt_replay.run_repeatedly(
        dxt_replay.part(capture, steps="0-2"), _staged(capture, twin), folder / "r.capture", 2, pace="none"
    )
    first, second = (run.capture for run in repeats.runs)
    (folder / "logs").mkdir()
    (folder / "logs" / log.name).symlink_to(log)
    results = {
        "compare-floor": dxt_replay.noise_floor((first, second)),
        "export": dxt_replay.export(capture, "csv", folder / "o.csv"),
        "merge": merged,
        "merge-each": dxt_replay.merge_each(folder / "logs", folder / "merged"),
        "report": dxt_replay.report(capture, output=folder / "r.html"),
        "run": repeats.runs[0],
        "run-repeat": repeats,
        "stage": dxt_replay.stage(capture, folder / "other", dry_run=True),
        "summary": dxt_replay.tables(capture, tuple(TABLES), by="rank"),
        "summary-jobs": dxt_replay.summarise_each([capture, folder / "logs"]),
    }
    return {name: result.as_json() for name, result in results.items()}


def _staged(capture: Path, twin: Path) -> Path:
    twin.mkdir(exist_ok=True)
    dxt_replay.stage(capture, twin, sparse=True)
    return twin


@pytest.mark.parametrize(
    "name",
    [
        "compare-floor",
        "export",
        "merge",
        "merge-each",
        "report",
        "run",
        "run-repeat",
        "stage",
        "summary",
        "summary-jobs",
    ],
)
def test_an_output_meets_its_schema(printed: Mapping[str, Any], name: str) -> None:
    check(name, printed[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_a_schema(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = schema(name)
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["required"][0] == "schema_version"


def test_a_summary_without_io_meets_the_schema(tmp_path: Path) -> None:
    alone = dxt_replay.merge([], tmp_path / "c.capture", profiles=dxt_replay.sample("imagenet").profiles)
    summary = dxt_replay.tables(alone.capture, ()).as_json()
    assert summary["files"] is None
    check("summary", summary)


def test_a_missing_key_a_new_key_and_a_wrong_type_are_seen(printed: Mapping[str, Any]) -> None:
    right = printed["report"]
    for wrong in ({"report": right["report"]}, right | {"more": 1}, right | {"bytes": "1"}):
        with pytest.raises(AssertionError):
            check("report", wrong)
    assert "additionalProperties" not in schema("report")
    assert closed(schema("report"))["additionalProperties"] is False


@pytest.mark.slow
def test_the_schemas_are_those_of_the_types(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "docs/write_schemas.py", str(tmp_path)], cwd=ROOT, check=True, env={"PYTHONPATH": PYTHON_PATH}
    )
    for name in NAMES:
        assert (tmp_path / f"{name}.json").read_text() == (FOLDER / f"{name}.json").read_text(), "run `make schemas`"
    assert len(list(tmp_path.iterdir())) == len(NAMES)
