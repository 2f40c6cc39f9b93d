"""The analyzer returns the terms and positions that pylance indexes, in every language and with every tokenizer."""

import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Corrupt, InvalidInput, Unsupported
from lance_core.format._pb.table_pb2 import InvertedIndexDetails
from lance_core.index.text.analyzer import Analyzer
from lance_core.index.text.analyzers import analyzer_of
from lance_core.index.text.parameters import LANGUAGES, TextParameters
from lance_core.index.text.stop_words import stop_words_of
from tests.lance_core.index.text.pylance_index import index_of_pylance

LETTERS = "ÀÉîñçßøÆŁĐÞİı\u03a3\u03c3\u03c2\u0391\u03c9Жжя你好にハ한글அங்குहिंदीعربي²½ﬁ𝐀😀\u0301\u00a0\u3000_-'.,1٣"
SEPARATORS = (" ", " ", " ", "  ", ", ", "\n", "-", "\t", "\u2003")


def random_word(generator: random.Random, words: list[str]) -> str:
    match generator.randrange(8):
        case 0 | 1:
            return generator.choice(words)
        case 2:
            return generator.choice(words).title() + generator.choice(words)
        case 3:
            return "".join(generator.choices(LETTERS, k=generator.randint(1, 7)))
        case 4:
            ranges = ((1, 0x2FF), (0x300, 0xD7FF), (0xE000, 0x1FFFF))
            return "".join(chr(generator.randint(*generator.choice(ranges))) for _ in range(generator.randint(1, 5)))
        case 5:
            return "x" * generator.choice([38, 39, 40, 41, 100])
        case _:
            return "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(1, 9)))


def random_text(generator: random.Random, words: list[str]) -> str:
    count = generator.choice([0, 1, 3, 8, 20])
    return "".join(random_word(generator, words) + generator.choice(SEPARATORS) for _ in range(count))


def random_parameters(generator: random.Random, language: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {"language": language}
    parameters["base_tokenizer"] = generator.choice(["simple", "whitespace", "raw", "ngram"])
    for flag in ("stem", "remove_stop_words", "lower_case", "ascii_folding"):
        if generator.random() < 0.5:
            parameters[flag] = generator.random() < 0.5
    if generator.random() < 0.4:
        parameters["max_token_length"] = generator.choice([None, 5, 10])
    if generator.random() < 0.3:
        parameters["custom_stop_words"] = ["the", "De", "x" * 39]
    if parameters["base_tokenizer"] == "ngram":
        parameters |= {"min_ngram_length": generator.choice([1, 3]), "max_ngram_length": generator.choice([3, 4])}
        parameters["prefix_only"] = generator.random() < 0.5
    return parameters


def check(directory: Path, texts: pa.Array, parameters: dict[str, Any]) -> None:
    expected, lengths = index_of_pylance(directory, texts, **parameters)
    analyzer = analyzer_of(TextParameters.of_options(parameters))
    tokens = analyzer.analyze_all(texts)
    terms = tokens.terms.to_pylist()
    actual: dict[tuple[str, int], list[int]] = {}
    columns = (tokens.documents.tolist(), tokens.term_numbers.tolist(), tokens.positions.tolist())
    for document, number, position in zip(*columns, strict=True):
        actual.setdefault((terms[number], document), []).append(position)
    assert actual == expected, parameters
    assert (
        dict(zip(*(each.tolist() for each in np.unique(tokens.documents, return_counts=True)), strict=True)) == lengths
    )
    if not pa.types.is_list(texts.type):
        for row, text in enumerate(texts.to_pylist()[:8]):
            alone = [(token.text, token.position) for token in analyzer.analyze(text or "")] if text is not None else []
            assert sorted(alone) == sorted(
                (term, at) for (term, number), all in expected.items() if number == row for at in all
            )


@pytest.mark.parametrize("seed", range(3))
def test_terms_and_positions_are_those_of_pylance(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    for number in range(8):
        language = generator.choice(LANGUAGES)
        words = sorted(stop_words_of(language))
        texts = [random_text(generator, words) if generator.random() > 0.05 else None for _ in range(30)]
        values = pa.array(texts, generator.choice([pa.string(), pa.large_string()]))
        if number % 4 == 3:
            lists = [[random_text(generator, words) or None for _ in range(generator.randrange(4))] for _ in range(20)]
            values = pa.array([*lists, None], pa.list_(values.type))
        check(tmp_path, values, random_parameters(generator, language))


def test_stems_and_stop_words_are_those_of_pylance(tmp_path: Path) -> None:
    generator = random.Random(7)
    for language in LANGUAGES:
        words = sorted(stop_words_of(language))
        endings = [word[-generator.randint(1, 4) :] for word in words]
        made = [generator.choice(words)[:5] + generator.choice(endings) for _ in range(300)]
        check(tmp_path, pa.array([*words, *made]), {"language": language, "base_tokenizer": "whitespace"})


def test_characters_of_a_token_are_found_in_its_text() -> None:
    text = "Żółć — the Café\u2019s 3 cats"
    tokens = analyzer_of(TextParameters()).analyze(text)
    assert [(text[token.start : token.end], token.text, token.position) for token in tokens] == [
        ("Żółć", "zolc", 0),
        ("Café", "cafe", 2),
        ("s", "s", 3),
        ("3", "3", 4),
        ("cats", "cat", 5),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_tokenizer": "icu"}, "'icu' is not supported, since it needs dictionaries"),
        ({"base_tokenizer": "jieba/default"}, "needs dictionaries"),
        ({"base_tokenizer": "lindera/ipadic"}, "needs dictionaries"),
        ({"base_tokenizer": "words"}, "'words' is unknown; use one of simple, whitespace, raw, ngram"),
        ({"language": "Polish"}, "language='Polish' is not supported; use one of Arabic"),
        ({"block_size": 256}, "block_size=256"),
        ({"stem": 1}, "stem=1 must be True or False"),
        ({"max_token_length": 0}, "max_token_length=0"),
        ({"base_tokenizer": "ngram", "min_ngram_length": 4}, "min_ngram_length=4 must be at most max_ngram_length=3"),
        ({"custom_stop_words": "the"}, "must be a list of words"),
        ({"custom_stop_words": 3}, "must be a list of words"),
        ({"custom_stop_words": ["the", 3]}, "must be a list of words"),
        ({"tokenizer": "simple"}, "INVERTED has no option 'tokenizer'; it has base_tokenizer"),
    ],
)
def test_invalid_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        TextParameters.of_options(options)
    assert message in str(error.value)


WRONG_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    5,
    2**40,
    1.5,
    "",
    "x",
    "text",
    "ngram",
    [],
    ["a"],
    [1],
    {},
    {"a": [None]},
]
"""Values of JSON of every type, for parameters whose type most of them do not have."""


@pytest.mark.parametrize("name", [each.name for each in fields(TextParameters)])
def test_recorded_parameters_of_other_types_are_corrupt(name: str) -> None:
    """Parameters that a damaged or hostile index records raise one of two errors, or analyze texts."""
    refused = 0
    for value in WRONG_VALUES:
        for tokenizer in ("simple", "ngram"):
            try:
                recorded = TextParameters.from_json(json.dumps({"base_tokenizer": tokenizer, name: value}))
                Analyzer(recorded).analyze("Some texts")
                hash(recorded)
            except (Corrupt, Unsupported):
                refused += 1
    assert refused >= 12
    for text in ("[]", "3", "null", "{", "[" * 100_000):
        with pytest.raises(Corrupt, match="do not parse"):
            TextParameters.from_json(text)


def test_details_with_another_value_as_language_are_corrupt() -> None:
    for value in WRONG_VALUES:
        if not isinstance(value, str):
            details = InvertedIndexDetails(language=json.dumps(value)).SerializeToString()
            with pytest.raises(Corrupt, match="'language' of the full-text index cannot be"):
                TextParameters.from_details(details)
