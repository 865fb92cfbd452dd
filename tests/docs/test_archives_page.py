"""docs/archives.md explains every column of the table of jobs, in its order."""

import dataclasses
import re

from dxt_replay.replay.jobs import JobSummary
from tests.places import ROOT


def test_every_column_is_explained() -> None:
    page = (ROOT / "docs" / "archives.md").read_text()
    columns = [each.name for each in dataclasses.fields(JobSummary)]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == columns
