"""Tensors of safetensors files by ranges: the length of the header, the header, and one GET for each tensor."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from benchmarks.object_jobs.training import BUCKET, REGION, decoded

FILES, TENSORS, VALUES = 40, 8, 24_576


def objects() -> Iterator[tuple[str, bytes]]:
    """Key and content of each object, in the format of safetensors."""
    size = 4 * VALUES
    about = {
        str(number): {"dtype": "F32", "shape": [VALUES], "data_offsets": [number * size, (number + 1) * size]}
        for number in range(TENSORS)
    }
    text = json.dumps(about).encode()
    for number in range(FILES):
        yield f"tensors/{number:04d}.safetensors", struct.pack("<Q", len(text)) + text + bytes(TENSORS * size)


def loader(endpoint: str) -> Any:
    """The DataLoader of the job."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    clients: list[Any] = []

    def fetched(key: str, begin: int, end: int) -> bytes:
        if not clients:
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config

            config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"})
            clients.append(boto3.client("s3", endpoint_url=endpoint, region_name=REGION, config=config))
        found = clients[0].get_object(Bucket=BUCKET, Key=key, Range=f"bytes={begin}-{end - 1}")
        content: bytes = found["Body"].read()
        return content

    class Tensors(Dataset):
        def __len__(self) -> int:
            return FILES

        def __getitem__(self, number: int) -> Any:
            key = f"tensors/{number:04d}.safetensors"
            start = 8 + struct.unpack("<Q", fetched(key, 0, 8))[0]
            about = json.loads(fetched(key, 8, start))
            spans = (about[name]["data_offsets"] for name in sorted(about))
            return torch.stack([decoded(fetched(key, start + begin, start + end)) for begin, end in spans])

    return DataLoader(Tensors(), batch_size=None, shuffle=True, num_workers=2, persistent_workers=True)
