"""What two captures are to each other, from what each says that it was made of."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.traces.schema import CaptureInfo, Job, Source
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.relation import Relation, relation_of
from tests.capture_builder import build_capture, read

LOG = Source(name="job.darshan", sha256="ab" * 32, kind="darshan")


def made(folder: Path, name: str, length: int = 1, sources: tuple[Source, ...] = (), **keywords: object) -> Capture:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=length), ranks=(0,), sources=sources)
    return build_capture(folder, name=name, files=["/a"], ops=[read(0, length=length)], info=info, **keywords)  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Capture:
    return made(tmp_path, "source", sources=(LOG,))


def test_a_replay_and_its_source(source: Capture, tmp_path: Path) -> None:
    replay = made(tmp_path, "replay", replay_of=source)
    assert relation_of(source, replay) is Relation.REPLAY
    assert relation_of(replay, source) is Relation.REVERSED
    assert relation_of(replay, made(tmp_path, "again", length=2, replay_of=source)) is Relation.BOTH_REPLAYS


def test_a_capture_and_itself_or_a_copy_of_it(source: Capture, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(source.path, tmp_path / "copy.capture"))
    assert relation_of(source, source) is Relation.SAME
    assert relation_of(source, open_capture(copy)) is Relation.SAME
    assert relation_of(source, made(tmp_path, "merged again", length=3, sources=(LOG,))) is Relation.SAME


def test_two_runs_that_have_nothing_to_do_with_each_other(source: Capture, tmp_path: Path) -> None:
    other = made(tmp_path, "other", sources=(replace(LOG, sha256="cd" * 32),))
    assert relation_of(source, other) is Relation.DIFFERENT
    assert relation_of(source, made(tmp_path, "its replay", replay_of=other)) is Relation.DIFFERENT
    assert relation_of(made(tmp_path, "one"), made(tmp_path, "two")) is Relation.DIFFERENT, "equal, but of no source"
