"""The data of the acceptance jobs, and the weights that plain gradient descent gives on them, without torch."""

import math
from typing import List, Sequence, Tuple

__all__ = ["COUNT", "ROWS", "loss_of", "trained"]

#: The number of rows. All of them are one batch, of which each rank takes its share: Lightning shuffles the rows where
#: there are several ranks, and so every world of up to 64 processes trains the same.
COUNT = 64


def _row(number: int) -> Tuple[float, float, float]:
    first, second = math.sin(number), math.cos(1.7 * number)
    return first, second, 1.5 * first - 0.5 * second + 0.25


#: Two inputs and the target of each row.
ROWS: Sequence[Tuple[float, float, float]] = tuple(map(_row, range(COUNT)))


def trained(steps: int, lr: float) -> List[float]:
    """Return the two weights and the bias after so many steps of gradient descent from zero."""
    weights = [0.0, 0.0, 0.0]
    for _ in range(steps):
        gradient = [0.0, 0.0, 0.0]
        for first, second, target in ROWS:
            error = weights[0] * first + weights[1] * second + weights[2] - target
            for place, value in enumerate((first, second, 1.0)):
                gradient[place] += 2 * error * value / COUNT
        weights = [weight - lr * slope for weight, slope in zip(weights, gradient)]
    return weights


def loss_of(weights: Sequence[float]) -> float:
    """Return the mean squared error of weights and bias over all rows."""
    errors = (weights[0] * first + weights[1] * second + weights[2] - target for first, second, target in ROWS)
    return sum(error**2 for error in errors) / COUNT
