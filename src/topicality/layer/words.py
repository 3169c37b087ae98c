"""Word lists that ship as data: small talk, and the function words that tell languages apart. Read once a process."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from topicality.core.text import FunctionWords, fold, sections, words


@lru_cache(maxsize=1)
def small_talk() -> tuple[frozenset[tuple[str, ...]], int]:
    """Known phrases as word tuples, and the length of the longest."""
    text = files("topicality").joinpath("presets", "small_talk.txt").read_text("utf-8")
    phrases = {tuple(words(phrase)) for section in sections(text.splitlines()).values() for phrase in section}
    return frozenset(phrases), max(len(phrase) for phrase in phrases)


@lru_cache(maxsize=1)
def function_words() -> FunctionWords:
    """Words that only one language uses often; one that English uses too counts for English alone."""
    text = files("topicality").joinpath("presets", "function_words.txt").read_text("utf-8")
    # Folded, as messages are.
    lists = {code: set(words(fold(" ".join(lines)).text)) for code, lines in sections(text.splitlines()).items()}
    english = lists["en"]
    return FunctionWords.of({code: known if code == "en" else known - english for code, known in lists.items()})
