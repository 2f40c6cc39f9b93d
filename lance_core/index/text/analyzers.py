"""Analyzer registry: returns the analyzer for the parameters of an index, and caches it."""

from functools import lru_cache

from lance_core.index.text.analyzer import Analyzer
from lance_core.index.text.json_analyzer import JsonAnalyzer
from lance_core.index.text.parameters import TextParameters

_ANALYZERS_MAX = 64


@lru_cache(maxsize=_ANALYZERS_MAX)
def analyzer_of(parameters: TextParameters) -> Analyzer:
    """Return the analyzer for these parameters. Raise `Unsupported` for a tokenizer that this library lacks, and
    `MissingDependency` if stemming needs a package that is not installed."""
    return JsonAnalyzer(parameters) if parameters.lance_tokenizer == "json" else Analyzer(parameters)
