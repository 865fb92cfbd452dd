"""`dxt-replay regress` with one side whose calls take longer: the verdict, and what each output says of it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml
from pathlib import Path

from tests.capture_builder import Op, build_capture, write
from tests.replay.faults.injection import Commands, Rule


def test_a_slower_candidate_is_a_regression_and_a_faster_one_is_not(commands: Commands, tmp_path: Path) -> None:
    ops = [write(0, start_ns=2 * i, offset=4096 * i, length=4096) for i in range(10)]
    ops += [Op("sync", 0, start_ns=2 * i + 1) for i in range(10)]
    source = build_capture(tmp_path, ops=ops, files=["/a"], name="written").path
    junit, table, page = tmp_path / "junit.xml", tmp_path / "table.md", tmp_path / "page.html"
    outputs = ["--report", junit, "--report", table, "--report", page, "--force"]
    given = ["--pace", "none", "--repeats", "6", "--details", *outputs]
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    quick.mkdir()
    slow.mkdir()
    # 200 ms a run: far above what a busy machine adds to ten small writes.
    slower = Rule(call="sync", action="stall", number=20, path="/slow/")

    found = commands.run(["regress", source, "--baseline", quick, "--candidate", slow, *given], slower)
    assert found.status == 1, found.err
    assert re.match(r"The candidate is .* slower \(", found.out)
    assert found.out.split(":")[0] in table.read_text(encoding="utf-8")
    assert found.out.split(":")[0] in page.read_text(encoding="utf-8")
    for text in ("elapsed time *", "regression", "seed 1", "page cache"):
        assert text in found.out
    assert xml.parse(junit).getroot().attrib["failures"] == "1"

    found = commands.run(["regress", source, "--baseline", slow, "--candidate", quick, *given, "--json"], slower)
    assert found.status == 0, found.err
    document = json.loads(found.out)
    assert (document["schema_version"], document["verdict"]) == (1, "improvement")
    assert document["metrics"]["elapsed_s"]["ratio"] < 0.5
    assert len(document["order"]) == len(document["runs"]) - 2 == 12
    assert xml.parse(junit).getroot().attrib["failures"] == "0"
