"""Stemming: the Snowball algorithms of the package PyStemmer, which return the stems that pylance indexes."""

from collections.abc import Sequence

from lance_core.storage.optional_packages import import_package


class Stemmer:
    """Stemmer for one language."""

    def __init__(self, language: str) -> None:
        library = import_package("Stemmer", extra="search", needed_for="a full-text index with stemming")
        self._algorithm = library.Stemmer(language.lower(), 0)

    def stem(self, words: Sequence[str]) -> list[str]:
        stems: list[str] = self._algorithm.stemWords(words)
        return stems
