"""What the commands print with --json meets dxt_replay/schemas, which explain every key. `record` has its own test."""

import re
import subprocess
import sys

import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.replay.show.notebook import sections_of
from dxt_replay.replay.show.section import in_brief
from dxt_replay.replay.show.terminal import print_sections
from dxt_replay.traces.plain import Result
from tests.places import PYTHON_PATH, ROOT, recorded
from tests.schemas import FOLDER, NAMES, check, closed, schema

NOT_LISTED = re.compile(
    r".+\.(errors|close_errors|counted|latency_by_operation_us|metrics|model|changes|keys|kinds)"
    r"|compare-floor\.measures|run-repeat\.runs|summary\..+"
)
"""Keys of objects whose keys are data or those of another schema."""
ONCE = sorted(set(NAMES) - {"calibrate-results", "record"})


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Schema -> the result whose object its command prints, about the bundled capture imagenet, or a Darshan log."""
    folder = tmp_path_factory.mktemp("json")
    capture, twin, target, log = (folder / name for name in ("i.capture", "twin", "target", "logs/a.darshan"))
    for each in (twin, target, folder / "logs", folder / "loads"):
        each.mkdir()
    log.symlink_to(recorded("darshan-logs/sample-dxt-simple.darshan"))
    sources = dxt_replay.sample("imagenet")
    merged = dxt_replay.merge(sources.log, capture, profiles=sources.profiles)
    dxt_replay.stage(capture, twin, sparse=True)
    part = dxt_replay.part(capture, steps="0-2")
    repeats = dxt_replay.run_repeatedly(part, twin, folder / "p.capture", 2, pace="none")
    first, second = (run.capture for run in repeats.runs)
    return {
        "merge": merged,
        "run": dxt_replay.run(capture, twin, folder / "r.capture", pace="none"),
        "run-repeat": repeats,
        "compare": dxt_replay.compare(capture, folder / "r.capture"),
        "compare-floor": dxt_replay.noise_floor((first, second)),
        "regress": dxt_replay.regress(part, twin, twin, repeats=1, pace="none", cold=False, record=folder / "r.json"),
        "history": dxt_replay.history(folder / "r.json"),
        "fit": dxt_replay.fit(capture, folder / "fitted.yaml"),
        "generate": dxt_replay.generate("default", 1, folder / "w.capture", overrides=["reader.x=1"]),
        "transform": dxt_replay.transform(capture, folder / "t.capture", compute_speed=2),
        "anonymize": dxt_replay.anonymize(capture, folder / "a.capture"),
        "simulate": dxt_replay.simulate(capture, "theta_lustre", ranks=[2], runs=1),
        "capacity": dxt_replay.capacity(part, folder / "loads", utilisation_pct=1, most=1, storage="null"),
        "verify": dxt_replay.verify(capture, twin, sizes_only=True),
        "doctor": dxt_replay.doctor(target),
        "export": dxt_replay.export(capture, "csv", folder / "o.csv"),
        "merge-each": dxt_replay.merge_each(folder / "logs", folder / "merged"),
        "report": dxt_replay.report(capture, output=folder / "r.html"),
        "stage": dxt_replay.stage(capture, folder / "other", dry_run=True),
        "summary": dxt_replay.tables(capture, tuple(TABLES), by="rank"),
        "summary-jobs": dxt_replay.summarise_each([capture, folder / "logs"]),
        "calibrate": dxt_replay.calibrate(target, minutes=1 / 55),
    }


MOST_LINES = {"run": 6, "compare": 12, "doctor": 15, "calibrate": 15, "regress": 15, "capacity": 12}


@pytest.mark.parametrize("name", ONCE)
def test_a_result_is_brief_shows_itself_in_a_notebook_and_meets_its_schema(results, name, monkeypatch, capsys):
    """The schema explains each key."""
    result = results[name]
    if isinstance(result, Result):
        assert repr(result).startswith(f"<{type(result).__name__}: ")
        assert len(repr(result)) <= 300
        assert "<table>" in result._repr_html_()
    if name in MOST_LINES:
        monkeypatch.setenv("COLUMNS", "80")
        print_sections(in_brief(sections_of(result)))
        assert 0 < len(capsys.readouterr().out.splitlines()) <= MOST_LINES[name]
    printed = {**({"output": ""} if name == "calibrate" else {}), **result.as_json()}
    check(name, printed)
    about = schema(name).get("properties", {})
    for key, value in printed.items():
        inner = value[0] if isinstance(value, list) and value else value
        meaning = about.get(key, {}).get("description", "")
        if isinstance(inner, dict) and "`" in meaning and not NOT_LISTED.fullmatch(f"{name}.{key}"):
            assert not {each for each in inner if f"`{each}`" not in meaning}, key


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_a_schema(name):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema(name))
    assert schema(name)["required"][0] == "schema_version"


def test_a_summary_without_io_meets_the_schema(tmp_path):
    alone = dxt_replay.merge([], tmp_path / "c.capture", profiles=dxt_replay.sample("imagenet").profiles)
    summary = dxt_replay.tables(alone.capture, ()).as_json()
    assert summary["files"] is None
    check("summary", summary)


def test_a_missing_key_a_new_key_and_a_wrong_type_are_seen(results):
    right = results["report"].as_json()
    for wrong in ({"report": right["report"]}, right | {"more": 1}, right | {"bytes": "1"}):
        with pytest.raises(AssertionError):
            check("report", wrong)
    assert "additionalProperties" not in schema("report")
    assert closed(schema("report"))["additionalProperties"] is False


@pytest.mark.slow
def test_the_schemas_are_those_of_the_types(tmp_path):
    program = [sys.executable, "docs/write_schemas.py", str(tmp_path)]
    subprocess.run(program, cwd=ROOT, check=True, env={"PYTHONPATH": PYTHON_PATH})
    assert len(list(tmp_path.iterdir())) == len(NAMES)
    for name in NAMES:
        assert (tmp_path / f"{name}.json").read_text() == (FOLDER / f"{name}.json").read_text(), "run `make schemas`"
