"""Terms of a passage, windows of a long message, reading a question, the best part of a text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.core.recall.analysis import Facts, facts, name_terms, plain_terms, stems, terms, windows, words
from topicality.core.recall.question import is_named, read
from topicality.core.recall.window import SIZE, SLACK, best_window

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("We painted the cabinets", "PAINTING a cabinet"),
        ("Ingrid's wedding", "ingrid weddings"),
        ("José met Zoë", "jose MET zoe"),
        ("ﬁnancial", "financial"),
        ("don't", "don’t"),
    ],
)
def test_inflection_case_and_accents_do_not_matter(one: str, other: str) -> None:
    assert sorted(stems(one)) == sorted(stems(other))


def test_a_script_without_spaces_is_found_by_pairs() -> None:
    assert set(words("订阅")) <= set(words("我想取消订阅"))


def test_terms_are_stems_then_speaker_then_mark() -> None:
    found = terms("When did we move to Oslo?", "Anna-Lena Berg")
    assert found == ("move", "oslo", "@anna", "@lena", "@berg", "?qp1")
    assert plain_terms(found) == ("move", "oslo")


@pytest.mark.parametrize("name", [None, "", "user", "Assistant"])
def test_a_role_is_no_name(name: str | None) -> None:
    assert name_terms(name) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Are you there?", Facts(question=True)),
        ("I went there last Tuesday", Facts(time=True, proper=True, mine=1)),
        ("there were seven of them", Facts(number=True)),
        ("from now on always answer in German", Facts(standing=True, proper=True)),
        ("my sister and I took our dog and my car", Facts(mine=3)),
        ("", Facts()),
    ],
)
def test_facts_are_read_and_come_back_from_their_mark(text: str, expected: Facts) -> None:
    assert facts(text) == expected
    assert Facts.of_mark(expected.mark) == expected


@pytest.mark.parametrize("mark", ["?", "?x9", "?q", ""])
def test_a_strange_mark_says_nothing_it_should_not(mark: str) -> None:
    assert Facts.of_mark(mark).mine == 0


@given(TEXTS, st.one_of(st.none(), TEXTS))
def test_terms_are_words_a_store_takes(text: str, name: str | None) -> None:
    for term in terms(text, name):
        assert term
        assert term.split() == [term]
        assert len(term) <= 100


@given(TEXTS, st.integers(1, 20))
def test_windows_cover_all_words_once(text: str, most: int) -> None:
    found = windows(text, most)
    assert "".join(text[a:b] for a, b in found).split() == text.split() or "".join(
        text[a:b] for a, b in found
    ) == "".join(text[a:b] for a, b in found if text[a:b].strip())
    assert all(a < b and text[a:b].strip() for a, b in found)
    assert all(b <= c for (_, b), (c, _) in pairwise(found))
    if not text.strip():
        assert found == []


def test_a_long_message_is_filed_in_windows_that_end_with_a_sentence() -> None:
    text = " ".join(f"This is sentence number {n} of the story." for n in range(300))
    found = windows(text, 500)
    assert [a for a, _ in found[1:]] == [b for _, b in found[:-1]]
    assert found[0][0] == 0
    assert found[-1][1] == len(text)
    assert len(found) == 5
    assert all(text[a:b].rstrip().endswith(".") for a, b in found)
    assert all(440 <= len(text[a:b].split()) <= 520 for a, b in found)


def test_a_text_without_spaces_is_cut_too() -> None:
    assert max(b - a for a, b in windows("x" * 30_000, 500)) <= 7_500


def test_a_question_says_what_it_asks_for() -> None:
    asked = read("When did you first recommend the Canon R6 to me?", 0.0)
    assert (asked.when, asked.first, asked.from_reply, asked.from_user) == (True, True, True, False)
    assert asked.entities == {"canon", "r6"}
    assert read("how many pipelines do I have now?", 0.0).count
    assert read("how many pipelines do I have now?", 0.0).last


def test_a_speakers_name_is_no_word_to_look_up_unless_there_is_no_other() -> None:
    asked = read("What did Caroline paint?", 0.0)
    assert asked.without(["caroline"]) == ("paint",)
    assert read("Caroline?", 0.0).without(["caroline"]) == ("carolin",)


@pytest.mark.parametrize(
    ("name", "question", "named"),
    [
        (("melanie",), "what did melanie say", True),
        (("melanie",), "what did mel say", True),
        (("melanie", "smith"), "what did smith say", True),
        (("melanie",), "what did caroline say", False),
        (("jo",), "what did jo say", False),
        ((), "anything", False),
    ],
)
def test_a_speaker_is_named_by_a_part_or_a_short_form(name: tuple[str, ...], question: str, named: bool) -> None:
    assert is_named(name, question.split()) is named


LONG = "\n".join(
    ["We talked about nothing in particular and the weather was fine as it often is in these parts."] * 8
    + ["The deposit for the flat in Lyon was 1,450 euros, and Monsieur Girard keeps the keys until Friday."]
    + ["After that everybody went home and slept well, and nothing more was said about any of it."] * 8
)


def test_the_best_window_has_the_words_of_the_question() -> None:
    start, end = best_window(LONG, {"deposit": 3.0, "flat": 2.0, "lyon": 4.0})
    assert "deposit for the flat in Lyon" in LONG[start:end]
    assert SIZE <= len(LONG[start:end].split()) <= SIZE + SLACK
    assert LONG[start:].startswith("The deposit") or LONG[start - 1] in "\n "


def test_without_a_hit_the_window_is_the_beginning() -> None:
    assert best_window(LONG, {"zebra": 1.0})[0] == 0
    assert best_window(LONG, {})[0] == 0


def test_a_part_of_a_text_can_be_asked_for() -> None:
    middle = len(LONG) // 2
    start, end = best_window(LONG, {"weather": 1.0}, middle, len(LONG))
    assert middle <= start < end <= len(LONG)


@given(TEXTS, st.dictionaries(st.sampled_from(["a", "deposit", "x"]), st.floats(0.1, 5)), st.integers(0, 400))
def test_a_window_lies_in_its_part(text: str, weights: dict[str, float], start: int) -> None:
    start = min(start, len(text))
    first, last = best_window(text, weights, start)
    assert start <= first <= last <= len(text)
