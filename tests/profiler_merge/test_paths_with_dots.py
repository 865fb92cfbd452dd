"""Names that differ in `..` are of one file: it is staged once, and an output that is read back is no input."""

import pytest

from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.files import record_id
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log


def merged(tmp_path, paths, known_ids=True):
    """A job whose n-th operation writes, or else reads, 100 bytes of the n-th of (path, is_write)."""
    ids = [record_id(path) if known_ids else 1 + place for place, (path, _) in enumerate(paths)]
    records = []
    for place, (own, (_, is_write)) in enumerate(zip(ids, paths, strict=True)):
        segments = [(0, 100, 1.0 + place, 1.5 + place)]
        records.append(DxtRecord(record_id=own, **{"writes" if is_write else "reads": segments}))
    names = {own: path for own, (path, _) in zip(ids, paths, strict=True)}
    log = write_dxt_log(tmp_path / "x.darshan", records, names=names, job=JobSpec(nprocs=1))
    merge([log], [], tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    rows = [row for batch in capture.operations() for row in batch.to_pylist() if row["op"] in ("read", "write")]
    return capture, [(capture.paths()[row["file_id"]], row["op"]) for row in rows]


@pytest.mark.parametrize("known_ids", [True, False])
def test_both_names_are_one_file(tmp_path, known_ids):
    paths = [(b"/d/big", False), (b"/d/wd/../big", False), (b"/d/wd/./x/../../out", True), (b"/d/out", False)]
    capture, rows = merged(tmp_path, paths, known_ids)
    assert rows == [("/d/big", "read"), ("/d/big", "read"), ("/d/out", "write"), ("/d/out", "read")]
    assert sorted(capture.paths()) == ["/d/big", "/d/out"]
    assert capture.info.coverage.operations == 1.0
    counted = dict(zip(capture.files["path"].to_pylist(), capture.files["posix_reads"].to_pylist(), strict=True))
    assert counted == {"/d/big": 2, "/d/out": 1}


def test_a_name_without_its_plain_form_gets_it_unless_a_folder_is_a_link(tmp_path):
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "wd").symlink_to(tmp_path / "elsewhere" / "deep")
    path = f"{tmp_path}/wd/../big"
    _, rows = merged(tmp_path, [(b"/d/wd/../only", False), (path.encode(), False)])
    assert rows == [("/d/only", "read"), (path, "read")]
