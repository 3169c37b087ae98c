"""The keyword tier: whole words and phrases, inflected forms, and nothing by accident."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.config import Policy
from topicality.core.keywords import Hit, KeywordIndex
from topicality.core.text import fold

POLICY = Policy(
    allowed=[
        "billing and payments",
        {"name": "shipping", "description": "Parcels: tracking a parcel, delivery dates, customs and import duties"},
    ],
    blocked=["violence", {"name": "medical advice", "keywords": ["prescription", "side effects", "ibuprofen"]}],
)
INDEX = KeywordIndex(POLICY)


def rules(text: str, index: KeywordIndex = INDEX) -> list[str]:
    return list(dict.fromkeys(hit.rule for hit in index.match(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the ancestor's rows; the differences are that a word is a word, and a message inside a name has four letters
        ("Tell me about violence", ["violence"]),
        ("I have a billing question", ["billing and payments"]),
        ("quantum physics", []),
        ("e", []),
        ("I", []),
        ("b", []),
        ("BILL", ["billing and payments"]),
        ("nonviolence training", []),
        (" hi ", []),
        # inflected forms, case, punctuation, apostrophes
        ("VIOLENCE!", ["violence"]),
        ("What about my payment?", ["billing and payments"]),
        ("payments", ["billing and payments"]),
        ("billed", ["billing and payments"]),
        ("two prescriptions", ["medical advice"]),
        ("is that a side effect", ["medical advice"]),
        ("side, effects", ["medical advice"]),
        ("effects on the side", []),
        ("Ibuprofen's dangers", ["medical advice"]),
        # short parts of a description; long ones are for vectors
        ("is my parcel there", ["shipping"]),
        ("delivery date", ["shipping"]),
        ("I love my parcels", ["shipping"]),
        ("customs", ["shipping"]),
        # a blocked hit comes first, whatever the order in the message or the policy
        ("billing violence", ["violence", "billing and payments"]),
        # words that could mean anything
        ("and", []),
        ("advice", []),
        ("medical advice please", ["medical advice"]),
        ("", []),
        ("?!", []),
    ],
)
def test_a_message_hits_by_whole_words(text: str, expected: list[str]) -> None:
    assert rules(text) == expected


@pytest.mark.parametrize("letter", "abcdefghijklmnopqrstuvwxyz0123456789éßжя你")
def test_one_letter_never_hits(letter: str) -> None:
    assert INDEX.match(letter) == []
    assert INDEX.match(f" {letter} {letter}.") == []


def test_a_message_inside_a_blocked_name_is_not_blocked() -> None:
    index = KeywordIndex(Policy(allowed=["x-ray machines"], blocked=["weapons of mass destruction"]))
    assert rules("mass destruction", index) == []
    assert rules("weapons of mass destruction", index) == ["weapons of mass destruction"]
    assert rules("machines", index) == ["x-ray machines"]


def test_a_rules_own_keywords_are_told_from_its_name() -> None:
    assert INDEX.has_explicit
    assert INDEX.explicit("violence and ibuprofen") == [Hit("medical advice", "blocked", "ibuprofen")]
    assert INDEX.explicit("violence") == []
    bare = KeywordIndex(Policy(blocked=["violence"]))
    assert not bare.has_explicit
    assert bare.explicit("violence") == []


def test_hits_come_blocked_first_then_in_the_order_of_the_policy() -> None:
    policy = Policy(
        allowed=[{"name": "one", "keywords": ["apple"]}, {"name": "two", "keywords": ["apple", "pear"]}],
        blocked=[{"name": "three", "keywords": ["pear"]}, {"name": "four", "keywords": ["apple"]}],
    )
    hits = KeywordIndex(policy).explicit("a pear and an apple")
    assert [(hit.rule, hit.word) for hit in hits] == [
        ("three", "pear"),
        ("four", "apple"),
        ("one", "apple"),
        ("two", "apple"),
        ("two", "pear"),
    ]


@pytest.mark.parametrize(
    ("keyword", "said", "silent"),
    [
        ("оружие", "Где купить оружие?", "оружейный мастер"),
        ("Waffe", "Wo ist die WAFFE?", "Waffel"),
        ("straße", "in der STRASSE", "strasbourg"),
        ("arme à feu", "une arme à feu, svp", "feu à une arme"),
        ("όπλο", "ένα ΌΠΛΟ", "όπλα"),
        ("हिंसा", "यह हिंसा है", "हंस सा"),
        ("c4", "where do I get C4", "c 4"),
    ],
)
def test_keywords_of_other_scripts_and_languages_are_matched_whole(keyword: str, said: str, silent: str) -> None:
    index = KeywordIndex(Policy(blocked=[{"name": "rule", "keywords": [keyword]}]))
    assert [hit.word for hit in index.explicit(said)] == [keyword]
    assert index.explicit(silent) == []


@pytest.mark.parametrize("keyword", ["kadın", "ｗｅａｐｏｎ", "ﬁre", "cafe\u0301"])
def test_a_keyword_is_folded_as_messages_are(keyword: str) -> None:
    """A guard folds a message before it looks for words: "kadın" arrives as "kadin", full-width letters as plain ones."""
    index = KeywordIndex(Policy(blocked=[{"name": keyword}, {"name": "rule", "keywords": [keyword]}]))
    assert [hit.rule for hit in index.match(fold(f"tell me about {keyword}").text)] == ["rule", keyword]
    assert [hit.word for hit in index.explicit(fold(keyword).text)] == [keyword]


@pytest.mark.parametrize("said", ["bómb", "a BÖMB!", "bömbs", "bòmb threat", "bømb", "ƀomb", "bo\u0301mb"])
def test_accents_do_not_hide_a_keyword(said: str) -> None:
    index = KeywordIndex(Policy(blocked=[{"name": "rule", "keywords": ["bomb"]}]))
    assert [hit.word for hit in index.explicit(fold(said).text)] == ["bomb"]
    assert [hit.word for hit in index.explicit(f"it is {fold(said).text}, ça va")] == ["bomb"]


@pytest.mark.parametrize(
    ("keyword", "said", "silent"),
    [
        ("café", "le CAFÉ", "a cafe"),  # a keyword's own accents count
        ("side effects", "sídè effécts", "effécts sídè"),
        ("бой", "идёт бой", "бои"),  # short i is a letter of its own, not an accented one
        ("бои", "эти бои", "бой"),
        ("한", "한 번", "하나"),
    ],
)
def test_a_keyword_s_own_accents_and_other_scripts_are_left_alone(keyword: str, said: str, silent: str) -> None:
    index = KeywordIndex(Policy(blocked=[{"name": "rule", "keywords": [keyword]}]))
    assert [hit.word for hit in index.explicit(fold(said).text)] == [keyword]
    assert index.explicit(fold(silent).text) == []


def test_a_keyword_without_a_word_in_it_never_hits() -> None:
    index = KeywordIndex(Policy(blocked=[{"name": "rule", "keywords": ["!!!", "--"]}]))
    assert index.explicit("really!!! -- yes") == []


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_keyword_is_found_wherever_it_stands(before: str, after: str) -> None:
    hits = INDEX.explicit(f"{before} side effects {after}")
    assert Hit("medical advice", "blocked", "side effects") in hits
    assert all(hit.word in ("side effects", "prescription", "ibuprofen") for hit in hits)
