"""Records of four objects by ranges through boto3, drawn at random by three workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from benchmarks.object_jobs.training import BUCKET, REGION, decoded

SAMPLES, SAMPLE_BYTES, OBJECTS = 240, 65_536, 4


def objects() -> Iterator[tuple[str, bytes]]:
    """Key and content of each object."""
    for number in range(OBJECTS):
        yield f"records/{number}.bin", os.urandom(SAMPLES // OBJECTS * SAMPLE_BYTES)


def loader(endpoint: str) -> Any:
    """The DataLoader of the job."""
    from torch.utils.data import DataLoader, Dataset

    clients: list[Any] = []

    class Records(Dataset):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, number: int) -> Any:
            if not clients:
                import boto3
                from botocore import UNSIGNED
                from botocore.config import Config

                config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"})
                clients.append(boto3.client("s3", endpoint_url=endpoint, region_name=REGION, config=config))
            place, which = divmod(number, OBJECTS)
            span = f"bytes={place * SAMPLE_BYTES}-{(place + 1) * SAMPLE_BYTES - 1}"
            found = clients[0].get_object(Bucket=BUCKET, Key=f"records/{which}.bin", Range=span)
            return decoded(found["Body"].read())

    return DataLoader(Records(), batch_size=8, shuffle=True, num_workers=3, prefetch_factor=3, persistent_workers=True)
