"""The model both example agents use: wordllama's, from inside its wheel. 256 dimensions, no download, no GPU."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import wordllama

# The model's package turns everyone's logging on; one line for each HTTP call would be too much.
logging.getLogger("httpx2").setLevel(logging.WARNING)

MODEL = "wordllama-l2-256"


@cache
def _model() -> Any:
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def embed(texts: list[str]) -> list[list[float]]:
    """A vector of length 1 for each text."""
    return [[round(float(x), 6) for x in row] for row in _model().embed(texts, norm=True)]


def similarity(a: list[float], b: list[float]) -> float:
    """Cosine of two vectors of length 1: 1 for the same direction, 0 for nothing in common."""
    return sum(x * y for x, y in zip(a, b, strict=True))
