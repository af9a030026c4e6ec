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
from jax.typing import ArrayLike

from gossip_jax import wire
from gossip_jax.matchings import exchanges, pairs, used


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
    is_known_to_talk: bool = False,
) -> Any:
    """Moves each worker towards others: adds `Σ_k weights[i, k] (θ_k - θ_i)` to worker i's updates.

    Workers exchange their replicas where they are in contact, and nowhere else: a round without
    contact runs no collective, and a worker outside every active pair sends nothing.

    `lax.ppermute` needs a permutation that is known when the program is compiled. So every exchange
    there may be is compiled in, as a branch of a `lax.switch`: all pairs of workers, and once more all
    pairs of a matching, which then swap at once, for rounds that use it whole. What chooses among them
    comes from the round alone: workers that disagree on a conditional around a collective wait for each
    other for ever. The time to compile grows with the number of pairs, `W (W - 1) / 2`.

    Args:
      updates: one worker's updates, a pytree of arrays.
      params: its parameters θ_i, a pytree of the same structure.
      weights: float [W, W], zero where there is no contact. Worker i uses its row i only.
      contact: bool [W, W], symmetric, false on the diagonal, the same on every worker.
      axis_name: the worker axis.
      wire_dtype: the floating-point type that replicas are sent in; their own, where None. Both sides
        of an exchange then go by what was sent, so that they still move by opposite amounts.
      is_known_to_talk: whether the round has contact for sure: there is then no conditional around it.

    Returns:
      The new updates of this worker; what it was given, where it talks to nobody.
    """
    if axis_size(axis_name) == 1:
        return updates

    def talk(updates: Any) -> Any:
        return _talk(updates, params, weights, contact, axis_name, wire_dtype)

    return talk(updates) if is_known_to_talk else when(contact.any(), talk, updates, axis_name)


def _talk(
    updates: Any, params: Any, weights: Array, contact: Array, axis_name: str, wire_dtype: Any
) -> Any:
    """As `mix`, for a round with contact.

    Most rounds are a single exchange. What it brings is added in the same pass over memory that makes
    the updates, where XLA fuses the two. Only where there are more are their moves summed up first.
    """
    partner, matching = exchanges(axis_size(axis_name))
    is_used = used(contact)
    first, is_single = is_used.argmax(), is_used.sum() <= 1
    me = lax.axis_index(axis_name)
    weight = weights[me, jnp.asarray(partner)[:, me]]  # in each exchange
    parts, unpack = wire.pack(params, wire.SMALL if _is_sent(axis_name) else 0)
    mine = varying([wire.rounded(part, wire_dtype) for part in parts], axis_name)
    messages = [wire.encoded(part, wire_dtype) for part in mine]
    swaps = [functools.partial(_swapped, partner=row, axis_name=axis_name) for row in partner]

    def decoded(messages: Sequence[Array]) -> list[Array]:
        received = zip(messages, mine, strict=True)
        return [wire.decoded(message, wire_dtype, part.dtype) for message, part in received]

    def move(exchange: ArrayLike, mine: Array, theirs: Array) -> Array:
        """Selected, not multiplied by a weight of zero: 0 * NaN is NaN."""
        step = weight[exchange].astype(mine.dtype) * (theirs - mine)
        return jnp.where(weight[exchange] != 0, step, 0)

    def moves(exchange: ArrayLike, theirs: list[Array]) -> list[Array]:
        return jax.tree.map(functools.partial(move, exchange), mine, theirs)

    def add_one(exchange: int, total: list[Array]) -> list[Array]:
        return jax.tree.map(jnp.add, total, moves(exchange, decoded(swaps[exchange](messages))))

    def add_all(members: np.ndarray, total: list[Array]) -> list[Array]:
        """Those exchanges that are still to be made."""
        for exchange in members:
            total = _when(is_left[exchange], functools.partial(add_one, exchange), total)
        return total

    def sum_of_moves(theirs: list[Array]) -> list[Array]:
        total = moves(first, theirs)
        for number in np.unique(matching):
            members = np.flatnonzero(matching == number)
            total = _when(is_left[members].any(), functools.partial(add_all, members), total)
        return total

    is_left = is_used & (np.arange(len(partner)) != first)
    theirs = decoded(lax.switch(first, swaps, messages))
    brought = unpack(_when(~is_single, sum_of_moves, theirs))

    def add(update: Array, param: Array, brought: Array) -> Array:
        only_move = move(first, wire.rounded(param, wire_dtype), brought)
        step = jnp.where(is_single, only_move, brought)
        return jnp.where((weights[me] != 0).any(), update + step.astype(update.dtype), update)

    return jax.tree.map(add, updates, params, brought)


def _swapped(messages: Sequence[Array], partner: np.ndarray, axis_name: str) -> list[Array]:
    """What each worker's partner sent. A worker without one, its own partner, gets nothing of use."""
    permutation = [*enumerate(partner.tolist())]
    with jax.named_scope("exchange_" + "_".join(f"{one}-{other}" for one, other in pairs(partner))):
        if _is_over_gloo(axis_name):
            # XLA has gloo send a permutation in one direction after the other. A sum over the pair goes
            # in both at once, in as many bytes; integers wrap around, so that the difference is exact.
            groups = sorted({tuple(sorted({*pair})) for pair in permutation})

            def swapped(message: Array) -> Array:
                mine = wire.bits(message)
                both = lax.psum(mine, axis_name, axis_index_groups=groups)
                return wire.from_bits(both - mine, message.dtype)

            return [swapped(message) for message in messages]
        # Under vmap a permutation has to be full. A pair with oneself is no message there.
        if _is_sent(axis_name):
            permutation = [(one, other) for one, other in permutation if one != other]
        return [lax.ppermute(message, axis_name, permutation) for message in messages]


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
