"""What workers export in pieces is the same bytes for any number of them, and the contents are those of one piece."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export.chrome import write_chrome
from dxt_replay.profiler_merge.export.csv_rows import write_csv
from dxt_replay.profiler_merge.export.darshan_writer import write_darshan
from dxt_replay.profiler_merge.export.exported import Exported
from dxt_replay.profiler_merge.export.fio import write_fio
from dxt_replay.profiler_merge.export.gzip_pieces import GzipFile, PieceWriter
from dxt_replay.replay.plan.chosen_layers import choose_layers
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers.workers import Workers
from tests.capture_builder import File, Op, Span, build_capture, read, write


def chrome(capture: Capture, folder: Path, workers: Workers) -> Exported:
    return write_chrome(capture, folder / "trace.json.gz", events_per_file=90, workers=workers)


def darshan(capture: Capture, folder: Path, workers: Workers) -> Exported:
    return write_darshan(capture, folder / "x.darshan", dxt_version=2, workers=workers)


def csv(capture: Capture, folder: Path, workers: Workers) -> Exported:
    return write_csv(capture, folder / "x.csv", workers=workers)


def fio(capture: Capture, folder: Path, workers: Workers) -> Exported:
    paths = [b"/twin/a", b"/twin/b b", b"/twin/c"]
    return write_fio(capture, folder / "fio", paths=paths, replayed=choose_layers(capture).replayed, workers=workers)


EXPORTS = [chrome, darshan, csv, fio]
Export = Callable[[Capture, Path, Workers], Exported]


def several_ranks(tmp_path: Path) -> Capture:
    ops = [
        (write if number % 4 else read)(
            number % 3,
            offset=number,
            length=number % 9,
            start_ns=number,
            end_ns=number + 5,
            rank=number % 5,
            lane=number % 2,
        )
        for number in range(200)
    ]
    ops += [Op("rename", 0, other_file_id=1, start_ns=300, rank=2), Op("open", 2, start_ns=301, rank=6, api="STDIO")]
    spans = [Span("step", rank=rank, start_ns=9, end_ns=90, step=3) for rank in range(6)]
    files = ["/a", File("/b b", counters={"posix_seeks": 70}), "/c"]
    return build_capture(tmp_path, files=files, ranks=range(8), ops=ops, spans=spans)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def unpacked(name: str, contents: bytes) -> bytes:
    return gzip.decompress(contents) if name.endswith(".gz") else contents


@pytest.mark.parametrize("export", EXPORTS)
def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path, export: Export) -> None:
    capture = several_ranks(tmp_path)
    folders = [tmp_path / name for name in ("whole", "one", "two")]
    found = []
    for folder, count, piece in zip(folders, (1, 1, 2), (1 << 30, 1, 1), strict=True):
        folder.mkdir()
        with Workers(count, piece_operations=piece) as workers:
            found.append(export(capture, folder, workers))
    whole, one, two = (files_below(folder) for folder in folders)
    assert one == two
    assert {name: unpacked(name, text) for name, text in one.items()} == {
        name: unpacked(name, text) for name, text in whole.items()
    }
    assert len({(each.operations, str(sorted(each.left_out.items())), len(each.notes)) for each in found}) == 1
    assert len(chrome(capture, tmp_path, Workers(1)).files) > 2


@pytest.mark.parametrize("export", EXPORTS)
def test_what_stops_a_worker_leaves_nothing(tmp_path: Path, export: Export) -> None:
    capture = several_ranks(tmp_path)
    (part, *_) = sorted((capture.path / "ops").glob("part-*"))
    whole = part.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    part.write_bytes(whole[:4] + bytes(footer - 4) + whole[footer:])
    folder = tmp_path / "out"
    folder.mkdir()
    with Workers(2, piece_operations=1) as workers, pytest.raises(CaptureError):
        export(capture, folder, workers)
    assert list(folder.iterdir()) == []


@given(st.lists(st.binary(max_size=300), max_size=6), st.binary(max_size=50))
def test_pieces_of_gzip_are_one_member(texts: list[bytes], last: bytes) -> None:
    file = BytesIO()
    whole = GzipFile(file)
    for place, text in enumerate(texts):
        stored = file if place % 2 else BytesIO()
        writer = PieceWriter(stored)
        writer.write(text[:100])
        writer.write(text[100:])
        piece = writer.finish()
        whole.add(piece, None if stored is file else BytesIO(stored.getvalue()))
    whole.finish(last)
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert member.decompress(file.getvalue()) == b"".join(texts) + last
    assert member.eof
    assert not member.unused_data
