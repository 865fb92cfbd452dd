"""A whole object a sample through s3fs, drawn at random by two workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from benchmarks.object_jobs.training import BUCKET, REGION, decoded

SAMPLES, SAMPLE_BYTES = 160, 98_304


def objects() -> Iterator[tuple[str, bytes]]:
    """Key and content of each object."""
    for number in range(SAMPLES):
        yield f"files/{number:04d}.bin", os.urandom(SAMPLE_BYTES)


def loader(endpoint: str) -> Any:
    """The DataLoader of the job."""
    from torch.utils.data import DataLoader, Dataset

    systems: list[Any] = []

    class Files(Dataset):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, number: int) -> Any:
            if not systems:
                import s3fs

                systems.append(
                    s3fs.S3FileSystem(anon=True, endpoint_url=endpoint, client_kwargs={"region_name": REGION})
                )
            with systems[0].open(f"{BUCKET}/files/{number:04d}.bin", "rb") as file:
                return decoded(file.read())

    return DataLoader(Files(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
