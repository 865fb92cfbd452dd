"""Batches of ranges through obstore: each of two workers fetches the samples of a batch with four threads at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.object_jobs.training import BUCKET, REGION, decoded

SAMPLES, SAMPLE_BYTES, OBJECTS = 480, 131_072, 4


def objects() -> Iterator[tuple[str, bytes]]:
    """Key and content of each object."""
    for number in range(OBJECTS):
        yield f"ranges/{number}.bin", os.urandom(SAMPLES // OBJECTS * SAMPLE_BYTES)


def loader(endpoint: str) -> Any:
    """The DataLoader of the job."""
    from torch.utils.data import DataLoader, Dataset

    tools: list[Any] = []

    class Ranges(Dataset):
        def __len__(self) -> int:
            return SAMPLES

        def __getitems__(self, numbers: list[int]) -> Any:
            if not tools:
                from obstore.store import S3Store

                place: Any = {"endpoint": endpoint, "region": REGION, "skip_signature": True}
                tools.append(S3Store(BUCKET, config=place, client_options={"allow_http": True}))
                tools.append(ThreadPoolExecutor(4))
            return list(tools[1].map(self._sample, numbers))

        def _sample(self, number: int) -> Any:
            import obstore

            place, which = divmod(number, OBJECTS)
            key = f"ranges/{which}.bin"
            found = obstore.get_range(tools[0], key, start=place * SAMPLE_BYTES, length=SAMPLE_BYTES)
            return decoded(bytes(found))

    return DataLoader(Ranges(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
