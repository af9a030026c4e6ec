"""Times taken in turn, so that what else the machine does falls on all alike."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax

Key = TypeVar("Key", bound=Hashable)


def in_turn(cases: Mapping[Key, Callable[[], Any]], repeats: int) -> dict[Key, list[float]]:
    """The seconds that each case takes, `repeats` times: A B C, A B C, ...

    A first turn, which warms up, is not counted. What a case returns is waited for.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in cases}
    for repeat in range(repeats + 1):
        for key, case in cases.items():
            before = time.perf_counter()
            jax.block_until_ready(case())
            if repeat:
                seconds[key].append(time.perf_counter() - before)
    return seconds


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of times taken in the same turn."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))
