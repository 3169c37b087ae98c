"""How good a segmentation is: Pk, WindowDiff and F1 of its boundaries, agreement of its topics, returns, links.

Boundaries are 0 or 1 for each message, 1 where a segment starts; the first message's entry does not count. The protocol
is that of SuperDialseg (Jiang et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Marks = Sequence[int]


def window_size(gold: Marks) -> int:
    """Half the mean length of a gold segment, rounded (half to even), at least 2."""
    return max(2, round(len(gold) / (1 + sum(gold[1:])) / 2))


def window_errors(gold: Marks, predicted: Marks) -> tuple[float, float]:
    """Pk and WindowDiff: share of windows that disagree about any boundary inside, and about their number.

    In [0, 1]. A dialogue shorter than a window has no errors.
    Cost: O(N). Source: Beeferman et al. 1999, Pevzner and Hearst 2002, as in nltk.
    """
    size = window_size(gold)
    if len(gold) < size:
        return 0.0, 0.0
    counts = []
    for marks in (gold, predicted):
        ends = np.append(np.asarray(marks[1:], np.int64), 0)  # nltk's form: 1 where a segment ends
        total = np.concatenate([[0], np.cumsum(ends)])
        counts.append(total[size:] - total[:-size])
    left, right = counts
    return float(((left > 0) != (right > 0)).mean()), float((left != right).mean())


def boundary_f1(gold: Marks, predicted: Marks) -> float:
    """F1 of exact boundaries; 0 when there is no common one."""
    common = sum(1 for mark, guess in zip(gold[1:], predicted[1:], strict=True) if mark and guess)
    return 2.0 * common / (sum(gold[1:]) + sum(predicted[1:])) if common else 0.0


def joint_score(pk: float, window_diff: float, f1: float) -> float:
    """SuperDialseg's score: F1 and the two window measures, half and half."""
    return (2.0 * f1 + (1.0 - pk) + (1.0 - window_diff)) / 4.0


def matching(weights: NDArray[np.int64]) -> list[int]:
    """For each row the column of the best one-to-one matching, -1 for none. Cost: O(n^3). Source: Kuhn 1955."""
    rows, columns = weights.shape
    size = max(rows, columns)
    cost = np.zeros((size + 1, size + 1))
    cost[1 : rows + 1, 1 : columns + 1] = -weights
    potential_row, potential_column = np.zeros(size + 1), np.zeros(size + 1)
    matched = np.zeros(size + 1, np.intp)
    for row in range(1, size + 1):
        matched[0] = row
        column = 0
        least = np.full(size + 1, np.inf)
        came = np.zeros(size + 1, np.intp)
        used = np.zeros(size + 1, bool)
        while True:
            used[column] = True
            current = cost[matched[column]] - potential_row[matched[column]] - potential_column
            better = ~used & (current < least)
            least[better] = current[better]
            came[better] = column
            open_least = np.where(used, np.inf, least)
            open_least[0] = np.inf
            following = int(open_least.argmin())
            delta = open_least[following]
            potential_row[matched[used]] += delta
            potential_column[used] -= delta
            least[~used] -= delta
            column = following
            if matched[column] == 0:
                break
        while column:
            matched[column] = matched[came[column]]
            column = int(came[column])
    found = [-1] * rows
    for column in range(1, columns + 1):
        if 1 <= matched[column] <= rows:
            found[int(matched[column]) - 1] = column - 1
    return found


def one_to_one(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Share of messages that agree under the best one-to-one matching of topics: [0, 1]; 1 for no messages."""
    if not len(gold):
        return 1.0
    table = _table(gold, predicted)
    return sum(int(table[row, column]) for row, column in enumerate(matching(table)) if column >= 0) / len(gold)


def b_cubed(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """B-cubed F1 of topics: [0, 1]; 1 for no messages. Source: Bagga and Baldwin 1998."""
    if not len(gold):
        return 1.0
    table = _table(gold, predicted).astype(np.float64)
    squares = table * table
    precision = (squares.sum(axis=0) / table.sum(axis=0)).sum() / len(gold)
    recall = (squares.sum(axis=1) / table.sum(axis=1)).sum() / len(gold)
    return float(2.0 * precision * recall / (precision + recall))


def return_counts(gold: Sequence[int], predicted: Sequence[int], kinds: Sequence[str]) -> tuple[int, int, int]:
    """Right, predicted and gold returns.

    A gold return changes to a topic that was there before. A predicted one is right where there is a gold return, and most
    of what was put into its topic before belongs to the gold topic returned to.
    """
    right = told = real = 0
    for index in range(len(gold)):
        real_here = index > 0 and gold[index] != gold[index - 1] and gold[index] in gold[:index]
        real += real_here
        if kinds[index] != "return":
            continue
        told += 1
        earlier = [
            topic for topic, guess in zip(gold[:index], predicted[:index], strict=True) if guess == predicted[index]
        ]
        if real_here and earlier:
            right += max(sorted(set(earlier)), key=earlier.count) == gold[index]
    return right, told, real


def harmonic(right: int, told: int, real: int) -> float:
    """F1 from counts; 0 when nothing is right."""
    return 2.0 * right / (told + real) if right else 0.0


def _table(gold: Sequence[int], predicted: Sequence[int]) -> NDArray[np.int64]:
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold topics and {len(predicted)} predicted ones")
    rows, left = np.unique(np.asarray(gold), return_inverse=True)
    columns, right = np.unique(np.asarray(predicted), return_inverse=True)
    table = np.zeros((len(rows), len(columns)), np.int64)
    np.add.at(table, (left, right), 1)
    return table
