"""Checks of hyper-parameters at the border, in plain Python: what was given, what is allowed."""

import numbers
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def at_least_one(owner: str, name: str, value: Any) -> int:
    """`value` as an int; ValueError where it is not a whole number of 1 or more, of 31 bits."""
    try:
        number = operator.index(value)
    except TypeError:  # also of a traced value
        number = 0
    if not 1 <= number < 2**31:
        raise ValueError(
            f"{owner}: {name} must be a whole number of 1 or more, below 2^31, and known when the "
            f"program is compiled; got {value!r}"
        )
    return number


def probability(owner: str, name: str, value: Any) -> Any:
    """`value` as a float; ValueError where it is not in [0, 1]. A traced one is taken as it is."""
    return in_range(owner, name, value, "[0, 1]", lambda number: 0 <= number <= 1)


def moving_rate(owner: str, name: str, value: Any) -> Any:
    """`value` as a float; ValueError where it is not in (0, 1]. A traced one is taken as it is."""
    return in_range(owner, name, value, "(0, 1]", lambda number: 0 < number <= 1)


_WIRE_TYPES = ("bfloat16", "float16", "float32")


def wire_dtype(owner: str, value: Any) -> np.dtype | None:
    """`value` as a type that replicas can be sent in; ValueError where it is none. None stays None.

    Types of 8 bits and fewer are none of them: a replica would need a scale to go with it.
    """
    if value is None:
        return None
    try:
        dtype = jnp.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in _WIRE_TYPES:
        raise ValueError(
            f"{owner}: wire_dtype must be one of {', '.join(_WIRE_TYPES)}, or None; got {value!r}"
        )
    return dtype


def in_range(owner: str, name: str, value: Any, allowed: str, holds: Callable[[float], bool]) -> Any:
    """`value` as a float; ValueError where it does not hold. A traced one is taken as it is."""
    # Traced values pass as they are: `optax.inject_hyperparams` and jitted sweeps hand them over, and
    # nobody knows them here.
    if isinstance(value, Tracer):
        return value
    is_number = isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()
    if not (is_number and holds(float(value))):
        raise ValueError(f"{owner}: {name} must be a number in {allowed}; got {value!r}")
    return float(value)
