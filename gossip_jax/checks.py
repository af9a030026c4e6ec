"""Checks of hyper-parameters at the border, in plain Python: what was given, what is allowed."""

import numbers
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def at_least_one(owner: str, name: str, value: Any) -> int:
    """`value` as an int; ValueError where it is not a whole number of 1 or more."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{owner}: {name} must be a whole number of 1 or more; got {value!r}")
    return number


def probability(owner: str, name: str, value: Any) -> Any:
    """`value` as a float; ValueError where it is not in [0, 1]. An array is taken as it is."""
    return _in_range(owner, name, value, "[0, 1]", lambda number: 0 <= number <= 1)


def moving_rate(owner: str, name: str, value: Any) -> Any:
    """`value` as a float; ValueError where it is not in (0, 1]. An array is taken as it is."""
    return _in_range(owner, name, value, "(0, 1]", lambda number: 0 < number <= 1)


def _in_range(owner: str, name: str, value: Any, allowed: str, holds: Callable[[float], bool]) -> Any:
    # Arrays pass as they are: `optax.inject_hyperparams` and jitted sweeps hand over traced ones,
    # whose values nobody knows here.
    if isinstance(value, (jax.Array, np.ndarray)):
        return value
    if not (isinstance(value, numbers.Real) and holds(float(value))):
        raise ValueError(f"{owner}: {name} must be in {allowed}; got {value!r}")
    return float(value)
