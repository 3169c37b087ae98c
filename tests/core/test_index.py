"""`TopicIndex` on its own: built from texts or from vectors of any source, matched, swapped while it is read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality import TopicIndex, TopicMatch, similarity
from topicality.core.index import Scorer
from topicality.errors import EmbedError, InputError, SpaceMismatchError
from topicality.testing import WordEmbedder
from topicality.vectors import Array, unit


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-6)


# The ancestor's published index: two topics of three members each.
SPORTS: list[list[float]] = [[1, 0, 0], [0.9, 0.1, 0], [0.95, 0.05, 0]]
COOKING: list[list[float]] = [[0, 1, 0], [0.1, 0.9, 0], [0.05, 0.95, 0]]


def ancestor(scorer: Scorer = "centroid") -> TopicIndex:
    index = TopicIndex(scorer=scorer)
    index.build_vectors({"sports": SPORTS, "cooking": COOKING})
    return index


@pytest.mark.parametrize(
    ("query", "ranked"),
    [
        ([1, 0, 0], [("sports", 0.9986178293325098), ("cooking", 0.05255883312276369)]),
        ([0, 1, 0], [("cooking", 0.9986178293325098), ("sports", 0.05255883312276369)]),
        ([0.92, 0.08, 0], [("sports", 0.9994167652269246), ("cooking", 0.13887112227526743)]),
        ([1, 1, 0], [("sports", 0.7432941462471663), ("cooking", 0.7432941462471663)]),  # a tie keeps the order given
        ([0, 0, 1], [("sports", 0.0), ("cooking", 0.0)]),
    ],
)
def test_the_ancestor_s_rows_by_centroid(query: list[float], ranked: list[tuple[str, float]]) -> None:
    """Members are scaled to length one here, which moves these cosines by less than 0.005."""
    found = ancestor().match_vector(query)
    assert [match.topic for match in found] == [topic for topic, _ in ranked]
    assert [match.score for match in found] == pytest.approx([score for _, score in ranked], abs=5e-3)


def test_difference_a_negative_similarity_is_not_clamped() -> None:
    assert [match.score for match in ancestor().match_vector([-1, 0, 0])] == pytest.approx([-0.0526, -0.9986], abs=5e-3)


def test_difference_a_query_of_zeros_is_refused_where_the_ancestor_said_zero() -> None:
    with pytest.raises(InputError, match="all zeros"):
        ancestor().match_vector([0, 0, 0])


@pytest.mark.parametrize("query", [[1, 0], [1, 0, 0, 0]])
def test_difference_another_dimension_is_refused_where_the_ancestor_said_zero(query: list[float]) -> None:
    with pytest.raises(SpaceMismatchError, match="dimension 3"):
        ancestor().match_vector(query)


def test_difference_members_that_cancel_out_are_refused_as_a_centroid_and_fine_otherwise() -> None:
    with pytest.raises(InputError, match=r"'dead' cancel out.*'best'"):
        TopicIndex(scorer="centroid").build_vectors({"dead": [[1, 0], [-1, 0]]})
    index = TopicIndex()
    index.build_vectors({"poles": [[1, 0], [-1, 0]]})
    assert index.match_vector([-3, 0]) == [TopicMatch("poles", 1.0, 1)]


def test_difference_a_long_member_does_not_dominate() -> None:
    index = TopicIndex(scorer="centroid")
    index.build_vectors({"both": [[1, 0], [0, 10]]})
    assert index.match_vector([1, 0])[0].score == pytest.approx(0.5**0.5, abs=1e-6)  # the ancestor: 0.0995


def test_difference_a_threshold_is_met_at_equality_where_the_ancestor_wanted_more() -> None:
    index = ancestor()
    best = index.match_vector([0.92, 0.08, 0])[0].score
    assert index.is_on_topic_vector([0.92, 0.08, 0], best)
    assert not index.is_on_topic_vector([0.92, 0.08, 0], float(np.nextafter(best, 2)))
    assert index.is_on_topic_vector([-1, 0, 0], -0.06)


def test_best_member_is_the_default_and_names_the_member() -> None:
    index = TopicIndex()
    index.build_vectors({"a": [[1, 0, 0], [0, 1, 0]], "b": [[0.6, 0.8, 0]]})
    assert index.match_vector([0, 2, 0]) == [
        TopicMatch("a", 1.0, 1),
        TopicMatch("b", near(0.8), 0),
    ]


members = st.lists(
    st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=4, max_size=4).filter(any), min_size=1, max_size=4
)
topics = st.dictionaries(st.sampled_from("abcdef"), members, min_size=1, max_size=5)
query = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=4, max_size=4).filter(any)


@given(topics, query)
def test_best_centroid_and_soft_are_what_they_say(given_topics: dict[str, Any], asked: list[float]) -> None:
    best, soft = TopicIndex(), TopicIndex(scorer="soft")
    for index in (best, soft):
        index.build_vectors(given_topics)
        assert index.topics == tuple(given_topics)
    found = {match.topic: match for match in best.match_vector(asked)}
    smooth = {match.topic: match.score for match in soft.match_vector(asked)}
    for name, given_members in given_topics.items():
        values = [similarity(member, asked) or 0.0 for member in given_members]
        assert found[name].score == pytest.approx(max(values), abs=1e-5)
        assert values[found[name].nearest] == pytest.approx(max(values), abs=1e-5)
        assert smooth[name] == pytest.approx(1 + np.log(np.mean(np.exp(10 * (np.array(values) - 1)))) / 10, abs=1e-5)
        mean = unit(given_members).mean(axis=0)
        if np.linalg.norm(mean) > 1e-2:
            centroid = TopicIndex(scorer="centroid")
            centroid.build_vectors({name: given_members})
            assert centroid.match_vector(asked)[0].score == pytest.approx(similarity(mean, asked), abs=1e-4)
    scores = [match.score for match in best.match_vector(asked)]
    assert scores == sorted(scores, reverse=True)
    assert all(-1 <= score <= 1 for score in scores)


@given(st.permutations("abcd"))
def test_ties_keep_the_order_given(order: list[str]) -> None:
    index = TopicIndex()
    index.build_vectors({name: [[1.0, 0.0]] for name in order})
    assert [match.topic for match in index.match_vector([3.0, 4.0])] == order


# From texts


def test_all_topics_are_embedded_in_one_call() -> None:
    embedder = WordEmbedder()
    index = TopicIndex(embedder)
    index.build({"billing": ["invoices and refunds", "my bill"], "shipping": ["parcels"]})
    assert embedder.calls == [["invoices and refunds", "my bill", "parcels"]]
    assert index.is_built
    assert index.topics == ("billing", "shipping")
    assert index.match("my bill")[0] == TopicMatch("billing", near(1.0), 1)
    assert embedder.calls[1:] == [["my bill"]]
    assert index.is_on_topic("parcels", 0.99)
    assert not index.is_on_topic("dinosaurs", 0.5)


def test_an_index_of_nothing_is_built_asks_the_encoder_nothing_and_matches_nothing() -> None:
    embedder = WordEmbedder()
    index = TopicIndex(embedder)
    assert not index.is_built
    assert index.match("anything") == index.match_vector([1.0]) == []
    assert not index.is_on_topic_vector([1.0], -1.0)
    index.build({})
    assert index.is_built
    assert index.topics == ()
    assert index.match("anything") == index.match_vector([1.0]) == []
    assert not index.is_on_topic("anything", -1.0)
    assert embedder.calls == []


class Moody(WordEmbedder):
    """Fails, or gives another number of vectors, when told."""

    down = False
    extra = 0

    def embed(self, texts: Sequence[str]) -> Array:
        if self.down:
            raise EmbedError("down")
        vectors = super().embed(texts)
        return vectors[: len(texts) + self.extra] if self.extra <= 0 else np.vstack([vectors] * 2)


def test_a_failing_encoder_leaves_the_old_index_in_place() -> None:
    moody = Moody()
    index = TopicIndex(moody)
    index.build({"old": ["apple"]})
    before = index.match("apple")
    moody.down = True
    with pytest.raises(EmbedError, match="down"):
        index.build({"new": ["river"]})
    moody.down = False
    assert index.topics == ("old",)
    assert index.match("apple") == before


@pytest.mark.parametrize("extra", [-1, 1])
def test_another_number_of_vectors_than_texts_is_refused_and_leaves_the_old_index_in_place(extra: int) -> None:
    moody = Moody()
    index = TopicIndex(moody)
    index.build({"old": ["apple"]})
    moody.extra = extra
    with pytest.raises(EmbedError, match=r"vectors for 3 texts"):
        index.build({"new": ["river"], "other": ["stone", "cloud"]})
    assert index.topics == ("old",)


@pytest.mark.parametrize("texts", [[], "text", [""], ["fine", "  "], [7], None])
def test_topics_need_lists_of_texts(texts: Any) -> None:
    index = TopicIndex(WordEmbedder())
    index.build({"old": ["apple"]})
    with pytest.raises(InputError, match="'bad'"):
        index.build({"good": ["x"], "bad": texts})
    assert index.topics == ("old",)


@pytest.mark.parametrize(
    "vectors",
    [[], [[]], [[0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [[np.nan, 1.0]], [[np.inf, 1.0]], "text", [[1.0], [1.0, 2.0]]],
)
def test_vectors_that_have_no_direction_are_refused_and_leave_the_old_index_in_place(vectors: Any) -> None:
    index = ancestor()
    with pytest.raises(InputError):
        index.build_vectors({"good": [[1.0, 0.0]], "bad": vectors})
    assert index.topics == ("sports", "cooking")


def test_members_of_two_dimensions_are_refused_by_topic() -> None:
    with pytest.raises(SpaceMismatchError, match=r"dimension 2.*dimension 3 in 'b'"):
        TopicIndex().build_vectors({"a": [[1, 0]], "b": [[1, 0, 0]]})


@pytest.mark.parametrize("name", ["", " "])
def test_a_topic_needs_a_name(name: str) -> None:
    with pytest.raises(InputError, match="not blank"):
        TopicIndex().build_vectors({name: [[1.0]]})


@pytest.mark.parametrize("bad", [[np.nan, 0, 0], [[1, 0, 0]], [], "text"])
def test_a_query_is_one_finite_vector(bad: Any) -> None:
    with pytest.raises(InputError):
        ancestor().match_vector(bad)


def test_texts_need_an_encoder_and_something_to_match() -> None:
    with pytest.raises(InputError, match="no encoder"):
        TopicIndex().build({"a": ["x"]})
    with pytest.raises(InputError, match="no encoder"):
        ancestor().match("x")
    with pytest.raises(InputError, match="blank"):
        ancestor().match("  ")


def test_an_unknown_scorer_is_refused() -> None:
    scorer: Any = "mean"
    with pytest.raises(InputError, match=r"'mean'.*best, centroid, soft"):
        TopicIndex(scorer=scorer)


def test_a_member_given_as_one_vector_is_one_member() -> None:
    index = TopicIndex()
    index.build_vectors({"a": [3.0, 4.0]})
    assert index.match_vector([3.0, 4.0]) == [TopicMatch("a", near(1.0), 0)]


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns after microseconds, so that a gap between two statements is met."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_readers_see_a_whole_index_old_or_new_while_it_is_rebuilt() -> None:
    """Each set has its own topics, number of topics, and scores; a mixture would show at once."""
    sets: list[dict[str, list[list[float]]]] = [
        {f"{letter}{number}": [[1.0, float(number + size)]] * size for number in range(size)}
        for size, letter in [(2, "a"), (7, "b"), (31, "c")]
    ]
    index = TopicIndex()
    expected = []
    for topics_ in sets:
        index.build_vectors(topics_)
        expected.append(index.match_vector([1.0, 1.0]))
    stop, faults = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            found = index.match_vector([1.0, 1.0])
            if found not in expected:
                faults.append(found)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for round_ in range(300):
        index.build_vectors(sets[round_ % 3])
    stop.set()
    for reader in readers:
        reader.join()
    assert faults == []
