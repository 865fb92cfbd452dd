"""docs/archives.md explains every column of the catalogue, in its order."""

import re

from dxt_replay.replay.archive.catalogue import CATALOGUE_SCHEMA
from tests.places import ROOT


def test_every_column_is_explained() -> None:
    page = (ROOT / "docs" / "archives.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == CATALOGUE_SCHEMA.names
