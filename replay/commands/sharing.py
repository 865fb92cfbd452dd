"""Gives captures to others: `export` for other tools, `fit` as a DLIO description, `anonymize` without names."""

from __future__ import annotations

import secrets
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.captures import CaptureOrPath, PartOption, Source, opened
from dxt_replay.replay.commands.face import Force, Option, PathLike, command, output, public
from dxt_replay.replay.commands.replaying import check_profiled
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.plain import Result

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.export.exported import Exported
    from dxt_replay.replay.anonymize import Anonymized
    from dxt_replay.traces.store.reader import Capture
    from dxt_replay.workloads.description import Workload
    from dxt_replay.workloads.fit.fitted import Estimates

FORMATS = ("darshan", "chrome", "csv", "fio")
"""Formats that `export` writes."""

_BY_SUFFIX = {".darshan": "darshan", ".json": "chrome", ".gz": "chrome", ".csv": "csv", "": "fio"}
_KEY_BYTES, _MOST_KEY_BYTES = 32, 1 << 20
_STANDARD_OUTPUT = Path("-")


@public
def export(
    capture: Source,
    to: Annotated[str | None, Option("The format.  [default: by the suffix of OUT]", choices=FORMATS)],
    output: Annotated[
        PathLike,
        output("OUT", "OUT.darshan, OUT.json.gz, OUT.csv or - (CSV on standard output), or a directory for fio."),
    ],
    *,
    target: Annotated[PathLike | None, Option("For fio: directory that holds the staged twin.", "DIR")] = None,
    force: Force = False,
) -> Exported:
    """Export a capture (or a .darshan log) for other tools.

    darshan: a log with DXT segments and the POSIX counters of the operations, for pydarshan, darshan-parser and the
    tools above them.

    chrome: a trace for ui.perfetto.dev, with operations, spans and the due times of a replay.

    csv: one row per operation, times in seconds with nine digits.

    fio: a directory with an iolog per lane, the job file and a script that replays them on the staged twin.

    In Python:

        dxt_replay.export("run.capture", "chrome", "run.json.gz").notes

    The result lists what the format cannot hold.
    Raises: UsageError for a format that is not known, or without `target`; TargetError for `output`.
    """
    path = Path(output)
    kind = to or _BY_SUFFIX.get(path.suffix)
    if kind is None:
        raise UsageError(f"--output {path}: its suffix names no format: give --to {', '.join(FORMATS)}")
    if kind == "fio" and target is None:
        raise UsageError("--to fio needs --target DIR: the directory that `dxt-replay stage` builds the twin in")
    if target is not None and kind != "fio":
        raise UsageError(f"--target is for --to fio, not for --to {kind}: leave it out")
    with session.status("exporting"), opened(capture) as source:
        if kind == "chrome":
            from dxt_replay.profiler_merge.export.chrome import write_chrome

            return write_chrome(source, path, force=force)
        if kind == "csv":
            from dxt_replay.profiler_merge.export.exported import write_csv

            return write_csv(source, path, force=force)
        if kind == "darshan":
            from dxt_replay.profiler_merge.export.darshan import write_darshan

            return write_darshan(source, path, force=force)
        assert target is not None
        return _fio(source, path, target, force)


def _fio(source: Capture, output: Path, target: PathLike, force: bool) -> Exported:
    from dxt_replay.profiler_merge.export.fio import write_fio
    from dxt_replay.replay.plan.layers import choose_layers
    from dxt_replay.replay.target.data_set import twin_data_set
    from dxt_replay.replay.target.manifest import read_manifest
    from dxt_replay.replay.target.targets import directory_named, open_target

    with open_target(directory_named(target, "export --to fio")) as opened:
        data = twin_data_set(source, opened.base, (), read_manifest(opened))
    paths = [placement.path for placement in data.placements]
    replayed = choose_layers(source).replayed
    return write_fio(source, output, paths=paths, replayed=replayed, force=force)


@command(name="export", like=export, tidy=True)
def _export(**given: Any) -> Exported | int:
    if given["output"] == _STANDARD_OUTPUT:
        if given["to"] not in ("csv", None) or session.current().as_json:
            raise UsageError("--output - is for --to csv without --json: give a file name")
        from dxt_replay.profiler_merge.export.exported import stream_csv

        with opened(given["capture"]) as source:
            stream_csv(source, sys.stdout.buffer)  # bytes: the text layer would write another encoding, or line ends
        return 0
    return export(**given)


# ------------------------------------------------------------------------------------------------ fit
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedWorkload(Result):
    """Result of `fit`.

    output: the YAML file. ranks: of the capture. keys: key of the description -> its value, and how that was found.
    workload: the description, checked as one that is read from a file.
    similarity: of the capture and what the description generates, as in `compare`, without the factors that storage
    decides; None where neither has I/O. notes: what is not known of the training loop.
    """

    output: Path
    ranks: int
    keys: Estimates
    workload: Workload
    similarity: float | None
    notes: tuple[str, ...]

    @property
    def closeness(self) -> str:
        """The similarity in one sentence."""
        known = "not known" if self.similarity is None else f"{self.similarity:.4f}"
        return f"similarity of what it generates on {self.ranks} ranks: {known}, without the factors of storage"

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay fit --json` prints."""
        return {
            "output": str(self.output),
            "keys": {key: {"value": value, "found": found} for key, (value, found) in self.keys.items()},
            "ranks": self.ranks,
            "similarity": self.similarity,
            "notes": list(self.notes),
        }


@public
def fit(
    capture: Source,
    output: Annotated[PathLike, output("OUT.yaml", "The description, which DLIO and `dxt-replay generate` read.")],
    *,
    batch: Annotated[int | None, Option("Batch size of a rank, if you know it.", "N", least=1)] = None,
    part: PartOption = (),
    force: Force = False,
) -> FittedWorkload:
    """Write the DLIO workload whose I/O is nearest to a capture.

    A comment on each line of the YAML says how the value was found. The first line says how similar the generated I/O
    is to the capture: the cosine of the factors of `compare` that storage does not decide. For all measures, generate a
    capture and give both to `compare --different-runs`. The capture needs training steps: merge logs with a profile
    first.

    In Python:

        dxt_replay.fit("run.capture", "run.yaml").workload.reader.batch_size

    Raises: UsageError when the capture has no training steps; CaptureError when the loop neither reads nor saves.
    """
    from dxt_replay.traces.output import check_output, new_file
    from dxt_replay.workloads.fit.fitted import fit as fit_observed
    from dxt_replay.workloads.fit.fitted import workload_of, workload_text
    from dxt_replay.workloads.fit.observation import observe

    place = Path(output)
    check_output(place, force=force)
    check_profiled(capture)
    with session.status("fitting"), opened(capture, part=part) as source:
        seen = observe(source)
        keys = fit_observed(seen, batch=batch)
        workload = workload_of(keys)
        found = FittedWorkload(
            output=place,
            ranks=seen.ranks,
            keys=keys,
            workload=workload,
            similarity=_similarity(source, workload, seen.ranks),
            notes=seen.warnings,
        )
        head = [f"Fitted by dxt-replay to {source.named.name}; {found.closeness}.", *found.notes, ""]
    with new_file(place, force=force) as file:
        file.write(workload_text(keys, head).encode())
    return found


@command(
    name="fit",
    like=fit,
    fails=lambda fitted, given: (
        given["fail_under"] is not None and (fitted.similarity is None or 100 * fitted.similarity < given["fail_under"])
    ),
)
def _fit(
    *,
    fail_under: Annotated[
        float | None, Option("Exit 1 below this similarity, such as 95.", "PCT", least=0, most=100)
    ] = None,
    **given: Any,
) -> FittedWorkload:
    return fit(**given)


def _similarity(source: Capture, workload: Workload, ranks: int) -> float | None:
    from dxt_replay.replay.compare.comparison import compare
    from dxt_replay.traces.store.reader import open_capture
    from dxt_replay.traces.store.relation import Relation
    from dxt_replay.workloads.generate.generation import generate

    with tempfile.TemporaryDirectory(prefix="dxt-replay-fit-") as folder:
        place = Path(folder) / "generated.capture"
        generate(workload, ranks, place)
        return compare(source, open_capture(place), relation=Relation.DIFFERENT).similarity.workload_cosine


# ------------------------------------------------------------------------------------------ anonymize
def anonymize(
    capture: CaptureOrPath, output: PathLike, *, key: str | bytes | None = None, force: bool = False
) -> Anonymized:
    """Write a capture that can be shared: keyed hashes replace all names, and the operations stay the same.

    `key`: captures anonymized under the same key get the same names, so `compare` still knows a replay as the replay
    of its recording. A person who has the key can test guesses of names. None: a random key, which is not kept.
    `force` replaces an earlier capture.

        dxt_replay.anonymize("run.capture", "shared.capture")

    Raises: UsageError for an empty key; TargetError for `output`.
    """
    from dxt_replay.replay.anonymize import anonymize_capture

    secret = secrets.token_bytes(_KEY_BYTES) if key is None else key.encode() if isinstance(key, str) else key
    if not secret:
        raise UsageError("the key is empty: give a long random one, or none for a key that is made and not kept")
    with session.status("anonymizing"), opened(capture) as source:
        return anonymize_capture(source, Path(output), secret, random_key=key is None, force=force)


@command(name="anonymize", tidy=True, following=lambda result, given: ("summary", given["output"]))
def _anonymize(
    capture: Source,
    *,
    output: Annotated[PathLike, output("OUT.capture", "The capture to write, such as shared.capture.")],
    key_file: Annotated[
        PathLike | None, Option("Make the names with the key in this file, such as 32 random bytes.", "FILE")
    ] = None,
    force: Force = False,
) -> Anonymized:
    """Write a capture (or a .darshan log) without names, so that it can be given to others.

    Parts of paths, dataset names and the application's own span names become keyed hashes; hosts, user, program, job
    id, environment, warnings and dates go. Operations, times, sizes, steps and known file extensions stay.
    Without a key a random one is made and not kept: then nobody can test a guess.
    With the same key for a recording and its replays, `compare` still knows them.
    """
    return anonymize(capture, output, key=None if key_file is None else _read_key(Path(key_file)), force=force)


def _read_key(path: Path) -> bytes:
    """The bytes of the key file. Raises: UsageError."""
    try:
        with path.open("rb") as file:
            key = file.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--key-file {path} cannot be read: {error.strerror or error}") from error
    if not 0 < len(key) <= _MOST_KEY_BYTES:
        raise UsageError(f"--key-file {path} holds no key, or more than 1 MiB: write 32 random bytes to it")
    return key
