"""Confidence intervals of sums and differences of means over seeds."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float
    basis: str  # what the interval rests on


def contrast(
    terms: Iterable[tuple[float, np.ndarray]], confidence: float, noise: float | None
) -> Interval:
    """A weighted sum of means over seeds, `Σ c_i mean(x_i)`, with a confidence interval.

    Where each x_i holds two runs or more, their own variances are used (Welch's interval). Else, and
    where all of them happen to agree to the last digit, they are taken to vary by `noise`; where that
    is not known, the interval is infinite.

    Args:
      terms: pairs of a coefficient c_i and the runs' figures x_i, float [n_i].
      confidence: of the interval, such as 0.95.
      noise: the standard deviation of one run.
    """
    terms = [(c, np.asarray(x, np.float64)) for c, x in terms]
    estimate = float(sum(c * x.mean() for c, x in terms))
    if all(len(x) >= 2 for _, x in terms) and any(x.var() > 0 for _, x in terms):
        variances = [c**2 * x.var(ddof=1) / len(x) for c, x in terms]
        total = sum(variances)
        freedom = total**2 / sum(
            variance**2 / (len(x) - 1) for variance, (_, x) in zip(variances, terms, strict=True)
        )
        half = stats.t.ppf((1 + confidence) / 2, freedom) * total**0.5
        basis = "deviation over seeds"
    elif noise is not None:
        total = sum(c**2 * noise**2 / len(x) for c, x in terms)
        half = stats.norm.ppf((1 + confidence) / 2) * total**0.5
        basis = "published seed noise"
    else:
        half, basis = float("inf"), "one seed, and no known noise"
    return Interval(estimate, estimate - half, estimate + half, basis)
