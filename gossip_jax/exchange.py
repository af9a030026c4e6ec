"""What passes between workers: the only file that names a collective between peers.

Every function here runs under a worker axis bound by `jax.vmap`, `jax.pmap` or `jax.shard_map`, and
sees one worker's values.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gossip_jax import wire
from gossip_jax.matchings import matchings


def axis_size(axis_name: str) -> int:
    """W, the number of workers on the axis; ValueError where no such axis is bound."""
    try:
        return lax.axis_size(axis_name)
    except NameError:
        raise ValueError(
            f"no worker axis named {axis_name!r} here: a protocol's update runs under jax.vmap, "
            f"jax.pmap or jax.shard_map with axis_name={axis_name!r}"
        ) from None


def mean(tree: Any, axis_name: str) -> Any:
    """The mean over workers of every leaf, on every worker: one all-reduce.

    Raises:
      ValueError: under `jax.shard_map`, the leaf is known to be the same on every worker.
    """
    for leaf in jax.tree.leaves(tree):
        # Under check_vma=True the gradient of parameters that all workers share is summed over them by
        # JAX already, and a mean over workers would leave it W times too large.
        if axis_name in _varying_axes(lax.axis_index(axis_name)) - _varying_axes(leaf):
            raise ValueError(
                f"what is to be averaged over {axis_name!r} is the same on every worker already: pass "
                f"each worker its own parameters (jax.shard_map with in_specs=P({axis_name!r}))"
            )
    if _is_sent(axis_name):
        return lax.pmean(tree, axis_name)
    return jax.tree.map(lambda leaf: _mean_of_rows(leaf, axis_name), tree)


def mix(
    updates: Any,
    params: Any,
    weights: Array,
    contact: Array,
    axis_name: str,
    wire_dtype: np.dtype | None = None,
) -> Any:
    """Moves each worker towards others: adds `Σ_k weights[i, k] (θ_k - θ_i)` to worker i's updates.

    Workers exchange their replicas where they are in contact, and nowhere else: a round without
    contact runs no collective, and a worker outside every active pair sends nothing.

    `lax.ppermute` needs a permutation that is known when the program is compiled. So all pairs of
    workers, ordered by matchings so that disjoint pairs need not wait for each other, are compiled
    in, each inside a conditional; and once more all pairs of a matching, which then swap at once, for
    rounds that use it whole. What chooses among them comes from the round alone: workers that
    disagree on a conditional around a collective wait for each other for ever. The time to compile
    grows with the number of pairs, `W (W - 1) / 2`.

    Args:
      updates: one worker's updates, a pytree of arrays.
      params: its parameters θ_i, a pytree of the same structure.
      weights: float [W, W], zero where there is no contact. Worker i uses its row i only.
      contact: bool [W, W], symmetric, false on the diagonal, the same on every worker.
      axis_name: the worker axis.
      wire_dtype: the floating-point type that replicas are sent in; their own, where None. Both sides
        of an exchange then go by what was sent, so that they still move by opposite amounts.

    Returns:
      The new updates of this worker; what it was given, where it talks to nobody.
    """
    num_workers = axis_size(axis_name)
    me = lax.axis_index(axis_name)

    def swap(pairs: Sequence[tuple[int, int]], updates: Any) -> Any:
        """The exchange of disjoint pairs."""
        partner = np.arange(num_workers)
        for one, other in pairs:
            partner[[one, other]] = other, one
        weight = weights[me, jnp.asarray(partner)[me]]
        sent = wire.rounded(params, wire_dtype)

        def move(update: Array, mine: Array, theirs: Array) -> Array:
            step = weight.astype(mine.dtype) * (theirs - mine)
            # Selected, not multiplied by a weight of zero: 0 * NaN is NaN.
            return jnp.where(weight != 0, update + step.astype(update.dtype), update)

        with jax.named_scope("exchange_" + "_".join(f"{one}-{other}" for one, other in pairs)):
            small = wire.SMALL if _is_sent(axis_name) else 0
            messages, unpack = wire.pack(sent, wire_dtype, small)
            received = unpack([_swapped(message, partner, axis_name) for message in messages])
            return jax.tree.map(move, updates, sent, received)

    def swap_within(matching: np.ndarray, updates: Any) -> Any:
        pairs = _pairs(matching)
        is_whole = jnp.stack([contact[pair] for pair in pairs]).all()
        # One conditional after another: XLA copies the updates where both branches of one change them.
        updates = _when(is_whole, lambda u: swap(pairs, u), updates)
        for pair in pairs if len(pairs) > 1 else []:
            is_alone = contact[pair] & ~is_whole
            updates = _when(is_alone, lambda u, pair=pair: swap([pair], u), updates)
        return updates

    def swap_all(updates: Any) -> Any:
        for matching in matchings(num_workers):
            in_use = contact[np.arange(num_workers), matching].any()
            updates = _when(in_use, lambda u, matching=matching: swap_within(matching, u), updates)
        return updates

    if num_workers == 1:
        return updates
    return when(contact.any(), swap_all, updates, axis_name)


def _swapped(message: Array, partner: np.ndarray, axis_name: str) -> Array:
    """The message, an array of unsigned integers, of each worker's partner.

    Who is a partner of its own gets nothing of use, and sends nothing.
    """
    if _is_over_gloo(axis_name):
        # XLA has gloo send a permutation in one direction after the other. A sum over the pair goes in
        # both at once, in as many bytes; and integers wrap around, so that the difference is exact.
        groups = sorted({tuple(sorted({*pair})) for pair in enumerate(partner.tolist())})
        return lax.psum(message, axis_name, axis_index_groups=groups) - message
    # A full permutation also runs under vmap, where a partial one does not.
    return lax.ppermute(message, axis_name, [*enumerate(partner.tolist())])


def when(predicate: Array, change: Callable[[Any], Any], tree: Any, axis_name: str) -> Any:
    """`change(tree)` where the predicate, the same on every worker, holds; else the tree untouched."""
    return _when(predicate, change, varying(tree, axis_name))


def _when(predicate: Array, change: Callable[[Any], Any], tree: Any) -> Any:
    return lax.cond(predicate, change, lambda tree: tree, tree)


def varying(tree: Any, axis_name: str) -> Any:
    """The same values, of a type that may differ between workers.

    `jax.shard_map` (check_vma=True) asks both branches of a conditional for equal types, and what
    comes out of an exchange may differ between workers. XLA drops the select.
    """
    always = lax.axis_index(axis_name) >= 0
    return jax.tree.map(lambda leaf: jnp.where(always, leaf, leaf), tree)


def _varying_axes(value: Array) -> frozenset[str]:
    """The axes over which shard_map says that a value may differ; none without check_vma."""
    kind = jax.typeof(value)
    kind = getattr(kind, "manual_axis_type", kind)
    return frozenset(getattr(kind, "varying", None) or getattr(kind, "vma", None) or ())


def _is_sent(axis_name: str) -> bool:
    """Whether what passes between workers is sent at all: under vmap they are rows of one array."""
    return axis_name in jax.sharding.get_abstract_mesh().manual_axes


def _is_over_gloo(axis_name: str) -> bool:
    """Whether CPUs of several processes send to each other, and JAX can have some of them add up.

    Under `jax.shard_map` with check_vma=True it cannot.
    """
    is_checked = bool(_varying_axes(lax.axis_index(axis_name)))
    return jax.process_count() > 1 and jax.default_backend() == "cpu" and not is_checked


def _mean_of_rows(leaf: Array, axis_name: str) -> Array:
    """As `lax.pmean`, under vmap.

    XLA reduces the first axis of an array many times slower on CPU than it adds its rows.
    """
    rows = lax.all_gather(leaf, axis_name)
    return functools.reduce(jnp.add, [rows[i] for i in range(len(rows))]) / len(rows)


def _pairs(matching: np.ndarray) -> list[tuple[int, int]]:
    return [(one, int(other)) for one, other in enumerate(matching) if one < other]
