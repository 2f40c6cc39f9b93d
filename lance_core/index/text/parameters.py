"""Parameters of a full-text index: how its texts become terms, and whether it stores positions.

Names and defaults are those of pylance. A segment records the parameters as JSON in `metadata.lance`, and most of them
in its details.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.text_index import decode_details, encode_details
from lance_core.index.supported_types import is_json

TOKENIZERS = ("simple", "whitespace", "raw", "ngram")
GRANULARITIES = ("row", "list_element")
LANGUAGES = (
    "Arabic",
    "Danish",
    "Dutch",
    "English",
    "Finnish",
    "French",
    "German",
    "Greek",
    "Hungarian",
    "Italian",
    "Norwegian",
    "Portuguese",
    "Romanian",
    "Russian",
    "Spanish",
    "Swedish",
    "Tamil",
    "Turkish",
)
_DICTIONARY_TOKENIZERS = ("icu", "jieba", "lindera")
_CODE_FLAGS = ("split_identifiers", "split_on_numerics", "preserve_original", "index_operators")
_NGRAM_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True)
class TextParameters:
    """Parameters of a full-text index."""

    lance_tokenizer: str = "text"
    """Mode of the tokenizer: `text` or `json`, according to the type of the column; `code` is not supported."""
    base_tokenizer: str = "simple"
    language: str = "English"
    with_position: bool = False
    max_token_length: int | None = 40
    """A token of this many bytes or more is dropped."""
    lower_case: bool = True
    stem: bool = True
    remove_stop_words: bool = True
    custom_stop_words: tuple[str, ...] | None = None
    """Stop words that replace those of the language."""
    ascii_folding: bool = True
    min_ngram_length: int = 3
    max_ngram_length: int = 3
    prefix_only: bool = False
    block_size: int = 128
    """Number of documents in a block of a posting list."""
    split_identifiers: bool = False
    split_on_numerics: bool = False
    preserve_original: bool = False
    index_operators: bool = False
    document_granularity: str = "row"
    """The unit that is scored: `row`, or `list_element` for each text of a list. Only the details record it."""

    @classmethod
    def of_options(cls, options: Mapping[str, object]) -> "TextParameters":
        """Return the parameters that a user passed to a build, or raise `InvalidInput`."""
        known = [each.name for each in fields(cls) if each.name not in ("lance_tokenizer", *_CODE_FLAGS)]
        if unknown := sorted(options.keys() - set(known)):
            raise InvalidInput(f"INVERTED has no option {unknown[0]!r}; it has {', '.join(known)}")
        values: dict[str, Any] = dict(options)
        if values.get("base_tokenizer") == "ngram":
            values = {"stem": False, "remove_stop_words": False, **values}
        words = values.get("custom_stop_words")
        if words is not None:
            if not _is_word_list(words):
                raise InvalidInput(f"custom_stop_words={words!r} must be a list of words")
            values["custom_stop_words"] = tuple(words)
        parameters = cls(**values)
        parameters._check()
        return parameters

    @classmethod
    def from_json(cls, recorded: str | Mapping[str, object], *, path: str = "metadata.lance") -> "TextParameters":
        """Return the parameters that `metadata.lance` records. `analyzer_of` checks that this library can analyze
        texts with them."""
        try:
            values: Any = json.loads(recorded) if isinstance(recorded, str) else dict(recorded)
            known = {each.name for each in fields(cls)}
            found = {name: value for name, value in values.items() if name in known}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupt("the parameters of the full-text index do not parse", path=path, field="params") from error
        return cls._of_recorded(found, path, "params")

    @classmethod
    def from_details(cls, details: bytes, *, path: str = "index_details") -> "TextParameters":
        """Return the parameters in the details of a segment, which lack custom stop words."""
        return cls._of_recorded(decode_details(details, path=path), path, "index_details")

    @classmethod
    def _of_recorded(cls, found: Mapping[str, Any], path: str, field: str) -> "TextParameters":
        """Return recorded parameters, or raise `Corrupt` for a value of another type."""
        for name, value in found.items():
            if not _has_recorded_type(name, value):
                problem = f"the parameter {name!r} of the full-text index cannot be {value!r:.80}"
                raise Corrupt(problem, path=path, field=field)
        words = found.get("custom_stop_words")
        return cls(**{**found, "custom_stop_words": None if words is None else tuple(words)})

    def for_column(self, column: pa.DataType) -> "TextParameters":
        """Return the parameters for a column of this type."""
        return replace(self, lance_tokenizer="json") if is_json(column) else self

    def to_json(self) -> str:
        """Return the parameters as `metadata.lance` records them."""
        recorded = {name: value for name, value in self._recorded().items() if name != "document_granularity"}
        return json.dumps(recorded, separators=(",", ":"), ensure_ascii=False)

    def to_details(self) -> bytes:
        return encode_details(self._recorded())

    def _recorded(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _check(self) -> None:
        self._check_tokenizer()
        for name in ("with_position", "lower_case", "stem", "remove_stop_words", "ascii_folding", "prefix_only"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name}={getattr(self, name)!r} must be True or False")
        if self.language not in LANGUAGES:
            raise InvalidInput(f"language={self.language!r} is not supported; use one of {', '.join(LANGUAGES)}")
        if self.max_token_length is not None and (type(self.max_token_length) is not int or self.max_token_length < 1):
            raise InvalidInput(f"max_token_length={self.max_token_length!r} must be a whole number from 1, or None")
        if self.document_granularity not in GRANULARITIES:
            raise InvalidInput(
                f"document_granularity={self.document_granularity!r} is unknown; use one of {', '.join(GRANULARITIES)}"
            )
        if self.block_size != 128:
            raise InvalidInput(
                f"block_size={self.block_size!r} is not supported; 128 is the block size of format version 2"
            )
        lengths = self.min_ngram_length, self.max_ngram_length
        if any(type(length) is not int for length in lengths) or not 1 <= min(lengths) <= max(lengths):
            raise InvalidInput(
                f"min_ngram_length and max_ngram_length are {lengths}; both must be whole numbers from 1"
            )
        if self.base_tokenizer == "ngram" and (lengths[0] > lengths[1] or lengths[1] > _NGRAM_LENGTH_MAX):
            raise InvalidInput(
                f"min_ngram_length={lengths[0]} must be at most max_ngram_length={lengths[1]}, and that at most "
                f"{_NGRAM_LENGTH_MAX}"
            )

    def _check_tokenizer(self) -> None:
        reason = _reason_against_tokenizer(self)
        if reason is not None:
            raise InvalidInput(f"{reason}; use one of {', '.join(TOKENIZERS)}")


def granularity_of(metadata: IndexMetadata) -> str:
    """Return the unit that a segment scores, which its details record."""
    details = decode_details(bytes(metadata.message.index_details.value), path="index_details")
    return str(details.get("document_granularity", "row"))


def reason_unsupported(parameters: TextParameters) -> str | None:
    """Return why texts cannot be analyzed with these parameters, or `None`."""
    return _reason_against_tokenizer(parameters) or _reason_against_values(parameters)


def _reason_against_tokenizer(parameters: TextParameters) -> str | None:
    tokenizer = parameters.base_tokenizer
    if parameters.lance_tokenizer not in ("text", "json"):
        return f"the tokenizer mode {parameters.lance_tokenizer!r} is not supported, only 'text' and 'json'"
    if any(getattr(parameters, flag) for flag in _CODE_FLAGS):
        return "the tokenizer for source code is not supported"
    if tokenizer in TOKENIZERS:
        return None
    if str(tokenizer).partition("/")[0] in _DICTIONARY_TOKENIZERS:
        return f"base_tokenizer={tokenizer!r} is not supported, since it needs dictionaries that are not part of Python"
    return f"base_tokenizer={tokenizer!r} is unknown"


def _reason_against_values(parameters: TextParameters) -> str | None:
    if parameters.document_granularity not in GRANULARITIES:
        return f"document_granularity={parameters.document_granularity!r} is unknown"
    shortest, longest = parameters.min_ngram_length, parameters.max_ngram_length
    if parameters.base_tokenizer == "ngram" and not 1 <= shortest <= longest <= _NGRAM_LENGTH_MAX:
        return f"n-grams of {shortest} to {longest} characters are not supported, only of 1 to {_NGRAM_LENGTH_MAX}"
    uses_language = parameters.stem or (parameters.remove_stop_words and parameters.custom_stop_words is None)
    if uses_language and parameters.language not in LANGUAGES:
        return f"the language {parameters.language!r} is not supported"
    return None


_DEFAULTS = TextParameters()


def _has_recorded_type(name: str, value: object) -> bool:
    """Return whether a value that `metadata.lance` records for a parameter has the type of the parameter."""
    if name == "custom_stop_words":
        return value is None or _is_word_list(value)
    if name == "max_token_length" and value is None:
        return True
    return type(value) is type(getattr(_DEFAULTS, name))


def _is_word_list(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(isinstance(word, str) for word in value)
