"""The rows of the table: commands, functions and their peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.dxt_decode import PYDARSHAN

ALONE: tuple[str, ...] = ("one",)
SHARED: tuple[str, ...] = ("one", "processes", "MPI", "Dask")
"""Ways to do the work: one process, processes of this machine, MPI, Dask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Something to measure; in all texts {folder} is the folder of the input and {size} its size.

    input: its name in `inputs.INPUTS`.
    command: words of `dxt-replay`.
    program: words of another program.
    code: Python text that defines `run(path)` with the folder as path, and returns the number of units; only `run` is
    measured. `prepare`: statements before it.
    output: the folder or capture that the command writes, removed before each run; a folder is made anew. Without
        it the output is what the command prints.
    ways: who does the work.
    peer: name of the row that does the same, or the least of it, in another way.
    figure: keys of a number in the printed JSON that belongs to the row, and its name.
    """

    name: str
    input: str
    command: Sequence[str] = ()
    program: Sequence[str] = ()
    code: str = ""
    prepare: str = ""
    output: str = ""
    ways: tuple[str, ...] = ALONE
    peer: str = ""
    figure: tuple[str, ...] = ()


CAPTURE, LOG = "{folder}/job.capture", "{folder}/job.darshan"


def _of_capture(
    source: str, name: str, *words: str, suffix: str = "", ways: tuple[str, ...] = SHARED, peer: str = ""
) -> Row:
    """A command that reads the capture of an input, and writes a file if it has a suffix."""
    output = "{folder}/out" if suffix else ""
    written = ("-o", f"{output}/result{suffix}") if suffix else ("--json",)
    first, *others = words
    return Row(
        name=name,
        input=source,
        command=(first, CAPTURE, *others, *written),
        output=output,
        ways=ways,
        peer=peer,
    )


def _merge(source: str, name: str, ways: tuple[str, ...], *, kept: bool = False, peer: str = "") -> Row:
    """A merge of the log of an input; `kept`: into the capture that later rows read."""
    output = CAPTURE if kept else "{folder}/merged.capture"
    command = ("merge", LOG, "-o", output, "--json")
    return Row(name=name, input=source, command=command, output=output, ways=ways, peer=peer)


_VANIDL = """
import pandas
def run(path):
    rows, name = [], ""
    with open(path + "/segments.txt") as text:
        for line in text:
            if line.startswith("#"):
                name = line.rsplit(" ", 1)[-1].strip()
                continue
            module, rank, op, segment, offset, length, start, end = line.split()
            time = float(end) - float(start) or 0.001
            rows.append({"Module": module, "Filename": name, "Rank": int(rank), "Operation": op,
                         "Segment": int(segment), "Offset": int(offset), "Length": int(length),
                         "Start": float(start), "End": float(end), "io_time": time,
                         "bandwidth": int(length) / time})
    table = pandas.DataFrame(rows)
    table["io_time"].sum() / table["Rank"].nunique()
    table["bandwidth"].median(), table["bandwidth"].mean(), table["Length"].median()
    table.groupby("Filename")["Length"].sum()
    return len(table)
"""
"""VaniDL's method: every segment as a line of text, split into Python objects; a table of all rows, and its totals."""

_OPEN = """
from dxt_replay.traces.store.reader import open_capture
def run(path):
    return len(open_capture(path + "/job.capture").ranks)
"""
_SIMULATE = """
import dxt_replay
from dxt_replay.replay.causal.events import run_lanes
from dxt_replay.replay.simulation._simulated_storage import SimulatedStorage
from dxt_replay.replay.simulation.model import read_storage_model
def run(path):
    lanes = job.lanes({size})
    storage = SimulatedStorage(read_storage_model("theta_lustre"), ranks={size}, file_bytes=job.file_bytes)
    run_lanes(lanes, storage, job.watch())
    return sum(len(lane.items) for lane in lanes)
"""
_HEAPQ = """
import heapq
def run(path):
    events = [(lane, lane) for lane in range({size})]
    for _ in range(1_000_000):
        now, lane = events[0]
        heapq.heapreplace(events, (now + 1 + lane % 7, lane))
    return 1_000_000
"""
_KINETO = """
from pathlib import Path
from dxt_replay.profiler_merge.profiles.kineto import read_profile
def run(path):
    return len(read_profile([Path(path, "job.pt.trace.json")]))
"""
_MSGSPEC = """
from pathlib import Path
import msgspec
from dxt_replay.profiler_merge.profiles.kineto import Event
class Document(msgspec.Struct, gc=False):
    traceEvents: list[Event]
decoder = msgspec.json.Decoder(Document)
def run(path):
    return len(decoder.decode(Path(path, "job.pt.trace.json").read_bytes()).traceEvents)
"""
"""The bare parse: the same members of each event as objects of the same type, nothing made of them."""
_DISTINCT = """
import numpy
from dxt_replay.traces.row_order import distinct_rows
def run(path):
    distinct_rows(*columns)
    return len(columns[0])
"""
_UNIQUE = """
import numpy
def run(path):
    numpy.unique(columns, axis=1)
    return len(columns[0])
"""
_COLUMNS = "columns = numpy.load('{folder}/rows.npy')"
_RUN = ("run", CAPTURE, "--target", "{folder}/twin", "-o", "{folder}/replay.capture", "--json")

ROWS = (
    _of_capture("job", "summary", "summary", peer="VaniDL's method"),
    _of_capture("job", "findings", "summary", "--show", "findings"),
    _of_capture("job", "report", "report", suffix=".html"),
    _of_capture("job", "compare", "compare", CAPTURE, "--different-runs"),
    _of_capture("job", "export csv", "export", "--to", "csv", suffix=".csv", ways=ALONE),
    _of_capture("job", "export fio", "export", "--to", "fio", "--target", "{folder}", suffix=".fio", ways=ALONE),
    _of_capture("job", "export chrome", "export", "--to", "chrome", suffix=".json.gz", ways=ALONE),
    _of_capture("job", "export darshan", "export", "--to", "darshan", suffix=".darshan", ways=ALONE),
    Row(name="VaniDL's method", input="text", code=_VANIDL),
    _merge("log", "merge", SHARED, peer="pydarshan decodes"),
    Row(
        name="pydarshan decodes",
        input="log without threads",
        code=PYDARSHAN.replace("DarshanReport(path", "DarshanReport(path + '/job.darshan'"),
    ),
    _merge("one rank", "merge, one rank", ALONE),
    Row(
        name="run, one rank",
        input="one rank",
        command=(*_RUN, "--pace", "none", "--api", "null"),
        output="{folder}/replay.capture",
        figure=("elapsed_s",),
    ),
    _merge("ranks", "merge, many ranks", SHARED, kept=True),
    _of_capture("ranks", "summary, many ranks", "summary"),
    _of_capture("ranks", "compare, many ranks", "compare", CAPTURE, "--different-runs"),
    _of_capture("wide", "findings, 512 ranks", "summary", "--show", "findings", ways=SHARED[:2]),
    Row(name="open a capture", input="open", code=_OPEN),
    _merge("small", "merge, small log", ALONE, kept=True),
    _of_capture("small", "summary, small", "summary", ways=ALONE),
    _of_capture("small", "report, small", "report", suffix=".html", ways=ALONE),
    Row(
        name="merge --each",
        input="archive",
        command=("merge", "--each", "{folder}/logs", "-o", "{folder}/captures", "--json"),
        output="{folder}/captures",
        ways=SHARED,
    ),
    Row(
        name="merge --each, again",
        input="archive",
        command=("merge", "--each", "{folder}/logs", "-o", "{folder}/captures"),
    ),
    Row(name="summary of captures", input="archive", command=("summary", "{folder}/captures", "--json"), ways=SHARED),
    Row(name="summary of logs", input="archive", command=("summary", "{folder}/logs", "--json")),
    Row(
        name="stage",
        input="files",
        command=("stage", CAPTURE, "--target", "{folder}/twin", "--json"),
        output="{folder}/twin",
        peer="cp -r",
    ),
    Row(
        name="cp -r",
        input="files",
        program=("sh", "-c", "cp -r {folder}/twin {folder}/copy && sync -f {folder}/copy"),
        output="{folder}/copy",
    ),
    Row(
        name="run, many files",
        input="files",
        command=(*_RUN, "--pace", "none"),
        output="{folder}/replay.capture",
        peer="cp -r",
    ),
    Row(
        name="run, timed ranks on 2 processes",
        input="timed",
        program=("{mpiexec}", "-n", "2", "{dxt-replay}", *_RUN, "--pace", "timed", "--api", "null"),
        output="{folder}/replay.capture",
        figure=("lag_us", "p99"),
    ),
    Row(
        name="generate",
        input="training",
        command=(
            "generate",
            "resnet50_h100",
            "--ranks",
            "16",
            "train.epochs=1",
            "dataset.num_files_train={size}",
            "-o",
            "{folder}/made.capture",
        ),
        output="{folder}/made.capture",
        ways=SHARED,
    ),
    _of_capture("training", "transform", "transform", "--compute-speed", "2", suffix=".capture", ways=ALONE),
    Row(
        name="simulate",
        input="simulated",
        code=_SIMULATE,
        prepare="job = dxt_replay.simulate('{folder}/job.capture', 'null').prediction.job",
        peer="heapq",
    ),
    Row(name="heapq", input="simulated", code=_HEAPQ),
    Row(name="read a PyTorch profile", input="profile", code=_KINETO, peer="msgspec"),
    Row(name="msgspec", input="profile", code=_MSGSPEC),
    Row(name="distinct rows", input="rows", code=_DISTINCT, prepare=_COLUMNS, peer="numpy.unique"),
    Row(name="numpy.unique", input="rows", code=_UNIQUE, prepare=_COLUMNS),
)

SHORT = (
    "summary", "findings", "report", "compare", "export csv", "export fio", "export chrome", "export darshan", "merge",
    "merge, one rank", "run, one rank", "open a capture", "merge, small log", "summary, small", "report, small",
    "merge --each", "stage", "run, many files", "run, timed ranks on 2 processes", "transform", "simulate",
    "read a PyTorch profile", "distinct rows",
)  # fmt: skip
"""Rows of the table in docs/scale.md."""
