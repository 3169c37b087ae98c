"""Unit length and cosine similarity, against the ancestors' table (the differences are named) and by property."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from topicality import similarity, unit
from topicality.errors import InputError, SpaceMismatchError, TopicalityError

# What the three ancestors' cosines agree on, from their published vectors.
SAME = [
    ([3, 4], [4, 3], 0.96),
    ([1, 2], [2, 4], 1.0),
    ([1, 0], [0, 1], 0.0),
    ([1, 0], [-1, 0], -1.0),
]


@pytest.mark.parametrize(("a", "b", "expected"), SAME)
def test_the_ancestors_agree(a: list[float], b: list[float], expected: float) -> None:
    assert similarity(a, b) == pytest.approx(expected, abs=1e-15)


def test_difference_a_vector_of_zeros_has_no_similarity_where_the_ancestors_said_zero() -> None:
    assert similarity([1, 0], [0, 0]) is None
    assert similarity([0, 0], [0, 0]) is None


def test_difference_empty_vectors_are_refused_where_the_ancestors_said_zero() -> None:
    with pytest.raises(InputError, match=r"D >= 1"):
        similarity([], [])


@pytest.mark.parametrize(("a", "b"), [([1, 0], [1]), ([1], [1, 0])])
def test_difference_other_dimensions_are_refused_where_the_ancestors_said_zero_or_one(a: Any, b: Any) -> None:
    with pytest.raises(SpaceMismatchError, match="dimension") as caught:
        similarity(a, b)
    assert (caught.value.have, caught.value.got) == (f"dimension {len(a)}", f"dimension {len(b)}")


def test_difference_tiny_vectors_are_exact_where_one_ancestor_said_zero() -> None:
    assert similarity([1e-6, 0], [1e-6, 0]) == 1.0
    assert similarity([1e-5], [1.01e-5]) == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_difference_not_a_number_is_refused_where_the_ancestors_carried_it_on(value: float) -> None:
    for a, b in (([1.0, value], [1.0, 0.0]), ([1.0, 0.0], [value, 0.0])):
        with pytest.raises(InputError, match="NaN or infinity"):
            similarity(a, b)
    for vectors in ([1.0, value], [[1.0, 0.0], [value, 0.0]]):
        with pytest.raises(InputError, match="NaN or infinity"):
            unit(vectors)


@pytest.mark.parametrize("size", [1e-320, 5e-324, 1e-200, 1e-30, 1.0, 1e30, 1e200, 1e308])
def test_difference_huge_and_tiny_values_are_exact_where_the_ancestors_overflowed(size: float) -> None:
    assert similarity([size, size], [size, 0]) == pytest.approx(math.sqrt(0.5), abs=1e-12)
    assert similarity([size, size, size], [-1.0, -1.0, -1.0]) == pytest.approx(-1.0, abs=1e-12)
    assert np.allclose(unit([size, size]), math.sqrt(0.5), atol=1e-7)


@pytest.mark.parametrize("bad", ["text", None, [[1.0], [1.0, 2.0]], [["a"]], {}, [None], [[[1.0]]], 3.0])
def test_what_is_not_a_vector_is_one_typed_error(bad: Any) -> None:
    with pytest.raises(TopicalityError):
        unit(bad)
    with pytest.raises(TopicalityError):
        similarity(bad, [1.0])
    with pytest.raises(TopicalityError):
        similarity([1.0], bad)


numbers = st.floats(-1e300, 1e300, allow_nan=False)
vectors = hnp.arrays(np.float64, st.integers(1, 12), elements=numbers)
pairs = st.integers(1, 12).flatmap(
    lambda size: st.tuples(*[hnp.arrays(np.float64, size, elements=numbers) for _ in range(2)])
)
matrices = hnp.arrays(np.float64, st.tuples(st.integers(0, 6), st.integers(1, 8)), elements=numbers)


@given(pairs)
def test_similarity_is_symmetric_bounded_and_does_not_see_length(pair: tuple[Any, Any]) -> None:
    a, b = pair
    value = similarity(a, b)
    assert value == similarity(b, a)
    assert (value is None) == (not a.any() or not b.any())
    if value is not None:
        assert -1.0 <= value <= 1.0
        assert similarity(a * 8.0, b * 2.0) == pytest.approx(value, abs=1e-9)
        if ((a / 8.0) * 8.0 == a).all() and ((b / 2.0) * 2.0 == b).all():  # half the smallest number is 0: no direction
            assert similarity(a / 8.0, b / 2.0) == pytest.approx(value, abs=1e-9)
        assert similarity(-a, b) == pytest.approx(-value, abs=1e-12)
        assert value == pytest.approx(float(unit(a).astype(float) @ unit(b).astype(float)), abs=1e-6)


@given(vectors)
def test_a_vector_is_its_own_nearest(a: Any) -> None:
    assert similarity(a, a) in (None, pytest.approx(1.0, abs=1e-12))


@given(matrices)
def test_unit_rows_have_length_one_keep_their_direction_and_are_stable(matrix: Any) -> None:
    found = unit(matrix)
    assert found.dtype == np.float32
    assert found.shape == matrix.shape
    lengths = np.linalg.norm(found.astype(np.float64), axis=1)
    some = matrix.any(axis=1)
    assert np.allclose(lengths[some], 1.0, atol=1e-6)
    assert not found[~some].any()
    assert np.allclose(unit(found), found, atol=1e-6)
    for row, vector in zip(matrix, found, strict=True):
        assert np.array_equal(unit(row), vector)
        assert ((np.sign(row) * vector) >= 0).all()


def test_unit_leaves_its_argument_alone_and_takes_any_real_type() -> None:
    for kind in (np.float16, np.float32, np.float64, np.int8, np.int64, bool):
        given = np.array([[1, 0], [1, 1]], dtype=kind)
        kept = given.copy()
        assert np.allclose(unit(given), np.array([[1, 0], [math.sqrt(0.5)] * 2]))
        assert np.array_equal(given, kept)
    assert unit(np.zeros((0, 3))).shape == (0, 3)


def test_what_has_length_one_stays_as_it_is_in_a_copy() -> None:
    once = unit(np.arange(1.0, 400.0))
    again = unit(once)
    assert again.tobytes() == once.tobytes()
    again[0] = 5.0
    assert once[0] < 1.0
    assert abs(float(np.linalg.norm(unit(once * np.float32(1.001)))) - 1.0) < 1e-6
