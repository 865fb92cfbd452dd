"""A job merged in pieces of its ranks: what it is merged to as a whole, and the same bytes whoever merges."""

import re
import shutil
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.large_log import FILES_PER_RANK, write_large_log
from dxt_replay.profiler_merge.darshan.dxt_stretches import HEADER_BYTES
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.darshan.rank_segments import ranks_in_order
from dxt_replay.profiler_merge.darshan.stream_starts import cut_at
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.store.rank_pieces import RANK_OPERATIONS
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.workers import Workers
from tests.darshan_writer import encode_dxt
from tests.log_of_ranks import RANKS, rank_of_log, rows_by_rank, write_ranks
from tests.places import ROOT

PIECE = 60
"""Operations of a piece: some ranks."""


def parts_of(seed=12, *, threads=True):
    rng = np.random.default_rng(seed)
    return [rank_of_log(rank, rng, threads=threads) for rank in range(RANKS)]


def shared_records():
    """Two files whose counters were reduced: one is untraced, one has fewer opens than ranks."""
    return [
        {
            "record_id": record_id(b"/data/shared-%d.bin" % file), "rank": -1, "POSIX_OPENS": opens, "POSIX_STATS": 5,
            "POSIX_READS": 40, "POSIX_BYTES_READ": 40 * 512, "POSIX_MAX_BYTE_READ": 40 * 512 - 1,
            "POSIX_SIZE_READ_100_1K": 40, "POSIX_F_OPEN_START_TIMESTAMP": 0.9, "POSIX_F_OPEN_END_TIMESTAMP": 1.0,
            "POSIX_F_READ_START_TIMESTAMP": 1.0, "POSIX_F_READ_END_TIMESTAMP": 1.5,
            "POSIX_F_CLOSE_START_TIMESTAMP": 1.6, "POSIX_F_CLOSE_END_TIMESTAMP": 2.0,
        }
        for file, opens in enumerate((3 * RANKS + 2, 3))
    ]  # fmt: skip


def merged(log, name, workers):
    return merge([log], [], log.with_name(name), workers=workers)


def contents(result):
    """Everything that a capture says, with paths in the place of files: rows, files, and what `merge --json` prints.

    Which counter that is not met comes first depends on which ranks are worked on together.
    """
    capture = open_capture(result.capture)
    files = {row.pop("path"): {**row, "file_id": None} for row in capture.files.to_pylist()}
    said = {**result.as_json(), "capture": None}
    said["rebuilt"] = {**said["rebuilt"], "not_met": sorted(said["rebuilt"]["not_met"], key=str)}
    said["warnings"] = [re.sub(r"\(for example.*", "", warning) for warning in said["warnings"]]
    return rows_by_rank(capture), files, said


def all_bytes(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def parts_in(folder):
    return len(list((folder / "ops").iterdir()))


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("shared", [(), shared_records()])
def test_pieces_are_what_the_whole_is(tmp_path, threads, shared):
    log = write_ranks(tmp_path / "a.darshan", parts_of(threads=threads), threads=threads, shared=shared)
    whole = merged(log, "whole.capture", Workers(1))
    pieces = merged(log, "pieces.capture", Workers(1, piece_operations=PIECE))
    assert contents(pieces) == contents(whole)
    assert (parts_in(whole.capture), parts_in(pieces.capture) > 2) == (1, True)
    with ThreadPoolExecutor(3) as threads_pool:
        executor = Workers(executor=threads_pool, piece_operations=PIECE)
        assert all_bytes(merged(log, "threads.capture", executor).capture) == all_bytes(pieces.capture)


def test_any_number_of_processes_writes_the_same_bytes(tmp_path):
    log = write_ranks(tmp_path / "a.darshan", parts_of(), threads=True, shared=shared_records())
    found = []
    for count in (1, 2, 3):
        with Workers(count, piece_operations=PIECE) as workers:
            found.append(all_bytes(merged(log, "out.capture", workers).capture))
        shutil.rmtree(tmp_path / "out.capture")
    assert found[0] == found[1] == found[2]


class Twice(ThreadPoolExecutor):
    """Does everything twice, as where a worker died after its work."""

    def submit(self, work, piece):
        def twice():
            work(piece)
            return work(piece)

        return super().submit(twice)


def test_a_piece_that_is_merged_again_overwrites(tmp_path):
    log = write_ranks(tmp_path / "a.darshan", parts_of(), threads=True, shared=shared_records())
    once = merged(log, "once.capture", Workers(1, piece_operations=PIECE))
    with Twice(1) as executor:
        twice = merged(log, "twice.capture", Workers(executor=executor, piece_operations=PIECE))
    assert all_bytes(twice.capture) == all_bytes(once.capture)


def test_a_disk_that_refuses_a_worker_is_one_error_and_leaves_nothing(tmp_path):
    """With a limit on the size of files, which the processes that are started have too."""
    ranks = 1 + 2 * Workers().piece_operations // RANK_OPERATIONS
    log = tmp_path / "a.darshan"
    write_large_log(log, ranks * FILES_PER_RANK, ranks)
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({1 << 14}, {1 << 14}))"
    script = f"{limited}; import sys; from dxt_replay.replay.commands.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["merge", str(log), "-o", str(tmp_path / "out.capture"), "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dxt-replay: error: cannot write the operations under {tmp_path}")
    assert (done.returncode, [entry.name for entry in tmp_path.iterdir()]) == (2, ["a.darshan"])


def test_streams_that_are_not_in_the_order_of_the_ranks(tmp_path):
    parts = parts_of()
    log = write_ranks(tmp_path / "a.darshan", [*parts[3:], *parts[:3]], threads=True)
    whole = merged(log, "whole.capture", Workers(1))
    with Workers(2, piece_operations=PIECE) as workers:
        assert contents(merged(log, "pieces.capture", workers)) == contents(whole)


def test_the_order_of_the_ranks_is_in_the_headers(tmp_path):
    parts = parts_of()
    ordered = open_log(write_ranks(tmp_path / "a.darshan", parts, threads=True))
    assert ranks_in_order(ordered)
    assert not ranks_in_order(open_log(write_ranks(tmp_path / "b.darshan", [parts[1], parts[0]], threads=True)))


def test_what_only_looks_like_the_start_of_a_stream(tmp_path):
    """A host name that is a stream by itself, in a stream that is stored as it is: the pieces show that it is none."""
    parts = parts_of()
    streams = [encode_dxt(part[1], "DXT_POSIX", 2) for part in parts]
    rank = 4
    fake = zlib.compress(encode_dxt([parts[0][1][0]], "DXT_POSIX", 2)[:8] + rank.to_bytes(8, "little") + bytes(88), 9)
    assert len(fake) <= 64
    assert streams[1][24:29] == b"node0"
    streams[1] = streams[1][:24] + fake + bytes(64 - len(fake)) + streams[1][88:]
    dxt = [zlib.compress(stream, 0) for stream in streams]
    log = write_ranks(tmp_path / "a.darshan", parts, threads=True, dxt=dxt)
    opened = open_log(log)
    region = opened.modules["DXT_POSIX"]
    begin = region.offset + len(dxt[0])
    assert begin < cut_at(opened, "DXT_POSIX", [rank])[0] < begin + len(dxt[1])
    whole = merged(log, "whole.capture", Workers(1))
    with Workers(2, piece_operations=PIECE) as workers:
        assert contents(merged(log, "pieces.capture", workers)) == contents(whole)


def test_cuts_are_where_the_streams_begin(tmp_path):
    parts = parts_of()
    dxt = [zlib.compress(encode_dxt(part[1], "DXT_POSIX", 2)) for part in parts]
    opened = open_log(write_ranks(tmp_path / "a.darshan", parts, threads=True, dxt=dxt))
    region = opened.modules["DXT_POSIX"]
    sizes = np.cumsum([0, *(len(stream) for stream in dxt)])
    assert cut_at(opened, "DXT_POSIX", range(RANKS + 1)) == (region.offset + sizes).tolist()


def cut(stream):
    return stream[:-20]


def flipped(stream):
    return stream[:40] + bytes([stream[40] ^ 255]) + stream[41:]


def ends_before_it_starts(stream):
    data = bytearray(zlib.decompress(stream))
    data[HEADER_BYTES + 24 : HEADER_BYTES + 32] = struct.pack("<d", -1.0)
    return zlib.compress(data)


@pytest.mark.parametrize("damage", [cut, flipped, ends_before_it_starts])
def test_what_precedes_damage_is_the_same_too(tmp_path, damage):
    parts = parts_of()
    dxt = [zlib.compress(encode_dxt(part[1], "DXT_POSIX", 2)) for part in parts]
    log = write_ranks(tmp_path / "a.darshan", parts, threads=True, dxt=[*dxt[:5], damage(dxt[5])])
    whole = merge([log], [], tmp_path / "whole.capture")
    with Workers(2, piece_operations=PIECE) as workers:
        assert contents(merge([log], [], tmp_path / "pieces.capture", workers=workers)) == contents(whole)
    (warning,) = [text for text in whole.info.warnings if "is damaged" in text]
    assert warning.startswith("a.darshan is damaged")
    assert "not known" not in warning
    counted, (share, _) = whole.counted["POSIX"], whole.info.coverage.traceable
    assert 0 < share < 1
    # What the trace lacks is rebuilt from the counters.
    rows = [row for ranks in contents(whole)[0].values() for row in ranks if row["api"] == "POSIX"]
    assert sum(row["op"] == "read" for row in rows) == counted["reads"]
