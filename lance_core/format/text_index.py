"""Details of a full-text index in the index section: the message that repeats most parameters of its analyzer."""

import json
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt
from lance_core.format import size_guard
from lance_core.format._pb import table_pb2

TEXT_TYPE_URL = "/lance.table.InvertedIndexDetails"
_PLAIN_FIELDS = (
    "base_tokenizer",
    "with_position",
    "lower_case",
    "stem",
    "remove_stop_words",
    "ascii_folding",
    "min_ngram_length",
    "max_ngram_length",
    "prefix_only",
    "block_size",
)
_FILE_FORMAT_VERSION = 2
_GRANULARITIES = {
    "row": table_pb2.InvertedIndexDetails.ROW,
    "list_element": table_pb2.InvertedIndexDetails.LIST_ELEMENT,
}


def encode_details(parameters: Mapping[str, object]) -> bytes:
    """Return the details for the parameters of an analyzer, by their names in the file `metadata.lance`."""
    message = table_pb2.InvertedIndexDetails(posting_format_version=_FILE_FORMAT_VERSION)
    message.language = json.dumps(parameters["language"])
    for name in _PLAIN_FIELDS:
        setattr(message, name, parameters[name])
    max_token_length = parameters["max_token_length"]
    message.document_granularity = _GRANULARITIES[str(parameters["document_granularity"])]
    if isinstance(max_token_length, int):
        message.max_token_length = max_token_length
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def decode_details(data: bytes, *, path: str) -> dict[str, object]:
    """Return the parameters in the details; none of them if the details are empty, as old indices have them. Custom
    stop words are recorded in `metadata.lance` alone, and `document_granularity` here alone."""
    if not data:
        return {}
    size_guard.check_message(data, path=path, kind=table_pb2.InvertedIndexDetails)
    try:
        message = table_pb2.InvertedIndexDetails.FromString(data)
        language = json.loads(message.language) if message.language else "English"
    except (DecodeError, ValueError) as error:
        raise Corrupt("the details of the full-text index do not parse", path=path, field="index_details") from error
    parameters: dict[str, object] = {
        name: getattr(message, name)
        for name in _PLAIN_FIELDS
        if name not in ("base_tokenizer", "block_size") or message.HasField(name)
    }
    granularities = {number: name for name, number in _GRANULARITIES.items()}
    has_limit = message.HasField("max_token_length")
    return {
        **parameters,
        "language": language,
        "max_token_length": message.max_token_length if has_limit else None,
        "document_granularity": granularities.get(message.document_granularity, str(message.document_granularity)),
    }
