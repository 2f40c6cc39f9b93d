"""S3 listing: reads the objects of a listing from its XML.

botocore builds its result in several passes over each element, which takes 20 to 40 milliseconds of processor time for
a page of a thousand objects, ten times as long as this module. Anything unusual is left to botocore.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

_ROOT = "ListBucketResult"
_NAMES = ("Contents", "Key", "Size", "LastModified", "ETag")


def read_objects(
    parse_time: Callable[[str], datetime], response_dict: dict[str, Any], customized_response_dict: dict[str, Any]
) -> None:
    """Move the objects of a listing from the response to the result, before botocore parses the response.

    `response_dict` is the HTTP response, and entries of `customized_response_dict` become part of the result."""
    if response_dict["status_code"] != 200:
        return
    try:
        objects, rest = split_listing(response_dict["body"], parse_time)
    except (ElementTree.ParseError, LookupError, TypeError, ValueError):
        return
    response_dict["body"] = rest
    if objects:
        customized_response_dict["Contents"] = objects


def split_listing(body: bytes, parse_time: Callable[[str], datetime]) -> tuple[list[dict[str, Any]], bytes]:
    """Return the objects of a listing as botocore returns them, and the listing without them. Raise `ValueError` or
    `LookupError` for anything else, and for objects without a name, size or time."""
    root = ElementTree.fromstring(body)
    namespace, found, after = root.tag.rpartition(_ROOT)
    if not found or after:
        raise ValueError(f"the listing is an XML element {root.tag}")
    tag, key, size, modified, etag = (f"{namespace}{name}" for name in _NAMES)
    rest = ElementTree.Element(root.tag)
    objects = []
    for child in root:
        if child.tag != tag:
            rest.append(child)
            continue
        texts = {each.tag: each.text or "" for each in child}
        if not texts.get(key):
            raise ValueError("an object has no name")
        listed = {"Key": texts[key], "Size": int(texts[size]), "LastModified": parse_time(texts[modified])}
        objects.append(listed | ({"ETag": texts[etag]} if etag in texts else {}))
    return objects, ElementTree.tostring(rest)
