"""A training loop on a tf.data pipeline, simulated element by element: an independent truth for the causal model.

A `readers`-wide interleave takes one record of each of its files in turn; a file is read in chunks on demand. Behind it
lie a shuffle buffer that emits only while it is full, or once the input is exhausted, a batch, and a prefetch buffer.
One thread runs all of it, as in a pipeline without parallel map; with `readers` of 2 each file has a thread that reads
one chunk ahead of the record that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.capture_builder import File, Op, Span

US, MS = 1_000, 1_000_000
CHUNK_BYTES = 262_144
MAKER, LOOP = 100, 77


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPipeline:
    """What is trained. All times in ns; `batches` an epoch follow from the records."""

    files: int = 6
    chunks: int = 8
    chunk_records: int = 13
    batch: int = 16
    shuffle: int = 0
    prefetch: int = 2
    readers: int = 1
    epochs: int = 2
    cached: bool = False
    record_ns: int = 120 * US
    compute_ns: int = 9 * MS
    between_ns: int = 20 * MS


@dataclass(slots=True)
class Run:
    """What a profiler and Darshan see of a run. `loop_ns`: from the first step's begin to the last one's end."""

    ops: list[Op] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    loop_ns: int = 0


def files(pipeline: InputPipeline) -> list[File]:
    """The files that it reads."""
    return [File(f"/data/{n}.tfrecord", size=pipeline.chunks * CHUNK_BYTES) for n in range(pipeline.files)]


def run(pipeline: InputPipeline, read_ns: int) -> Run:
    """Train, where each read lasts `read_ns`."""
    return _Simulation(pipeline, read_ns).run()


class _Simulation:
    def __init__(self, pipeline: InputPipeline, read_ns: int) -> None:
        self._pipeline, self._read_ns = pipeline, read_ns
        self._run = Run()
        self._reads: list[tuple[int, int, int, int, int]] = []  # lane, file, offset, start, end
        self._steps = 0

    def run(self) -> Run:
        """The whole run."""
        pipeline, now = self._pipeline, MS
        begun = now
        for epoch in range(pipeline.epochs):
            now = self._epoch(now, reads=epoch == 0 or not pipeline.cached)
            now += pipeline.between_ns if epoch + 1 < pipeline.epochs else 0
        self._run.loop_ns = self._run.spans[-1].end_ns - begun
        self._run.ops.sort(key=lambda op: op.start_ns)
        return self._run

    def _epoch(self, now: int, *, reads: bool) -> int:
        pipeline = self._pipeline
        records = pipeline.files * pipeline.chunks * pipeline.chunk_records
        batches = records // pipeline.batch
        source = _Interleave(pipeline, self._read_ns) if reads else None
        taken, fetched, made_until = 0, [], now
        loop = now
        for batch in range(batches):
            # Room for a batch: `prefetch` may be in the buffer while one more is made.
            room = fetched[batch - pipeline.prefetch] if batch >= pipeline.prefetch else now
            maker = begin = max(made_until, room)
            wanted = min(records, (batch + 1) * pipeline.batch + pipeline.shuffle)
            mine: list[tuple[int, int, int, int, int]] = []
            while taken < wanted:
                if source is not None:
                    maker = source.record(maker, mine)
                maker += pipeline.record_ns
                taken += 1
            made_until = maker
            wait = loop
            loop = max(loop, made_until) + 30 * US
            fetched.append(loop)
            self._note(batch, begin, made_until, wait, loop, mine)
            loop += pipeline.compute_ns
            self._run.spans.append(Span("step", wait, loop, name="train", thread=LOOP, step=self._steps))
            self._steps += 1
        return loop

    def _note(
        self, batch: int, begin: int, end: int, wait: int, got: int, reads: list[tuple[int, int, int, int, int]]
    ) -> None:
        spans = self._run.spans
        spans.append(Span("input_wait", wait, got, name="IteratorGetNext", thread=LOOP, step=self._steps))
        spans.append(Span("pipeline", begin, end, name="PrefetchProduce", thread=MAKER, fetched_ns=got))
        for lane, file, offset, start, finish in reads:
            self._run.ops.append(
                Op("read", file, offset=offset, length=CHUNK_BYTES, start_ns=start, end_ns=finish, lane=lane)
            )
            if self._pipeline.readers > 1:
                place = MAKER + 1 + lane
                spans.append(
                    Span("pipeline", start - US, finish + US, name="InterleaveProduce", thread=place, fetched_ns=got)
                )


class _Interleave:
    """Gives one record after the other, of `readers` files in turn."""

    def __init__(self, pipeline: InputPipeline, read_ns: int) -> None:
        self._pipeline, self._read_ns = pipeline, read_ns
        self._left = [0] * pipeline.readers
        self._file = list(range(pipeline.readers))
        self._chunk = [0] * pipeline.readers
        self._next_file = pipeline.readers
        self._turn = 0
        self._ahead: list[int | None] = [None] * pipeline.readers

    def record(self, now: int, reads: list[tuple[int, int, int, int, int]]) -> int:
        """When the next record is there, if it is asked for `now`."""
        slot = self._turn
        self._turn = (self._turn + 1) % self._pipeline.readers
        if self._left[slot] == 0:
            now = self._read(slot, now, reads)
            # The other files ran out in the same round: their threads read at the same time.
            for other in range(self._pipeline.readers):
                if other != slot and self._left[other] == 0 and self._ahead[other] is None:
                    self._ahead[other] = self._begin_read(other, now - self._read_ns, reads)
        self._left[slot] -= 1
        return now

    def _read(self, slot: int, now: int, reads: list[tuple[int, int, int, int, int]]) -> int:
        end = self._ahead[slot]
        if end is None:
            end = self._begin_read(slot, now, reads)
        self._ahead[slot] = None
        self._left[slot] = self._pipeline.chunk_records
        return max(now, end)

    def _begin_read(self, slot: int, now: int, reads: list[tuple[int, int, int, int, int]]) -> int:
        if self._chunk[slot] == self._pipeline.chunks:
            self._file[slot], self._chunk[slot] = self._next_file, 0
            self._next_file += 1
        end = now + self._read_ns
        reads.append((slot, self._file[slot] % self._pipeline.files, self._chunk[slot] * CHUNK_BYTES, now, end))
        self._chunk[slot] += 1
        return end
