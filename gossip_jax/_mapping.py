"""What `Placement.map` asks of a function, its arguments and its results, and says where it is not met.

All is looked at when the function is traced, so that a compiled one costs nothing more.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


def check_arguments(
    arguments: Sequence[Any], keywords: dict[str, Any], in_axes: Sequence[int | None], num_workers: int
) -> None:
    """Raises ValueError unless the arguments fit `in_axes` and the number of workers."""
    if keywords:
        raise ValueError(
            f"map: a placed function takes its arguments by position, as in_axes counts them; got "
            f"{', '.join(sorted(keywords))} by keyword"
        )
    if len(arguments) != len(in_axes):
        raise ValueError(
            f"map: in_axes has one entry for each argument; got {len(in_axes)} entries, "
            f"{tuple(in_axes)}, and {len(arguments)} arguments"
        )
    for number, (argument, axis) in enumerate(zip(arguments, in_axes, strict=True)):
        if axis is None:
            continue
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            shape = np.shape(leaf)
            if not shape or shape[0] != num_workers:
                raise ValueError(
                    f"map: a stacked value has a leading axis of {num_workers}, a row for each worker; "
                    f"argument {number}{jax.tree_util.keystr(path)} has shape {shape}. Stack it "
                    f"(replicate, split), or share it with None in in_axes"
                )


def of_whole(
    mapped: Callable[..., Any], in_axes: Sequence[int | None], num_workers: int
) -> Callable[..., Any]:
    """A function of stacked values, whose arguments are looked at first."""

    @functools.wraps(mapped)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        check_arguments(arguments, keywords, in_axes, num_workers)
        return mapped(*arguments)

    return checked


def of_worker(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one worker's values, whose results are looked at, and whether any is lost.

    Modules of flax's nnx are changed in place. Those that a function mapped by JAX is given are copies,
    so the change is lost unless the function returns it; those that it closes over cannot change.
    """

    @functools.wraps(function)
    def checked(*arguments: Any) -> Any:
        held = _held(arguments)
        try:
            result = function(*arguments)
        except Exception as error:
            if "flax.nnx" not in sys.modules or "different trace level" not in str(error):
                raise  # it is not one of flax's own about such a change
            raise ValueError(_lost("an nnx object that it closes over")) from error
        returned = {id(leaf) for leaf in jax.tree.leaves(result)}
        for thing, before in held:
            now = jax.tree.leaves(thing)
            changed = [leaf for leaf in now if id(leaf) not in {id(leaf) for leaf in before}]
            if any(id(leaf) not in returned for leaf in changed):
                raise ValueError(_lost(f"its argument of type {type(thing).__name__}"))
        _check_result(result)
        return result

    return checked


def _held(arguments: Any) -> list[tuple[Any, list[Any]]]:
    """The nnx objects among the arguments, with the values that they hold."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:  # then there are none
        return []
    kinds = tuple(getattr(nnx, name) for name in ("Pytree", "Variable") if hasattr(nnx, name))
    nodes = jax.tree.leaves(arguments, is_leaf=lambda node: isinstance(node, kinds))
    return [(node, jax.tree.leaves(node)) for node in nodes if isinstance(node, kinds)]


def _lost(what: str) -> str:
    return (
        f"map: the function changes {what} in place, and JAX would lose the change, so that nothing "
        f"trains. Return what changed; or split the object (graph, state = nnx.split(model)), map a "
        f"function of the state that merges it (nnx.merge(graph, state)) and returns the new one, as "
        f"nnx.vmap does"
    )


def _check_result(result: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
            raise ValueError(
                f"map: all that a placed function returns is stacked, so it must be arrays; "
                f"result{jax.tree_util.keystr(path)} is {leaf!r}, of type {type(leaf).__name__}"
            )
