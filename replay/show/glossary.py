"""The words of the tables and options, explained; docs/glossary.md is made of them. Pure."""

from __future__ import annotations

WORDS = {
    "accelerator utilisation": "Share of the training loop in which the accelerator (or the CPU in its place) "
    "computes.",
    "anchor": "A small write that the program makes inside a profiler annotation, so that both clocks see one instant.",
    "at stake": "The most that a perfect remedy for a finding could gain. Remedies of one cause do not add up.",
    "capture": "A directory NAME.capture with everything that was recorded of a run; a replay is a capture too.",
    "checkpoint": "Saving the state of the training to storage.",
    "collective": "An exchange between ranks, such as allreduce, in which each waits for the others.",
    "compute": "Time in which the training computes, from the profile.",
    "consecutive": "An access that begins at the byte after the previous one of the same rank and file.",
    "cosine": "Similarity of two workloads as one number, 1 for equal shapes. It does not see scale.",
    "counters": "Darshan's totals per file. They cover the whole run but do not say when anything happened.",
    "change point": "A place in a history where the runs after it differ from those before it by more than the "
    "threshold.",
    "coverage": "Trace coverage: the share of the bytes, or operations, that was traced, of all that Darshan counted "
    "and of what the job is known to have read through mapped files and sockets.",
    "drift": "How much faster or slower than the source a replay's schedule runs, in parts per million.",
    "DXT": "Darshan's extended tracing: start, end, offset and length of every read and write.",
    "elapsed": "How long the operations lasted: from the first to the last. `run` includes opens and closes; `compare` "
    "starts and ends with a read, a write or a span of the profile. Where a replay kept the recorded times, `compare` "
    "counts the last read or write to its begin, because its duration is the storage's. The run time is that of the "
    "whole job.",
    "exposed I/O": "I/O outside compute; hidden I/O is inside compute.",
    "failed": "Operations that returned an error or fewer bytes than recorded.",
    "in flight": "Begun and not ended yet. As a number: how many operations are in flight at once, on average.",
    "input wait": "Time in which the training loop waits for its next batch, for storage or for preprocessing.",
    "generated": "Made from the description of a workload; nobody recorded it.",
    "I/O time": "Sum: the durations of all operations added. Union: time in which at least one was in flight.",
    "jitter": "How late this machine wakes a thread that does nothing else: lag below it is not the replay's.",
    "KS": "Kolmogorov-Smirnov distance: the largest difference of two cumulative distributions, 0 for equal ones.",
    "lag": "How long after it was due an operation began: begin - due.",
    "lane": "One sequence of operations of a rank, such as the calls of one thread.",
    "latency": "How long an operation took: end - begin.",
    "loop": "The training loop: from the start of the first step to the end of the last.",
    "pace": "When a replay makes an operation: at its recorded time, after its think time, when "
    "the steps allow it, at once.",
    "pipeline": "I/O together with the work on input (decoding, batching).",
    "rank": "One process of the training job. -1 in a table stands for all ranks together.",
    "record": "A JSON file with the runs, environment and verdict of an experiment, which `regress --record` writes.",
    "random": "An access whose place does not follow from the two before.",
    "reading": "How a DLIO file is understood: as DLIO's documentation says, or as a version of its code does.",
    "reconstructed": "Operations that were not traced but follow from counters. They are in no total of "
    "traced operations.",
    "rest": "Time of a step in none of compute, input wait, I/O, collective and checkpoint.",
    "response": "How long after it was due an operation ended: end - due, that is lag and latency together.",
    "run time": "How long the whole job ran, by Darshan: it includes the start of the program.",
    "sequential": "An access at a higher offset than the previous one of the same rank and file.",
    "storage limit": "How much shorter the training would be with infinitely fast storage, by its causal model: which "
    "operation waits for what is kept, compute and decoding last as recorded, operations last no time.",
    "step": "One iteration of the training loop, as the profile marks it.",
    "stripe": "On Lustre: the piece of a file that lies on one storage target.",
    "think time": "Time between the end of an operation and the beginning of the next on its lane.",
    "traced": "Recorded one by one, with start and end.",
    "twin": "Files of the recorded sizes and layout, with made-up data, that a replay reads instead of the real data.",
    "warm-up": "The first step where it is much longer than the others: compiling, opening files, filling buffers.",
    "Wasserstein": "How far one distribution must be moved to become another, in the unit of the quantity.",
    "workload": "The description of a training job: its files, how they are read, how long a step computes.",
}
"""Word -> what it means, in one or two sentences."""


def explained(part: str) -> tuple[tuple[str, str], ...]:
    """Words in which `part` occurs, each with its meaning, by the alphabet."""
    found = ((word, meaning) for word, meaning in WORDS.items() if part.lower() in word.lower())
    return tuple(sorted(found, key=lambda entry: entry[0].lower()))


def glossary_page() -> str:
    """docs/glossary.md."""
    lines = [f"- **{word}**: {meaning}" for word, meaning in explained("")]
    return "\n".join(["# Glossary", "", "Also printed by `dxt-replay glossary`.", "", *lines, ""])
