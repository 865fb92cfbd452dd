"""The page of a bundled capture."""

import pytest

from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests.replay.show.page.pages import page_of


@pytest.fixture(scope="package")
def drawn(tmp_path_factory):
    """Overview and page of a bundled capture."""
    recorded = sample("cosmictagger")
    path = tmp_path_factory.mktemp("report") / "cosmictagger.capture"
    merge([recorded.log], list(recorded.profiles), path)
    return page_of(open_capture(path))
