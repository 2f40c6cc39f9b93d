"""Tests of listings of S3: the result is that of botocore, and anything unusual is left to it."""

from datetime import UTC, datetime
from typing import Any

import botocore.session
import pytest
from botocore.awsrequest import HeadersDict
from botocore.parsers import create_parser

from lance_core.storage.buckets.s3_listing import read_objects

MODEL = botocore.session.get_session().get_service_model("s3").operation_model("ListObjectsV2")
ONE = "<Contents><Key>a/b%20c</Key><LastModified>2026-01-02T03:04:05.678Z</LastModified><Size>7</Size></Contents>"
TAGGED = ONE.replace("</Size>", "</Size><ETag>&quot;x-1&quot;</ETag><StorageClass>STANDARD</StorageClass>")
OWNED = TAGGED.replace("<Size>", "<Owner><ID>9</ID></Owner><Size>")
REST = "<Prefix>a/</Prefix><EncodingType>url</EncodingType><CommonPrefixes><Prefix>a/d/</Prefix></CommonPrefixes>"
NAMED = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
KEYS = ("Key", "Size", "LastModified", "ETag")


def parse(body: str, *, is_read_here: bool, status: int = 200) -> dict[str, Any]:
    response: dict[str, Any] = {"body": body.encode(), "headers": HeadersDict(), "status_code": status}
    result: dict[str, Any] = {}
    if is_read_here:
        read_objects(lambda text: datetime.fromisoformat(text).astimezone(UTC), response, result)
        assert ("Contents" in result) == ("<Contents>" in body)
    parsed: dict[str, Any] = create_parser("rest-xml").parse(response, MODEL.output_shape) | result
    parsed["Contents"] = [{key: each[key] for key in KEYS if key in each} for each in parsed.get("Contents", ())]
    return parsed


@pytest.mark.parametrize("namespace", ["", NAMED])
@pytest.mark.parametrize("objects", ["", ONE, TAGGED + ONE, OWNED * 3])
@pytest.mark.parametrize(
    "token", ["", "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"]
)
def test_a_listing_is_read_as_by_botocore(namespace: str, objects: str, token: str) -> None:
    body = f"<?xml version='1.0'?><ListBucketResult{namespace}>{token}{objects}{REST}</ListBucketResult>"
    assert parse(body, is_read_here=True) == parse(body, is_read_here=False)


@pytest.mark.parametrize(
    "body",
    [
        "<Error><Code>SlowDown</Code></Error>",
        "<ListBucketResult><Contents></Contents></ListBucketResult>",
        f"<ListBucketResult>{ONE.replace('<Size>7</Size>', '')}</ListBucketResult>",
        f"<ListBucketResult>{ONE.replace('<Size>7', '<Size>many')}</ListBucketResult>",
        f"<ListBucketResult>{ONE.replace('2026-', '')}</ListBucketResult>",
        f"<ListBucketResult>{ONE}",
        "",
    ],
)
def test_anything_unusual_is_left_to_botocore(body: str) -> None:
    response, result = {"body": body.encode(), "status_code": 200}, dict[str, Any]()
    read_objects(datetime.fromisoformat, response, result)
    assert (response["body"], result) == (body.encode(), {})


def test_an_error_is_left_to_botocore() -> None:
    body = f"<ListBucketResult>{ONE}</ListBucketResult>".encode()
    response, result = {"body": body, "status_code": 503}, dict[str, Any]()
    read_objects(datetime.fromisoformat, response, result)
    assert (response["body"], result) == (body, {})
