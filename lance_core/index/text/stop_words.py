"""Stop words of each language: the words that pylance drops, one line of `stop_words.txt` per language."""

from collections.abc import Mapping
from functools import cache
from importlib import resources


@cache
def stop_words_of(language: str) -> frozenset[str]:
    """Return the stop words of a language.

    >>> "the" in stop_words_of("English"), "not" in stop_words_of("English")
    (True, False)
    """
    return frozenset(_lines()[language].split())


@cache
def _lines() -> Mapping[str, str]:
    text = resources.files(__package__).joinpath("stop_words.txt").read_text(encoding="utf-8")
    pairs = (line.partition(": ") for line in text.splitlines())
    return {language: words for language, _, words in pairs}
