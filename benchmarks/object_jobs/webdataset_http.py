"""Shards of a WebDataset over HTTP, streamed by two workers."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from typing import Any

from benchmarks.object_jobs.training import BUCKET, decoded

SHARDS, SAMPLES, SAMPLE_BYTES = 8, 40, 131_072


def objects() -> Iterator[tuple[str, bytes]]:
    """Key and content of each object."""
    for shard in range(SHARDS):
        found = io.BytesIO()
        with tarfile.open(fileobj=found, mode="w") as archive:
            for number in range(SAMPLES):
                about = tarfile.TarInfo(f"{shard:02d}{number:04d}.bin")
                about.size = SAMPLE_BYTES
                archive.addfile(about, io.BytesIO(os.urandom(SAMPLE_BYTES)))
        yield f"shards/{shard:04d}.tar", found.getvalue()


def loader(endpoint: str) -> Any:
    """The DataLoader of the job."""
    import webdataset
    from torch.utils.data import DataLoader

    urls = [f"{endpoint}/{BUCKET}/shards/{shard:04d}.tar" for shard in range(SHARDS)]
    data = webdataset.WebDataset(urls, shardshuffle=False).map(lambda sample: decoded(sample["bin"]))
    return DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True)
