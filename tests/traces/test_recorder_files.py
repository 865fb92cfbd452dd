"""Names of files that the recording wrote, and of files of the program that look a little like them."""

import pytest

from dxt_replay.traces.files import is_recorder_file


@pytest.mark.parametrize(
    ("path", "recorder"),
    [
        ("/run/dxt-anchor.vm.18352.bin", True),
        ("/logs/plugins/profile/2026_11_20/vm.xplane.pb", True),
        ("/logs/plugins/profile/2026_11_20/vm.trace.json.gz", True),
        ("/logs/events.out.tfevents.1.vm.profile-empty", True),
        ("/prof/vm_17815.1795309101260993922.pt.trace.json.gz", True),
        ("/logs/u_python_id1-1_1-1-1-1_1.darshan_partial", True),
        ("/data/train.tfrecord", False),
        ("/data/anchor.bin", False),
        ("/data/annotations.json", False),
        ("/run/model.ckpt-1.data-00000-of-00001", False),
    ],
)
def test_who_wrote_a_file(path, recorder):
    assert is_recorder_file(path) is recorder
