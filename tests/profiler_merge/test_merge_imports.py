"""What a merge of Darshan logs imports: not the readers of other tools' traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dxt_replay.traces.samples import sample
from tests.places import ROOT

PROGRAM = """
import sys
from pathlib import Path
from dxt_replay.profiler_merge.merge import merge
merge([Path(sys.argv[1])], [Path(path) for path in sys.argv[3:]], Path(sys.argv[2]))
print(*(name for name in sys.modules if name.startswith("dxt_replay.profiler_merge.tracers.")))
"""


def test_a_merge_of_logs_imports_no_reader_of_other_traces(tmp_path: Path) -> None:
    files = sample("imagenet")
    command = [sys.executable, "-c", PROGRAM, *map(str, (files.log, tmp_path / "c.capture", *files.profiles))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
