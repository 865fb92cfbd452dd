"""Where the mutations begin: small inputs of each format, made by the writers that the other tests use."""

from __future__ import annotations

import bz2
import gzip
import json
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay import stage
from dxt_replay.replay.simulation import model as storage_models
from dxt_replay.traces.schema import HDF5_SCHEMA
from dxt_replay.workloads.source import SHIPPED
from tests import kineto_writer
from tests.capture_builder import File, Op, Span, build_capture, read, write
from tests.darshan_writer import JobSpec, ModuleSpec, encode_counters, encode_dxt, posix_rows, write_dxt_log, write_log
from tests.fuzz.mutations import Files
from tests.places import ROOT
from tests.profiler_merge.darshan.test_damaged import RECORDS, dxt_log, whole_log
from tests.replay.regress.builder import record
from tests.xplane_writer import small_profile

CORPUS = Path(__file__).with_name("corpus")
"""Inputs that once found a defect: corpus/TARGET/NAME is a file or a folder."""

_MS = 1_000_000
_DATASET = {
    "file_id": 2, "dataset": "/x", "type_size": 4, "points": 8, "shape": [8], "chunk_shape": [4], "filters": [],
    "chunk_index": [0, 1], "chunk_offset": [2048, 2064], "chunk_size": [16, 16], "chunk_mask": [0, 0],
}  # fmt: skip


T = 1_795_306_000
STRACE = b"".join(
    b"%d %d.%06d %s <0.000100>\n" % (tid, T, 1000 * number, call)
    for number, (tid, call) in enumerate(
        [
            (7, b'execve("/usr/bin/python", [...], 0x7 /* 9 vars */) = 0'),
            (7, b'openat(AT_FDCWD</d>, "x", O_RDWR|O_CREAT) = 3</d/x>'),
            (7, b"clone(child_stack=NULL, flags=SIGCHLD, child_tidptr=0x7) = 8"),
            (8, b'pread64(3</d/x>, ""..., 8, 1000) = 8'),
            (8, b"lseek(3</d/x>, 5, SEEK_SET) = 5"),
            (7, b'write(3</d/x>, ""..., 6) = 6'),
            (7, b"ftruncate(3</d/x>, 4) = 0"),
            (7, b'newfstatat(3</d/x>, "", {st_mode=S_IFREG|0644, st_size=9, ...}, AT_EMPTY_PATH) = 0'),
            (7, b"copy_file_range(3</d/x>, NULL, 3</d/x>, [100], 10, 0) = 10"),
            (7, b'rename("/d/x", "/d/y") = 0'),
            (7, b"close(3</d/y>) = 0"),
        ]
    )
)
DFTRACER = b"".join(
    json.dumps({"id": 1, "cat": cat, "pid": 7, "tid": 7, "ts": T * 10**6 + at, "dur": 9, **event}).encode() + b"\n"
    for at, (cat, event) in enumerate(
        [
            ("dftracer", {"name": "FH", "ph": "M", "args": {"name": "/d/x", "value": 5}}),
            ("POSIX", {"name": "open", "ph": "X", "args": {"ret": 3, "flags": 66, "fhash": 5}}),
            ("POSIX", {"name": "write", "ph": "X", "args": {"ret": 30, "fd": 3, "fhash": 5}}),
            ("POSIX", {"name": "lseek", "ph": "X", "args": {"ret": 3, "whence": 0, "offset": 3, "fd": 3, "fhash": 5}}),
            ("POSIX", {"name": "pread", "ph": "X", "args": {"ret": 3, "offset": 9, "fd": 3, "fhash": 5}}),
            ("dataloader", {"name": "fetch", "ph": "X", "args": {}}),
            ("compute", {"name": "forward", "ph": "X", "args": {}}),
            ("STDIO", {"name": "fopen", "ph": "X", "args": {"mode": "w", "fhash": 5}}),
            ("STDIO", {"name": "fwrite", "ph": "X", "args": {"ret": 3, "size": 8, "fhash": 5}}),
        ]
    )
)


REQUESTS = f"""# dxt-replay requests 1
P\t7\t1\t0\thost\t7
A\t{T * 10**9}\t0
C\t1\t10.0.0.2:443
R\tGetObject\tb/k%20x\t5\t20\t20\t100\t1000\t1500\t2000\t206\t1\t7\t\t\t
R\tUploadPart\tb/u\t0\t9\t0\t\t3000\t3500\t4000\t200\t1\t7\t99\t2\t
R\tUploadPart\tb/u\t0\t4\t0\t\t3100\t3500\t4100\t200\t1\t7\t99\t1\t
R\tCopyObject\tb/n\t\t\t0\t\t5000\t\t5100\t200\t1\t7\t\t\tb/u
R\tDeleteObject\tb/u\t\t\t0\t\t5200\t\t5300\t204\t1\t7\t\t\t
R\tHeadObject\tb/none\t\t\t0\t\t6000\t6100\t6200\t404\t1\t7\t\t\t
E\tstore:443
S\t10.0.0.1:5000\t10.0.0.2:443\t900
A\t{T * 10**9 + 10**10}\t10000000100
"""
OP_COLUMNS = "idx\tthread\top\tclient_id\tn_objects\tbytes\tendpoint\tfile\terror\tstart\tfirst_byte\tend\tx\n"
OP_LOG = f"# s3dlio\n{OP_COLUMNS}" + "".join(
    f"{i}\t17\t{op}\tagent-{i % 2}\t1\t{moved}\t{at}\tbucket/d/{i}\t{error}\t2026-11-23T10:00:0{i}Z\t"
    f"{first and f'2026-11-23T10:00:0{i}.25Z'}\t2026-11-23T10:00:0{i}.5+00:00\t0\n"
    for i, (op, moved, at, error, first) in enumerate(
        [("LIST", 0, "s3://b", "", ""), ("GET", 700, "s3://b", "", "x"), ("GET_RANGE", 50, "http://h", "", "x"),
         ("GET", 0, "s3://b", "NoSuchKey", "x"), ("PUT", 9, "s3://b", "", ""), ("GET", 9, "file://", "", "")]
    )
)  # fmt: skip


def seeds(target: str) -> list[Files]:
    """The inputs that a target begins with: made here, and kept in `CORPUS`."""
    with tempfile.TemporaryDirectory() as scratch:
        found = _MADE[target](Path(scratch))
    return found + [files_in(path) for path in sorted((CORPUS / target).glob("*"))]


def files_in(path: Path) -> Files:
    """A file by its name, or all files of a folder by their paths in it."""
    if path.is_file():
        return {path.name.partition("@")[2] or path.name: path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def _darshan(scratch: Path) -> list[Files]:
    path = scratch / "job.darshan"
    found = [{path.name: make(path).read_bytes()} for make in (whole_log, dxt_log)]
    stdio = ModuleSpec(version=2, streams=[encode_counters("STDIO", [{"record_id": 1, "STDIO_OPENS": 1}], 2)])
    for compression in ("zlib", "bzip2"):
        write_dxt_log(
            path, RECORDS, names={1: b"/scratch/a", 2: b"/b.h5"}, job=JobSpec(nprocs=1), extra_modules={"STDIO": stdio},
            compression=compression,
        )  # fmt: skip
        found.append({path.name: path.read_bytes()})
    shared = {
        "DXT_POSIX": ModuleSpec(version=2, streams=[encode_dxt(RECORDS, "DXT_POSIX", 2)]),
        "POSIX": ModuleSpec(
            version=4, streams=[encode_counters("POSIX", [{**row, "rank": -1} for row in posix_rows(RECORDS)], 4)]
        ),
    }
    write_log(path, names={1: b"/a", 2: b"/b"}, job=JobSpec(nprocs=4), modules=shared)
    return [*found, {path.name: path.read_bytes()}]


def _xplane(scratch: Path) -> list[Files]:
    data = small_profile()
    return [{"a.xplane.pb": data}, {"a.xplane.pb.gz": gzip.compress(data, 1, mtime=0)}]


def _kineto(scratch: Path) -> list[Files]:
    events = [
        *(kineto_writer.mark(step, step * 10 * _MS, (step * 10 + 9) * _MS) for step in range(3)),
        *(kineto_writer.event("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", (step * 10 + 1) * _MS,
                              (step * 10 + 2) * _MS, cat="user_annotation") for step in range(3)),
        kineto_writer.launch(3 * _MS, 4 * _MS, 5),
        kineto_writer.kernel("gemm", 5 * _MS, 6 * _MS, 5),
        kineto_writer.anchor(0, 7 * _MS),
    ]  # fmt: skip
    around = {"distributedInfo": {"rank": 0, "world_size": 1}}
    texts = [kineto_writer.trace(events, generation=each, around=around) for each in (1, 2, 3, 4)]
    plain = [{"a.pt.trace.json": text} for text in texts]
    return [*plain, {"a.pt.trace.json.gz": gzip.compress(texts[-1], 1, mtime=0)}]


def _trace(name: str, text: bytes) -> Callable[[Path], list[Files]]:
    return lambda scratch: [{name: text}, {name + ".gz": gzip.compress(text, 1, mtime=0)}]


def _workload(scratch: Path) -> list[Files]:
    return [{"a.yaml": path.read_bytes()} for path in sorted(SHIPPED.glob("*.yaml"))]


def _storage_model(scratch: Path) -> list[Files]:
    shipped = Path(storage_models.__file__).with_name("shipped")
    return [{"a.yaml": path.read_bytes()} for path in sorted(shipped.glob("*.yaml"))]


def small_capture(folder: Path) -> Path:
    """Two ranks of a training with three steps, a checkpoint, a rename and an HDF5 data set."""
    lines = [
        op
        for rank in (0, 1)
        for op in (
            Op("open", 0, rank=rank),
            *(
                read(0, offset=100 * i, length=100, start_ns=i * 2 * _MS, rank=rank, lane=i % 2, step=i // 3)
                for i in range(9)
            ),
            read(2, offset=2048, length=16, start_ns=5 * _MS, rank=rank, lane=2, api="HDF5"),
            write(1, length=50, start_ns=19 * _MS, rank=rank, step=2),
            Op("rename", 1, other_file_id=3, start_ns=20 * _MS, rank=rank),
            Op("close", 0, start_ns=21 * _MS, rank=rank),
        )
    ]
    spans = [
        span
        for rank in (0, 1)
        for step in range(3)
        for span in (
            Span("step", step * 6 * _MS, (step * 6 + 6) * _MS, rank=rank, step=step),
            Span("input_wait", step * 6 * _MS, (step * 6 + 1) * _MS, rank=rank, step=step, name="next_batch"),
            Span("compute", (step * 6 + 1) * _MS, (step * 6 + 5) * _MS, rank=rank, step=step),
        )
    ]
    counters = {"posix_reads": 18, "posix_bytes_read": 1800}
    files = [File("/data/a.tfrecord", counters=counters), "/ckpt/b.tmp", File("/c.h5", size=4096, format="hdf5"), "/d"]
    made = build_capture(folder, name="c", ops=lines, files=files, spans=spans)
    pq.write_table(
        pa.Table.from_pylist([_DATASET], schema=HDF5_SCHEMA), made.path / "hdf5.parquet", write_page_checksum=True
    )
    return made.path


def _capture(scratch: Path) -> list[Files]:
    """A capture with its index and digests, and one as another program writes it, known by its rows alone."""
    made = {f"c.capture/{name}": data for name, data in files_in(small_capture(scratch)).items()}
    document = json.loads(made["c.capture/capture.json"])
    del document["digests"]
    foreign = {name: data for name, data in made.items() if not name.endswith("index.parquet")}
    return [made, {**foreign, "c.capture/capture.json": json.dumps(document).encode()}]


def _manifest(scratch: Path) -> list[Files]:
    capture = small_capture(scratch)
    (scratch / "t").mkdir(exist_ok=True)
    stage(capture, target=scratch / "t")
    return [files_in(scratch)]


def _record(scratch: Path) -> list[Files]:
    return [{f"{day}.json": record(day=day).encoded() for day in range(3)}]


_MADE: dict[str, Callable[[Path], list[Files]]] = {
    "darshan": _darshan,
    "xplane": _xplane,
    "kineto": _kineto,
    "dftracer": _trace("a.pfw", DFTRACER),
    "strace": _trace("a.strace", STRACE),
    "marks": lambda scratch: [files_in(path) for path in sorted((ROOT / "tests/data/marks").glob("[hkg]*/profile/*s"))],
    "requests": lambda scratch: [{"a.requests": REQUESTS.encode()}],
    "s3dlio": lambda scratch: [{"a.tsv": OP_LOG.encode()}],
    "workload": _workload,
    "storage-model": _storage_model,
    "capture": _capture,
    "manifest": _manifest,
    "record": _record,
}


def bombs() -> dict[str, tuple[str, Files]]:
    """Name -> target and input: a few bytes that unpack to gigabytes, or claim to."""
    zeros = bytes(1 << 24)
    streams = {
        "gzip": _repeated_gzip(zeros, 256),
        "zlib": b"".join([zlib.compress(zeros, 9)] * 256),
        "bzip2": bz2.compress(zeros * 16, 9) * 16,
    }
    return {
        "XPlane, 4 GiB of zeros": ("xplane", {"a.xplane.pb.gz": streams["gzip"]}),
        "Kineto, 4 GiB of blanks": ("kineto", {"a.pt.trace.json.gz": _repeated_gzip(b" " * (1 << 24), 256)}),
        "DFTracer, one line of 4 GiB": ("dftracer", {"a.pfw.gz": _repeated_gzip(b"a" * (1 << 24), 256)}),
        "strace, one line of 4 GiB": ("strace", {"a.strace.gz": _repeated_gzip(b"a" * (1 << 24), 256)}),
        **{f"Darshan, {module}, {name}, 4 GiB of zeros": ("darshan", _darshan_bomb(module, name, streams[name]))
           for module in ("names", "POSIX", "DXT_POSIX") for name in ("zlib", "bzip2")},
    }  # fmt: skip


def _repeated_gzip(block: bytes, times: int) -> bytes:
    return gzip.compress(block, 9, mtime=0) * times


def _darshan_bomb(module: str, compression: str, stream: bytes) -> Files:
    """A log in which a region holds the stream."""
    from dxt_replay.profiler_merge.darshan.log import CONTAINERS
    from tests.darshan_writer import MODULE_IDS

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "job.darshan"
        write_dxt_log(path, RECORDS, names={1: b"/a", 2: b"/b"}, job=JobSpec(nprocs=1), compression=compression)
        data = bytearray(path.read_bytes())
    slot = 0 if module == "names" else 1 + MODULE_IDS[module]
    place = CONTAINERS["3.41"].maps_at + 16 * slot
    data[place : place + 16] = len(data).to_bytes(8, "little") + len(stream).to_bytes(8, "little")
    return {"job.darshan": bytes(data) + stream}
