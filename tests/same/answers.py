"""What the product answers about a recorded job, command by command, as values that are equal on every machine.

An answer is a dictionary of `status`, `said` (the JSON that the command printed), `warnings`, and what it wrote: the
rows of a capture by rank and column, another file as a digest. Paths are relative to the checkout or to SCRATCH.
"""

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatchcase
from gzip import decompress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dxt_replay.replay.commands.main import main
from tests.places import PYTHON_PATH, ROOT

Answer = dict[str, Any]

SAMPLE, DATA, JOB = "src/dxt_replay/traces/samples", "tests/data", "tests/data/jobs"
GPU = "../shared/captures/torch_gpu"
BESIDE = {"torch_gpu": GPU}
"""Jobs that lie beside the checkout on some machines, and are left out on others."""


def _merged(folder: str) -> str:
    return f"merge {folder}/logs --profile {folder}/profile"


def _of_two_ranks(log: str, profiles: str) -> str:
    return f"merge {log}/job.darshan --profile {profiles}/rank0.xplane.pb.gz --profile {profiles}/rank1.xplane.pb.gz"


JOBS: Mapping[str, str] = {
    "torch_gpu": _merged(GPU),
    "imagenet": _of_two_ranks(f"{SAMPLE}/imagenet", f"{SAMPLE}/imagenet"),
    "cosmoflow_threads": _of_two_ranks(f"{DATA}/captures/cosmoflow_threads", f"{JOB}/cosmoflow_threads"),
    **{name: _merged(f"{JOB}/{name}") for name in ("torch_images", "torch_shards", "torch_hdf5")},
    "torch_eval": _merged(f"{DATA}/captures/torch_eval"),
    "torch_mmap": _merged(f"{DATA}/captures/torch_mmap/mmap"),
    "workers": f"merge {JOB}/workers",
    "counters": f"merge {JOB}/counters/hdf5_file_opens_only.darshan",
    "mpiio": f"merge {JOB}/mpiio/ior_hdf5_example.darshan",
    "strace": f"merge {DATA}/other-sources/strace/one.strace.gz",
    "dftracer": f"merge {JOB}/dftracer",
    "unet3d": "generate unet3d_h100 --ranks 2 dataset.num_files_train=14 train.epochs=2",
    "tfrecords": "generate paper_imagenet --ranks 3 dataset.num_files_train=6 train.epochs=1",
    "checkpoints": "generate llama_7b --ranks 4 model.num_layers=2 checkpoint.num_checkpoints_write=1 "
    "checkpoint.num_checkpoints_read=1",
}
"""Name of a job -> how its capture is made. Jobs that take long come first."""

SHOWN = (
    *("findings", "overlap", "steps", "sizes", "darshan-sizes", "exact-sizes", "files", "ranks", "rank-files", "lanes"),
    *("requests", "dependencies", "model", "storage-limit", "timeline", "tfrecords", "datasets"),
)

COMMANDS: Mapping[str, str] = {
    "summary": "summary CAPTURE --workers 1",
    "summary of a part": "summary CAPTURE --by step --part from=3300ms,until=4500ms --workers 1",
    **{f"summary --by {name}": f"summary CAPTURE --by {name} --workers 1" for name in ("rank", "file", "format")},
    **{f"summary --show {name}": f"summary CAPTURE --show {name} --workers 1" for name in SHOWN},
    "verify": "verify CAPTURE",
    "compare": "compare CAPTURE CAPTURE --details --workers 1",
    "simulate null": "simulate CAPTURE --storage null --workers 1",
    "simulate nvme": "simulate CAPTURE --storage nvme --workers 1",
    "simulate theta": "simulate CAPTURE --storage theta_lustre --workers 1",
    "simulate ranks": "simulate CAPTURE --storage nvme --ranks 4,16 --workers 1",
    **{
        f"transform {change.split()[0]}": f"transform CAPTURE --{change} -o OUT.capture"
        for change in (
            *("transfer-size 96KiB", "readers 3", "prefetch 1", "chunk 256KiB", "compression gzip:0.6:250MB/s"),
            *("compute-speed 3", "ranks 3"),
        )
    },
    "transform weak": "transform CAPTURE --ranks 3 --weak -o OUT.capture",
    "export darshan": "export CAPTURE --to darshan -o OUT.darshan",
    "export chrome": "export CAPTURE --to chrome -o OUT.json.gz",
    "export csv": "export CAPTURE --to csv -o OUT.csv",
    "report": "report CAPTURE -o OUT.html",
    "fit": "fit CAPTURE -o OUT.yaml",
    "anonymize": "anonymize CAPTURE --key-file KEY -o OUT.capture",
    "stage": "stage CAPTURE --sparse --target TWIN",
    "export fio": "export CAPTURE --to fio --target TWIN -o OUT",
    "verify the twin": "verify TWIN",
    **{
        f"run {pace}": f"run CAPTURE --warm --target TWIN --pace {pace} --api null --speed SPEED -o OUT.capture"
        for pace in ("timed", "think", "steps")
    },
    "run none": "run CAPTURE --warm --target TWIN --pace none -o OUT.capture",
}
"""Name of a command -> its words, beside `--json`."""

OF_GENERATED = ("merge", "summary", "simulate nvme", "summary --show dependencies", "transform ranks")
"""The commands that a generated capture takes; `merge` made it."""

FIRST = ("summary", "stage")
"""The commands that others need."""

THROUGH_LIBRARIES = {"mpiio": ["--api", "posix"], "torch_hdf5": ["--api", "posix"]}
"""Where MPI's or HDF5's library would make calls of its own, which differ by its release."""

CALLS = (
    "read,readv,pread64,preadv,write,writev,pwrite64,lseek,fsync,fdatasync,ftruncate,?rename,?renameat,renameat2,?unlink,"
    "unlinkat,?open,openat,openat2,close,?stat,?lstat,fstat,?newfstatat,statx,?mkdir,mkdirat,fadvise64,fallocate"
)
"""What strace looks at; a machine may lack those with a question mark."""
ORDERED = re.compile("p?(read|write)|lseek|f(data)?sync|ftruncate|rename|unlink")
"""The calls that each thread makes in its own order."""

CHANGING = r"(?<=AT_FDCWD)<[^>]*>|\b\d+(?=<)|\{st_mode=[^}]*\}|0x\w+"
"""Of a call: the working directory, numbers of descriptors, what a stat found, addresses."""

HEADER_BYTES = 1328
"""Length of the header of a log of version 3.41."""

MEASURED = ("start_ns", "end_ns", "due_ns")
EMPTY = pa.table({"rank": pa.array([], pa.int32()), "lane": pa.array([], pa.int32())})
MOST_ROWS = 8
"""Of a longer table or list, the number of rows and a digest of each column are kept."""


def digest(data):
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:12]


def column(values):
    """The one value of a column, else a digest of all."""
    text = json.dumps(values, default=bytes.hex)
    return values[0] if values and all(value == values[0] for value in values) else digest(text)


def columns(table):
    """Of each column that is not null throughout."""
    named = ((name, table[name]) for name in table.column_names)
    found = {name: column(each.to_pylist()) for name, each in named if each.null_count < len(each)}
    return {"rows": table.num_rows, **found}


def by_rank(table, order):
    """Each rank's columns. Rows of equal rank and `order` stay as they were stored."""
    names = ("rank", *order)
    table = table.take(np.lexsort([table[name].to_numpy() for name in reversed(names)]))
    ranks = pc.unique(table["rank"]).to_pylist()
    return {f"rank {rank}": columns(table.filter(pc.equal(table["rank"], rank)).drop(["rank"])) for rank in ranks}


def with_paths(table, paths):
    """Without numbers of files, and names in place of the codes of an enumeration."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(number, field.name, table[field.name].cast(pa.string()))
        elif field.name.endswith("file_id"):
            path = paths.take(table[field.name].combine_chunks())
            table = table.set_column(number, field.name.replace("file_id", "path"), path)
    return table


def rows_of(capture, pace):
    """The tables of a capture as they are stored, not as the product reads them. `pace`: of the replay that made it."""
    files = pq.read_table(capture / "files.parquet").sort_by("file_id")
    paths = files["path"].combine_chunks()
    parts = sorted((capture / "ops").iterdir())
    stored = pa.concat_tables([pq.read_table(part, partitioning=None) for part in parts]) if parts else EMPTY
    ops = with_paths(stored, paths)
    if pace is not None:
        ops = without_clock(ops.take(np.lexsort([ops["lane"].to_numpy(), ops["rank"].to_numpy()])), pace)
    found = {
        "ops": by_rank(ops, ["lane"]),
        "files": columns(with_paths(files.drop(["file_id"]), paths).sort_by("path")),
    }
    for name, order in (("spans", ["start_ns"]), ("lanes", ["lane"])):
        if (capture / f"{name}.parquet").exists():
            found[name] = by_rank(with_paths(pq.read_table(capture / f"{name}.parquet"), paths), order)
    if (capture / "hdf5.parquet").exists():
        found["hdf5"] = columns(with_paths(pq.read_table(capture / "hdf5.parquet"), paths))
    return {**found, "capture.json": json.loads((capture / "capture.json").read_text(encoding="utf-8"))}


def without_clock(ops, pace):
    """A replay's operations, ordered by lane, with what its pace decides instead of what a clock said."""
    due, end, lane, rank = (ops[name].to_numpy() for name in ("due_ns", "end_ns", "lane", "rank"))
    ops = ops.drop([name for name in MEASURED if name in ops.column_names])
    if pace == "timed" and len(due):
        return ops.append_column("due after the first_ns", [due - due.min()])
    if pace == "think" and len(due):  # the first of a lane is due after the start of the run, which no table has
        waited = np.append(0, due[1:] - end[:-1])
        waited[1:][(lane[1:] != lane[:-1]) | (rank[1:] != rank[:-1])] = 0
        return ops.append_column("due after the last one_ns", [waited])
    return ops


def darshan_content(log):
    """What a log holds: its streams without the compression, whose result differs by the release of zlib."""
    found, place = [], log.find(b"\x78", HEADER_BYTES)
    while 0 <= place < len(log):
        stream = zlib.decompressobj()
        while place < len(log) and not stream.eof:
            found.append(stream.decompress(log[place : place + 4096]))
            place += len(log[place : place + 4096]) - len(stream.unused_data)
    return b"".join(found)


class Job:
    """A job in a scratch folder. `left_out`: patterns "JOB / COMMAND: KEY.KEY" of what differs from run to run."""

    def __init__(self, name, scratch, left_out):
        self._name, self._scratch, self._left_out = name, scratch, left_out
        self._out, self._capture, self._twin = scratch / "out", scratch / "job.capture", scratch / "twin"

    def answers(self, wanted="*"):
        """Each command whose name matches, with its answer. Its output is removed before the next one runs."""
        self._twin.mkdir()
        first = [*JOBS[self._name].split(), "-o", str(self._capture)]
        made = self._answer("merge", self._said(first), self._capture)
        if not self._capture.exists():
            yield "merge", made
            return
        recorded_s = json.loads((self._capture / "capture.json").read_text(encoding="utf-8"))["job"]["run_time_s"]
        places = {
            "CAPTURE": self._capture,
            "TWIN": self._twin,
            "KEY": self._scratch / "key",
            "SPEED": max(1.0, min(1e6, recorded_s // 0.25)),
        }
        places["KEY"].write_bytes(b"key of the guard")
        if fnmatchcase("merge", wanted):
            yield "merge", made
        totals: Answer = {}
        generated = JOBS[self._name].startswith("generate")
        for name, line in COMMANDS.items():
            needed = fnmatchcase(name, wanted) and (not generated or name in OF_GENERATED)
            if not needed and (name not in FIRST or generated):
                continue
            words = [str(places.get(word, word.replace("OUT", str(self._out)))) for word in line.split()]
            found = self._traced(words) if name == "run none" else self._said(words)
            answer = self._answer(name, found, Path(words[words.index("-o") + 1]) if "-o" in words else None)
            if name == "summary":
                totals = answer["said"]
            elif name.startswith("summary --"):  # each table comes with the totals
                answer["said"] = {key: each for key, each in answer["said"].items() if totals.get(key) != each}
            if needed:
                yield name, answer
            for path in self._scratch.glob("out*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _said(self, words):
        """Run a command in this process."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err):
            status = main([*words, "--json"])
        printed, complaints = (stream.buffer.getvalue().decode() for stream in (out, err))
        return as_said(status, printed, complaints)

    def _traced(self, words):
        """Run a replay under strace, as a process of its own."""
        words = [*words, "--json", *THROUGH_LIBRARIES.get(self._name, ())]
        logs, program = self._scratch / "calls", [sys.executable, "-m", "dxt_replay", *words]
        logs.mkdir()
        if shutil.which("strace"):
            program = ["strace", "-ff", "-y", "-s", "0", "-o", str(logs / "thread"), "-e", f"trace={CALLS}", *program]
        done = subprocess.run(
            program, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": PYTHON_PATH}
        )
        answer = as_said(done.returncode, done.stdout, done.stderr)
        return {**answer, "calls": calls(logs, self._scratch)} if shutil.which("strace") else answer

    def _answer(self, name, answer, out):
        if out is not None and (out / "capture.json").exists():
            pace = name.removeprefix("run ") if name.startswith("run ") else None
            answer |= rows_of(out, pace)
        elif out is not None:
            answer["wrote"] = {
                path.relative_to(self._scratch).as_posix(): self._content(path)
                for path in sorted([*self._scratch.glob("out*"), *self._scratch.glob("out/**/*")])
                if path.is_file()
            }
        return self._plain(answer, f"{self._name} / {name}: ")

    def _content(self, path):
        data = path.read_bytes()
        if path.suffix == ".darshan":
            data = darshan_content(data)
        elif path.suffix == ".gz":
            data = decompress(data)
        data = re.sub(rb"dxt-replay \d[\w.]*", b"dxt-replay", data.replace(os.fsencode(self._scratch), b"SCRATCH"))
        return data.decode().splitlines() if path.suffix == ".yaml" else [len(data), digest(data)]

    def _plain(self, value, place):
        """Without what is left out, floats to twelve digits, long tables and lists in short."""
        if isinstance(value, dict):
            kept = {key: (each, f"{place}{key}") for key, each in value.items()}
            return {
                str(key).replace(str(self._scratch), "SCRATCH"): self._plain(each, where + ".")
                for key, (each, where) in kept.items()
                if not any(fnmatchcase(where, pattern) for pattern in self._left_out)
            }
        if isinstance(value, list):
            rows = [self._plain(each, place) for each in value]
            if len(rows) <= MOST_ROWS or place.endswith(".yaml."):
                return rows
            if all(isinstance(row, dict) for row in rows):
                names = dict.fromkeys(name for row in rows for name in row)
                return {"rows": len(rows), **{name: column([row.get(name) for row in rows]) for name in names}}
            return {"rows": len(rows), "values": column(rows)}
        if isinstance(value, float):
            return float(f"{value:.12g}")
        return value.replace(str(self._scratch), "SCRATCH") if isinstance(value, str) else value


def as_said(status, printed, complaints):
    lines = [line for line in complaints.splitlines() if line.startswith("dxt-replay: warning")]
    return {"status": status, "said": json.loads(printed or "null"), "warnings": lines}


def calls(logs, scratch):
    """The system calls on files of the twin. Of those in ORDERED their number, and a digest for each thread.

    Threads that share a file settle among themselves who opens and closes it: of all other calls the different ones.
    """
    number, threads, others = Counter[str](), [], set()
    for log in logs.glob("thread.*"):
        text = log.read_text(encoding="utf-8", errors="replace").replace(str(scratch), "SCRATCH")
        lines = [re.sub(CHANGING, "", line) for line in text.splitlines() if "SCRATCH/twin" in line]
        ordered = [line for line in lines if ORDERED.match(line)]
        number.update(line.split("(")[0] for line in ordered)
        others.update(line.split(" = ")[0].rstrip() for line in lines if not ORDERED.match(line))
        if ordered:
            threads.append(f"{len(ordered)} calls {digest(chr(10).join(ordered))}")
    different = Counter(line.split("(")[0] for line in others)
    return {
        "number": dict(sorted(number.items())),
        "threads": sorted(threads),
        "different others": dict(sorted(different.items())),
        "others": digest("\n".join(sorted(others))),
    }


def missing(name):
    """Why a job cannot be tried here."""
    if name in BESIDE and not (ROOT / BESIDE[name]).exists():
        return f"{BESIDE[name]} is not beside the checkout"
    return None if importlib.util.find_spec("h5py") else "h5py is not installed"


def answers_of(name, wanted, left_out):
    """Command -> its answer, of the commands whose names match `wanted`."""
    os.chdir(ROOT)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="same-", dir=memory) as scratch:
        return dict(Job(name, Path(scratch), left_out).answers(wanted))
