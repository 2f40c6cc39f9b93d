"""Buckets of object store emulators: their URIs, and the storage options that reach them."""

from collections.abc import Mapping
from dataclasses import dataclass

KEY_ID, SECRET = "not-a-key-id", "not-a-secret-but-looked-for"


@dataclass(frozen=True, slots=True)
class Bucket:
    """URI of an empty bucket and the storage options that reach it."""

    uri: str
    options: Mapping[str, str]


def s3_options(endpoint: str) -> dict[str, str]:
    return {
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "aws_endpoint": endpoint,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
