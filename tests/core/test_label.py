"""Labels and terms: literal, bounded, incremental, deterministic."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicality.core.grams import grams_of
from topicality.core.label import Lexicon, Words, describe, words_of
from topicality.core.text import stems
from topicality.errors import StoreError

CARD = [
    ("Which credit card has no annual fee?", "The Blue Card from Norbank has no annual fee."),
    ("And the Norbank card abroad?", "Norbank takes 2 % abroad. A travel card would be cheaper."),
    ("Then the travel card. What is its annual fee?", "The travel card costs 40 euros a year."),
]
DOG = [
    ("My dog Pixel limps after walks", "Let the vet look at the paw of Pixel."),
    ("The vet found a thorn in the paw", "Good that the vet found the thorn!"),
]

# Words with and without spaces, capitals, marks, markup, links, code, numbers, emoji.
WORDS = st.sampled_from(
    "card Card CARDS fee fees annual vet Pixel thorn docker node.js e-mail don't the a of 12 2024 v2 3rd hello thanks "
    "信用卡 年费 我想 カード の ฉันต้องการ हिन्दी कार्ड 신용카드 кот Émile naïve ß 🙂 ... ! , ? : \n \n\n # * ``` "
    "https://a.example/x <b> a@b.example O'Brien it’s x1 _under_ C++ \u200d ­".split(" ")
)
TEXTS = st.lists(WORDS, max_size=30).map(" ".join) | st.text(max_size=60)
EXCHANGES = st.lists(st.tuples(TEXTS, TEXTS), max_size=6)


def read(exchanges: list[tuple[str, str]]) -> tuple[Words, Lexicon]:
    words, lexicon = Words(), Lexicon()
    for sequence, (user, reply) in enumerate(exchanges, 1):
        grams = grams_of(user, reply)
        words, lexicon = words.added(grams, sequence), lexicon.added(grams)
    return words, lexicon


def test_a_topic_is_named_after_what_it_says_and_the_rest_does_not() -> None:
    lexicon = read(CARD + DOG)[1]
    cards = describe(read(CARD)[0], lexicon)
    assert set(cards.labels) >= {"annual fee", "travel card"}
    assert "Norbank" in cards.terms
    dog = describe(read(DOG)[0], lexicon)
    assert set(dog.labels) >= {"vet", "thorn"}
    assert "Pixel" in dog.terms


def test_what_the_whole_conversation_is_about_does_not_name_a_topic() -> None:
    everywhere = [(f"The server needs {word} again", "The server is fine") for word in ("disks", "memory", "cables")]
    words = words_of([(1, grams_of(*everywhere[0]))])
    alone = describe(words, read(everywhere[:1])[1])
    among = describe(words, read(everywhere * 5)[1])
    assert alone.terms[0] == "server"
    assert among.labels[0] == "disks"


def test_everyday_words_yield_to_telling_ones() -> None:
    words = read([("People at home like the Kubernetes cluster", "")])[0]
    rare = {"kubernet": 1.0, "cluster": 1.0}
    assert describe(words, Lexicon(), lambda stem: rare.get(stem, 0.1)).labels[0].startswith("Kubernetes")


def test_the_most_frequent_spelling_is_shown_and_names_keep_their_capitals() -> None:
    text = "Gardens are work. gardens and gardens. We saw Docker. I use Docker and docker."
    words = read([(text, "")])[0]
    assert words.entries["garden"].best[0] == "gardens"
    assert words.entries["docker"].best[0] == "Docker"
    initial = read([("Budgets are hard.", "a budget is a budget")])[0]
    assert initial.entries["budget"].best[0] == "budget"


def test_no_two_labels_and_no_two_terms_say_the_same() -> None:
    words, lexicon = read(CARD)
    found = describe(words, lexicon)
    keys = [" ".join(stems(label)) for label in found.labels]
    assert len({stem for key in keys for stem in key.split()}) == sum(len(key.split()) for key in keys)
    terms = [set(stems(term)) for term in found.terms]
    assert not any(a < b for a in terms for b in terms)


def test_small_talk_numbers_code_and_links_name_nothing() -> None:
    for user, reply in (
        ("ok", "ok"),
        ("Thanks, that's great!", "You're welcome!"),
        ("嗯", "好"),
        ("12 2024 3rd v2", "100%"),
        ("```\nimport secretmodule\n```", "https://alpha.example/beta"),
        ("", ""),
    ):
        words, lexicon = read([(user, reply)])
        assert describe(words, lexicon).labels == ()
        assert describe(words, lexicon).terms == ()


def test_contractions_name_nothing_and_possessives_name_their_owner() -> None:
    found = grams_of("They'll see what you’d ain't must've y'all, Norbank's vault")
    assert set(found.found) == {"norbank", "norbank vault", "vault"}
    curly = grams_of("Norbank’s vault, Norbank's vault")
    assert curly.found["norbank vault"].spellings == (("Norbank's vault", 4), ("Norbank’s vault", 4))


def test_speakers_are_no_subject() -> None:
    found = grams_of("Melanie, the pottery class starts", "Yes, Caroline", names=("Caroline", "Melanie"))
    assert set(found.found) == {"potteri", "class", "start", "potteri class"} - {"start"}


@pytest.mark.parametrize(
    ("exchanges", "label"),
    [
        ([("我想换一张信用卡，年费太贵了", "这张信用卡的年费是100元"), ("有免年费的信用卡吗", "有")], "信用卡"),
        ([("クレジットカードの年費が高いです", "クレジットカードですね")], "クレジットカード"),
        ([("मुझे क्रेडिट कार्ड चाहिए", "क्रेडिट कार्ड की फीस")], "क्रेडिट कार्ड"),
        ([("신용카드 연회비가 비싸요", "신용카드 연회비")], "신용카드"),
        ([("Кредитная карта сломалась", "Кредитная карта")], "Кредитная карта"),
        ([("Die Kreditkarte für Jürgen", "Kreditkarte")], "Kreditkarte"),
    ],
)
def test_any_script_has_labels(exchanges: list[tuple[str, str]], label: str) -> None:
    assert label in describe(*read(exchanges)).labels


@settings(max_examples=300, deadline=None)
@given(EXCHANGES)
def test_labels_and_terms_stand_in_the_transcript_literally(exchanges: list[tuple[str, str]]) -> None:
    found = describe(*read(exchanges))
    texts = [text for pair in exchanges for text in pair]
    for shown in (*found.labels, *found.terms):
        assert any(shown in text for text in texts)
        assert shown == shown.strip()
        assert shown
    assert len(found.labels) <= 5
    assert len(found.terms) <= 12
    assert len(set(found.terms)) == len(found.terms)


@given(st.lists(st.sampled_from("docker thorn pixel norbank fee vet paw kettle".split()), min_size=3, unique=True))
def test_a_text_with_enough_words_has_enough_labels_and_terms(named: list[str]) -> None:
    found = describe(*read([(", ".join(named), "")]))
    assert len(found.labels) >= 2
    assert len(found.terms) >= 3


@settings(max_examples=150, deadline=None)
@given(EXCHANGES, st.randoms(use_true_random=False))
def test_order_and_merging_make_no_difference_within_the_exact_range(
    exchanges: list[tuple[str, str]], rng: random.Random
) -> None:
    read_ones = [(n, grams_of(*pair)) for n, pair in enumerate(exchanges, 1)]
    shuffled = list(read_ones)
    rng.shuffle(shuffled)
    whole = words_of(read_ones)
    cut = rng.randint(0, len(read_ones))
    halves = words_of(shuffled[:cut]), words_of(shuffled[cut:])
    if all(len(entry.spellings) < 8 for entry in whole.entries.values()):
        assert words_of(shuffled) == whole
        assert halves[0].merged(halves[1]) == halves[1].merged(halves[0]) == whole


def chatter(rng: random.Random, size: int) -> str:
    return " ".join(f"w{rng.choice('abcdefghij')}{min(int(rng.expovariate(0.01)), 9999)}" for _ in range(size))


def test_beyond_the_exact_range_the_same_order_gives_the_same_words_also_across_a_restart() -> None:
    rng = random.Random(1)
    ones = [(n, grams_of(chatter(rng, 30), chatter(rng, 60))) for n in range(1, 120)]
    whole, lexicon, again, other = Words(), Lexicon(), Words(), Lexicon()
    for n, (sequence, grams) in enumerate(ones):
        whole, lexicon = whole.added(grams, sequence), lexicon.added(grams)
        again, other = again.added(grams, sequence), other.added(grams)
        if n % 13 == 0:
            again, other = Words.load(again.dump()), Lexicon.load(other.dump())
    assert whole == again == words_of(ones)
    assert lexicon == other
    assert len(whole.entries) <= 512
    assert len(lexicon.counts) <= 2048
    assert describe(whole, lexicon) == describe(again, other)


def test_a_frequent_word_survives_pruning() -> None:
    rng = random.Random(2)
    words = Words()
    for n in range(1, 200):
        extra = "the Kestrel engine" if n % 4 == 0 else ""
        words = words.added(grams_of(f"{chatter(rng, 20)} {extra}", chatter(rng, 80)), n)
    assert "Kestrel engine" in describe(words, Lexicon()).labels


def test_removing_an_exchange_from_the_lexicon_undoes_adding_it() -> None:
    first, second = grams_of(*CARD[0]), grams_of(*CARD[1])
    lexicon = Lexicon().added(first)
    assert lexicon.added(second).removed(second) == lexicon
    assert Lexicon().removed(second) == Lexicon()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"[1]", b'[1, {"a": 3}]', b'[1, {"a": [1]}]', b"\xff"])
def test_damaged_words_are_a_typed_error(data: bytes) -> None:
    with pytest.raises(StoreError, match="damaged"):
        Words.load(data)
    if data != b'[1, {"a": 3}]':
        with pytest.raises(StoreError, match="damaged"):
            Lexicon.load(data)


@pytest.mark.parametrize("piece", ["a", "é", "信", "< ", "[](", "@.", "```", "a-", "A b "], ids=repr)
def test_a_book_without_spaces_or_sense_costs_as_much_as_it_is_long(
    piece: str, calls: Callable[[Callable[[], object]], int]
) -> None:
    """What an expression does inside is not counted; there, more than linear would never end (pytest's timeout does)."""
    small, large = (calls(partial(grams_of, piece * size)) for size in (2_000, 8_000))
    assert large < 4.2 * small + 100
    grams_of(piece * 100_000)
