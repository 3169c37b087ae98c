"""Scores against a reference that is written out in loops, and the properties that decisions rely on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.core.background import Background
from topicality.core.panel import Evidence, Panel
from topicality.core.score import FEATURES, RuleBook, RuleMembers, Weights, lexicon
from topicality.core.text import content_stems
from topicality.core.verdicts import log_odds
from topicality.embed import load, load_background, load_weights
from topicality.embed.background import read_corpus
from topicality.errors import InputError, SpaceMismatchError
from topicality.types import Space
from topicality.vectors import Array, unit

D, S, N = 12, 24, 120
SPACE = Space("score", D)
WEIGHTS = Weights(0.8, (2.0, 3.0), 0.6, (0.2, 0.5, 0.9, 2.5), 0.4, 3.0)
STEMS = {"apple": 3, "river": 40, "rare": 1}


def directions(seed: int, count: int) -> Array:
    return unit(np.random.default_rng(seed).standard_normal((count, D)))


def background(seed: int = 1) -> Background:
    """Utterances lie around their subject's name; the last five are a host's own."""
    names = directions(seed, S)
    owner = np.array([*np.arange(N - 5) % S, *[-1] * 5])
    utterances = unit(names[owner] + 0.9 * directions(seed + 1, N))
    descriptions = unit(names + 0.5 * directions(seed + 2, S))
    return Background(SPACE, tuple(map(str, range(S))), names, descriptions, utterances, owner, STEMS, 100)


BACKGROUND = background()


def rule(name: str, seed: int, members: int = 3, counter: int = 0, words: Sequence[str] = ()) -> RuleMembers:
    """Members around a direction of their own, which is near a subject's."""
    middle = BACKGROUND.names[seed % S] + 0.6 * directions(seed, 1)[0]
    return RuleMembers(
        name,
        tuple(f"{name} {number}" for number in range(members)),
        unit(middle + 0.7 * directions(seed + 10, members)),
        unit(middle + 0.7 * directions(seed + 20, counter)) if counter else None,
        dict.fromkeys(words, 0.8),
    )


RULES = [
    rule("one", 40, 1, words=["apple"]),
    rule("two", 51, 6, counter=2),
    rule("three", 63, 3, words=["rare", "river"]),
]
MESSAGES = unit(np.vstack([directions(7, 6), BACKGROUND.utterances[:3] + 0.3 * directions(8, 3), RULES[1].vectors[:2]]))
SAID = [["apple"], [], ["river", "rare"], ["unknown"], ["apple", "apple"], [], ["rare"], [], ["river"], [], []]


def reference(
    rules: Sequence[RuleMembers],
    against: Background,
    weights: Weights,
    message: Array,
    said: Sequence[str] | None,
) -> list[dict[str, float]]:
    """The score of one message as the module's docstring tells it, one number at a time, in double precision."""

    def dot(a: Array, b: Array) -> float:
        return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))

    def soft(members: Array, vector: Array) -> float:
        mean = sum(math.exp(sharp * (dot(member, vector) - 1.0)) for member in members) / len(members)
        return math.log(mean) / sharp + 1.0

    sharp = weights.softness / against.spread
    count = len(against.names)
    kin: list[list[float]] = []
    for entry in rules:
        close = [
            (soft(entry.vectors, against.names[s]) + soft(entry.vectors, against.descriptions[s])) / 2
            for s in range(count)
        ]
        middle = median(close)
        robust = max(1.4826 * median(abs(value - middle) for value in close), 1e-6)
        level, steep = weights.kin
        kin.append([1 / (1 + math.exp(-steep * ((value - middle) / robust - level))) for value in close])
    standing = [dot(message, prototype) for prototype in against.prototypes]
    elsewhere = max(value * (1 - max(row[s] for row in kin)) for s, value in enumerate(standing)) / against.spread
    mean = sum(standing) / count
    sd = max(math.sqrt(sum((value - mean) ** 2 for value in standing) / count), 1e-6)
    standard = [(value - mean) / sd for value in standing]
    grown = [math.exp(value / weights.temperature) for value in standard]
    found = []
    for entry, akin in zip(rules, kin, strict=True):
        likes = [dot(member, message) for member in entry.vectors]
        best = max(likes)
        own = soft(entry.vectors, message)
        # the topic's side: against utterances, less those of subjects akin to the rule
        share = [1.0 if s < 0 else 1 - akin[s] for s in against.owner]
        usual = [soft(entry.vectors, utterance) for utterance in against.utterances]
        topic_mean = sum(w * x for w, x in zip(share, usual, strict=True)) / sum(share)
        topic_sd = math.sqrt(sum(w * (x - topic_mean) ** 2 for w, x in zip(share, usual, strict=True)) / sum(share))
        # the message's side: against the names of unrelated subjects
        apart = [1 - value for value in akin]
        likeness = [dot(message, name) for name in against.names]
        message_mean = sum(w * x for w, x in zip(apart, likeness, strict=True)) / sum(apart)
        message_sd = math.sqrt(
            sum(w * (x - message_mean) ** 2 for w, x in zip(apart, likeness, strict=True)) / sum(apart)
        )
        subject = math.log(sum(g * a for g, a in zip(grown, akin, strict=True)) / sum(grown) + 0.01)
        word = max(
            (entry.lexicon[stem] * against.rarity(stem) for stem in said or () if stem in entry.lexicon), default=0
        )
        features = ((own - topic_mean) / topic_sd, (own - message_mean) / message_sd, subject, word)
        logit = sum(w * x for w, x in zip(weights.weights, features, strict=True)) + weights.bias
        if entry.counter is not None:
            nearer = max(dot(near, message) for near in entry.counter) - best
            logit -= weights.counter * max(nearer / against.spread + 0.25, 0.0)
        slope = weights.weights[0] / topic_sd + weights.weights[1] / message_sd
        found.append(
            {
                "best": best, "nearest": likes.index(best),
                "logits": logit, "slope": slope, "elsewhere": elsewhere, "distinct": max(standard),
                **dict(zip(FEATURES, features, strict=True)),
            }
        )  # fmt: skip
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_scores_equal_the_reference(seed: int) -> None:
    against = background(seed)
    dice = np.random.default_rng(seed)
    weights = Weights(
        float(dice.uniform(0.3, 2)), (float(dice.uniform(1, 4)), 3.0), float(dice.uniform(0.3, 2)),
        (0.2, 0.5, 0.9, float(dice.uniform(0, 3))), float(dice.normal()), float(dice.uniform(0, 5)),
    )  # fmt: skip
    book = RuleBook(RULES, against, weights)
    found, weighed, standing = book.score(MESSAGES, SAID), book.features(MESSAGES, SAID), book.standing(MESSAGES)
    for row, (message, said) in enumerate(zip(MESSAGES, SAID, strict=True)):
        for column, wanted in enumerate(reference(RULES, against, weights, message, said)):
            assert found.best[row, column] == pytest.approx(wanted["best"], abs=1e-5)
            assert found.nearest[row, column] == wanted["nearest"]
            for place, feature in enumerate(FEATURES):
                assert weighed[row, column, place] == pytest.approx(wanted[feature], rel=2e-3, abs=2e-3), feature
            assert found.logits[row, column] == pytest.approx(wanted["logits"], rel=2e-3, abs=2e-3)
            assert found.slope[row, column] == pytest.approx(wanted["slope"], rel=1e-3)
            assert standing.elsewhere[row] == pytest.approx(wanted["elsewhere"], rel=1e-3)
            assert standing.distinct[row] == pytest.approx(wanted["distinct"], rel=1e-3)


def equal(one: Evidence, two: Evidence, tolerance: float = 1e-4) -> None:
    for name in Evidence._fields:
        assert np.allclose(getattr(one, name), getattr(two, name), atol=tolerance, rtol=tolerance), name


BOOK = RuleBook(RULES, BACKGROUND, WEIGHTS)


def test_a_batch_is_the_same_as_one_by_one() -> None:
    together = BOOK.score(MESSAGES, SAID)
    for row in range(len(MESSAGES)):
        equal(BOOK.score(MESSAGES[row : row + 1], SAID[row : row + 1]), together.rows([row]))


def test_a_large_batch_is_scored_in_blocks_without_a_seam() -> None:
    many, said = np.tile(MESSAGES, (60, 1)), SAID * 60
    assert len(many) > 512
    whole = BOOK.score(many, said)
    assert whole.logits.shape == (len(many), 3)
    equal(whole.rows(slice(len(many) - len(MESSAGES), None)), BOOK.score(MESSAGES, SAID))


def test_rows_of_the_evidence_are_those_of_the_messages() -> None:
    found = BOOK.score(MESSAGES, SAID)
    assert np.array_equal(found.rows([3, 1]).logits, found.logits[[3, 1]])
    assert found.rows(slice(2, 4)).nearest.shape == (2, 3)


@given(st.permutations(range(3)))
def test_the_order_of_the_rules_does_not_matter(order: list[int]) -> None:
    found = RuleBook([RULES[index] for index in order], BACKGROUND, WEIGHTS).score(MESSAGES, SAID)
    expected = BOOK.score(MESSAGES, SAID)
    for place, index in enumerate(order):
        assert np.allclose(found.logits[:, place], expected.logits[:, index], atol=1e-4)
        assert np.allclose(found.best[:, place], expected.best[:, index], atol=1e-6)


def test_a_rule_s_score_does_not_depend_on_the_other_rules() -> None:
    alone = RuleBook(RULES[1:2], BACKGROUND, WEIGHTS).score(MESSAGES, SAID)
    assert np.allclose(alone.logits[:, 0], BOOK.score(MESSAGES, SAID).logits[:, 1], atol=1e-4)


def test_two_books_can_share_what_is_the_same_for_both() -> None:
    other = RuleBook(RULES[1:], BACKGROUND, WEIGHTS)
    first, second = Panel([BOOK, other]).score(MESSAGES, SAID)
    equal(first, BOOK.score(MESSAGES, SAID), 1e-5)
    equal(second, other.score(MESSAGES, SAID), 1e-5)


def test_members_that_are_there_twice_change_nothing() -> None:
    twice = [
        RuleMembers(entry.name, entry.texts * 2, np.vstack([entry.vectors] * 2), entry.counter, entry.lexicon)
        for entry in RULES
    ]
    equal(RuleBook(twice, BACKGROUND, WEIGHTS).score(MESSAGES, SAID), BOOK.score(MESSAGES, SAID))


def test_counterexamples_lower_only_their_rule() -> None:
    near = RuleMembers("three", RULES[2].texts, RULES[2].vectors, MESSAGES[4:5], RULES[2].lexicon)
    before, after = BOOK.score(MESSAGES, SAID), RuleBook([*RULES[:2], near], BACKGROUND, WEIGHTS).score(MESSAGES, SAID)
    assert np.allclose(before.logits[:, :2], after.logits[:, :2], atol=1e-6)
    assert (after.logits[:, 2] <= before.logits[:, 2] + 1e-9).all()
    assert after.logits[4, 2] < before.logits[4, 2] - 1.0
    assert np.allclose(before.best, after.best)


def test_a_counterexample_that_is_far_away_changes_nothing() -> None:
    one = unit(RULES[2].vectors[:1])
    far = RuleMembers("three", RULES[2].texts, RULES[2].vectors, -one, RULES[2].lexicon)
    before, after = BOOK.score(one, None), RuleBook([*RULES[:2], far], BACKGROUND, WEIGHTS).score(one, None)
    assert np.allclose(before.logits, after.logits, atol=1e-6)


def test_without_a_background_only_cosines_are_measured() -> None:
    found = RuleBook(RULES, None, WEIGHTS, SPACE).score(MESSAGES, SAID)
    assert np.allclose(found.best, BOOK.score(MESSAGES, SAID).best)
    assert not found.logits.any()
    assert not found.slope.any()
    bare = RuleBook(RULES, None, WEIGHTS, SPACE)
    assert not bare.features(MESSAGES, SAID).any()
    assert bare.features(MESSAGES, SAID).shape == (len(MESSAGES), 3, 4)
    assert not any(values.any() for values in bare.standing(MESSAGES))
    assert RuleBook(RULES, None, WEIGHTS).space.dimension == D


def test_the_nearer_a_message_the_higher_its_score() -> None:
    """Along the way from something unrelated to a rule's only member."""
    member, start = RULES[0].vectors[0], directions(99, 1)[0]
    way = unit(np.linspace(0, 1, 9)[:, None] * member + np.linspace(1, 0, 9)[:, None] * start)
    found = RuleBook(RULES[:1], BACKGROUND, WEIGHTS).score(way)
    assert (np.diff(found.best[:, 0]) > 0).all()
    assert found.logits[-1, 0] > found.logits[0, 0] + 2
    assert (found.slope > 0).all()


def test_a_shared_word_counts_by_its_rarity_and_never_against_a_rule() -> None:
    plain, said = BOOK.score(MESSAGES, None), BOOK.score(MESSAGES, SAID)
    assert not BOOK.features(MESSAGES)[:, :, 3].any()
    assert (said.logits >= plain.logits - 1e-9).all()
    assert BOOK.features(MESSAGES, SAID)[2, 2, 3] == pytest.approx(0.8 * BACKGROUND.rarity("rare"))
    assert BACKGROUND.rarity("river") < BACKGROUND.rarity("apple") < BACKGROUND.rarity("rare") < 1.0
    assert BACKGROUND.rarity("never") == pytest.approx(1.0)


def test_nearest_is_the_first_of_the_nearest_members() -> None:
    twice = RuleMembers("r", ("a", "b", "c"), unit(np.vstack([directions(3, 1), directions(4, 1), directions(4, 1)])))
    for against in (BACKGROUND, None):
        book = RuleBook([RULES[0], twice], against, WEIGHTS)
        asked = np.vstack([directions(4, 1), directions(3, 1), RULES[0].vectors])
        assert book.score(asked).nearest[:, 1].tolist()[:2] == [1, 0]
        assert book.score(asked).nearest[:, 0].tolist() == [0, 0, 0]


def test_kin_is_high_for_the_subject_a_rule_is_about() -> None:
    about = RuleMembers("r", ("r",), BACKGROUND.names[5:6])
    kin = RuleBook([about, RULES[0]], BACKGROUND, WEIGHTS).kin
    assert kin.shape == (2, S)
    assert kin[0].argmax() == 5
    assert kin[0, 5] > 0.9
    assert ((kin >= 0) & (kin <= 1)).all()


# What is refused


def test_no_rule_or_no_member_is_refused() -> None:
    with pytest.raises(InputError, match="at least one rule"):
        RuleBook([], BACKGROUND, WEIGHTS)
    with pytest.raises(InputError, match="rule 'empty'"):
        RuleBook([RuleMembers("empty", (), np.zeros((0, D), np.float32))], BACKGROUND, WEIGHTS)


@pytest.mark.parametrize("against", [BACKGROUND, None])
def test_vectors_of_another_dimension_or_not_finite_are_refused_by_name(against: Background | None) -> None:
    bad = RULES[1].vectors.copy()
    bad[0, 0] = np.nan
    with pytest.raises(InputError, match=r"rule 'bad'.*NaN"):
        RuleBook([RULES[0], RuleMembers("bad", ("x",) * 6, bad)], against, WEIGHTS)
    with pytest.raises(SpaceMismatchError, match="dimension 5"):
        RuleBook([RULES[0], RuleMembers("bad", ("x",), np.ones((1, 5), np.float32))], against, WEIGHTS)
    book = RuleBook(RULES, against, WEIGHTS)
    with pytest.raises(SpaceMismatchError, match="dimension 5"):
        book.score(np.ones((1, 5), np.float32))
    with pytest.raises(InputError, match=r"a message.*NaN"):
        book.score(np.full((1, D), np.nan, np.float32))
    for shape in [(0, D), (D,), (1, 1, D)]:
        with pytest.raises(InputError, match="a message"):
            book.score(np.ones(shape, np.float32))


def test_counterexamples_are_checked_too() -> None:
    for counter, error in [(np.ones((1, 5)), SpaceMismatchError), (np.full((1, D), np.inf), InputError)]:
        bad = RuleMembers("bad", ("x",), RULES[0].vectors, counter.astype(np.float32))
        with pytest.raises(error):
            RuleBook([bad], BACKGROUND, WEIGHTS)


# The background


def test_a_background_needs_enough_to_measure_against_and_one_space() -> None:
    b = BACKGROUND
    with pytest.raises(InputError, match="at least 20 subjects"):
        Background(SPACE, b.subjects[:9], b.names[:9], b.descriptions[:9], b.utterances, b.owner % 9)
    with pytest.raises(InputError, match="at least 20 subjects and 100"):
        Background(SPACE, b.subjects, b.names, b.descriptions, b.utterances[:50], b.owner[:50])
    with pytest.raises(InputError, match="each of its subjects"):
        Background(SPACE, b.subjects, b.names, b.descriptions[:-1], b.utterances, b.owner)
    with pytest.raises(InputError, match="each of its subjects"):
        Background(SPACE, b.subjects, b.names, b.descriptions, b.utterances, b.owner[:-1])
    with pytest.raises(SpaceMismatchError):
        Background(Space("other", D + 1), b.subjects, b.names, b.descriptions, b.utterances, b.owner)


def test_a_host_s_own_utterances_belong_to_no_subject() -> None:
    more = BACKGROUND.extended(directions(77, 4))
    assert len(more.utterances) == N + 4
    assert more.owner[-4:].tolist() == [-1] * 4
    assert np.array_equal(more.prototypes, BACKGROUND.prototypes)
    assert BACKGROUND.extended(np.zeros((0, D), np.float32)) is BACKGROUND


def test_what_a_host_adds_near_a_rule_makes_the_rule_harder_to_meet() -> None:
    """The host says: such messages are everyday talk here, not a sign of the topic."""
    near = unit(RULES[1].vectors[:1] + 0.4 * directions(78, 40))
    harder = RuleBook(RULES, BACKGROUND.extended(near), WEIGHTS).score(near, None)
    assert (harder.logits[:, 1] < BOOK.score(near, None).logits[:, 1]).all()


# A rule's words


def test_the_words_of_a_rule_weigh_by_where_they_stand() -> None:
    found = lexicon(["bill"], ["invoic", "refund"], [["pay", "pay", "card"], ["pay", "bill"], ["cash"]])
    assert found["bill"] == 1.0
    assert found["invoic"] == found["refund"] == 0.8
    assert found["pay"] == pytest.approx(0.5)
    assert "card" not in found
    assert "cash" not in found
    assert lexicon([], [], []) == {}


def test_words_of_very_many_examples_weigh_less_and_never_more_than_a_description_s() -> None:
    few, many = lexicon([], [], [["pay"]] * 5), lexicon([], [], [["pay"]] * 500)
    assert few["pay"] == pytest.approx(0.8)
    assert many["pay"] < 0.5
    assert max(lexicon([], [], [["a", "b"]] * 7).values()) <= 0.8


# On the real thing


@pytest.mark.parametrize("subject", ["JavaScript", "guns and weapons", "video games"])
def test_from_10_to_500_examples_a_rule_accepts_no_more_of_what_is_elsewhere(subject: str) -> None:
    """A broad rule of the 45 subjects around one; what is elsewhere are the 200 subjects furthest from it."""
    against, (weights, _), corpus = load_background(load()), load_weights(), read_corpus()
    owner = np.array(corpus.owner)
    likeness = against.descriptions @ against.descriptions[corpus.subjects.index(subject)]
    order = np.argsort(-likeness, kind="stable")
    inside = np.random.default_rng(3).permutation(np.flatnonzero(np.isin(owner, order[:45])))
    outside = np.flatnonzero(np.isin(owner, order[-200:]))
    stems = [content_stems(text) for text in corpus.utterances]
    accepted = []
    for count in (10, 500):
        chosen = inside[:count]
        texts = tuple(corpus.utterances[index] for index in chosen)
        weighed = lexicon(content_stems(subject), [], [stems[index] for index in chosen])
        book = RuleBook([RuleMembers(subject, texts, against.utterances[chosen], None, weighed)], against, weights)
        found = book.score(against.utterances[outside], [stems[index] for index in outside])
        accepted.append(float((found.logits[:, 0] >= log_odds(0.3)).mean()))
    assert accepted[1] <= accepted[0] + 0.02
    assert accepted[1] <= 0.05
