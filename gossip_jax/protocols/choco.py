"""CHOCO-SGD (Koloskova et al., 2019, https://arxiv.org/abs/1902.00340): gossip in compressed messages.

y_i = θ_i + u_i,    q_i = C(y_i - x_i),    x_i ← x_i + q_i,    θ_i ← y_i + γ Σ_k w_ik (x_k - x_i)
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from gossip_jax import axis, checks, exchange, keys
from gossip_jax.compression import Compressor, identity, quantise, random_k, sign, top_k
from gossip_jax.keys import Purpose
from gossip_jax.mixing import graph_weights
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._outer import copied, moved, towards, wide_shapes
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.rounds import Round, routes_in_use
from gossip_jax.spec import Option, Spec
from gossip_jax.traffic import Traffic, counted_routes

CompressorName = Literal["top_k", "random_k", "sign", "quantise", "identity"]


class ChocoState(NamedTuple):
    """What a worker's neighbours know of it, and where theirs pull it; in float32 or wider."""

    public: Any  # x_i: as the parameters
    pull: Any  # Σ_k w_ik (x_k - x_i)


def choco(
    compressor: Compressor, gamma: float, axis_name: str = "workers", key: Array | None = None
) -> optax.GradientTransformationExtraArgs:
    """CHOCO-SGD: workers send compressed news of themselves, and mix what all know of each.

    Every worker has a public copy x of its parameters, which its neighbours keep up to date by what it
    sends: `q = C(θ + u - x)`, the compressed difference. All then move by γ towards their neighbours'
    public copies. What compression leaves out stays in the difference, and is sent later. Mixing keeps
    the sum of the parameters over workers. With `compression.identity()` and γ = 1 it is
    `dpsgd("atc")`.

    γ must be smaller the more is left out: 0.2 for the largest quarter of the entries, about 0.04 for
    one in a hundred, 0.45 for signs; too large a γ diverges. Each tensor is compressed by itself. The
    state is two copies of the parameters, however many neighbours there are.

    Args:
      compressor: of `gj.compression`: `top_k`, `random_k`, `sign`, `quantise` or `identity`.
      gamma: the consensus step size γ, in (0, 1].
      axis_name: the worker axis.
      key: what random compressors draw from, the same on every worker; `gj.keys.run_key(0)` by default.

    Returns:
      A transformation whose state is a `ChocoState`, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`, from `gj.every(graph)`, with any period.

    Raises:
      ValueError: γ is out of range; in `update`, `params` or `round` is missing, the round is of
        another W than the axis, or its graph may change: nobody would know what others know.
      TypeError: `compressor` is none; in `update`, a parameter is not floating point.

    Examples:
      >>> import gossip_jax as gj
      >>> optimizer = optax.chain(optax.sgd(0.1), choco(gj.compression.top_k(0.1), gamma=0.2))

    References:
      Koloskova, Stich, Jaggi, *Decentralized Stochastic Optimization and Gossip Algorithms with
      Compressed Communication*, 2019 (https://arxiv.org/abs/1902.00340)
    """
    check_compressor("choco", compressor)
    gamma = checks.moving_rate("choco", "gamma", gamma)
    drawn_from = keys.run_key(0) if key is None else key

    def init(params: Any) -> ChocoState:
        nothing = jax.tree.map(jnp.zeros_like, copied(params))
        return ChocoState(nothing, jax.tree.map(jnp.zeros_like, nothing))

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round("choco", params, round, axis_name)
        if round.num_workers == 1 or max(round.num_routes) == 0:
            return updates, state
        _arguments.require_fixed("choco", round, may_be_silent=True)
        every = round.graph.num_routes
        own = exchange.of_worker(graph_weights(round), axis_name)
        rate = jnp.asarray(gamma, float)

        def gossip(carry: tuple[Any, ChocoState]) -> tuple[Any, ChocoState]:
            updates, state = carry
            point = moved(params, updates)
            news = jax.tree.map(jnp.subtract, point, state.public)
            shared = shared_key(drawn_from, round)
            messages = encoded(compressor, news, shared, axis_name)

            def decode(message: Array, like: Array) -> Array:
                return compressor.decode(message, like.shape, like.dtype, shared)

            def add(pull: Array, mine: Array, theirs: Array, route: ArrayLike) -> Array:
                return pull + own[route].astype(pull.dtype) * (
                    decode(theirs, pull) - decode(mine, pull)
                )

            talking = round.replace(num_routes=range(every, every + 1))
            pull = exchange.receive(messages, talking, axis_name, add, state.pull)
            public = jax.tree.map(lambda x, q: x + decode(q, x), state.public, messages)
            new = jax.tree.map(lambda y, move: y + rate.astype(y.dtype) * move, point, pull)
            return towards(new, params, updates), ChocoState(public, pull)

        if 0 not in round.num_routes:
            return gossip((updates, state))
        return exchange.when(routes_in_use(round).any(), gossip, (updates, state), axis_name)

    return Protocol(init, update, "after", axis_name)


def check_compressor(owner: str, compressor: Any) -> None:
    """Raises TypeError unless it is one."""
    if not isinstance(compressor, Compressor):
        raise TypeError(
            f"{owner}: compressor must be one of gossip_jax.compression, such as top_k(0.1); got "
            f"{compressor!r}"
        )


def shared_key(key: Array, round: Round) -> Array:
    """What all workers draw from at this update, the same whatever the settings of JAX."""
    with jax.threefry_partitionable(True):
        return keys.derive(key, Purpose.COMPRESSION, round.step)


def encoded(compressor: Compressor, tree: Any, shared: Array, axis_name: str) -> Any:
    """A message for each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    with jax.threefry_partitionable(True):
        own = jax.random.fold_in(shared, axis.worker_index(axis_name))
        messages = [
            compressor.encode(leaf, shared, jax.random.fold_in(own, number))
            for number, leaf in enumerate(leaves)
        ]
    return structure.unflatten(messages)


def make_compressor(compressor: str, fraction: float, bits: int) -> Compressor:
    """The compressor of a name, with those of the arguments that it has."""
    match compressor:
        case "top_k":
            return top_k(fraction)
        case "random_k":
            return random_k(fraction)
        case "quantise":
            return quantise(bits)
        case "sign":
            return sign()
        case _:
            return identity()


COMPRESSION = (
    Option(
        name="compressor",
        kind=CompressorName,
        help="How what is sent is compressed.",
        default="top_k",
    ),
    Option(
        name="fraction",
        kind=float,
        help="Of top_k and random_k: the share of the entries that is sent.",
        default=0.1,
    ),
    Option(
        name="bits",
        kind=int,
        help="Of quantise: the bits of an entry, 2, 4 or 8.",
        default=4,
    ),
)


def _traffic(rounds: Round, params: Any, compressor: str, fraction: float, bits: int) -> Traffic:
    made = make_compressor(compressor, fraction, bits)
    return counted_routes(rounds, made.message(wide_shapes(params)))


SPEC = Spec(
    factory=choco,
    label="CHOCO-SGD",
    short="CHOCO",
    summary="neighbours mix, in compressed messages",
    color="goldenrod",
    line="-",
    rounds="fixed graph",
    traffic=_traffic,
    options=(
        *COMPRESSION,
        Option(
            name="gamma",
            kind=float,
            help="The consensus step size.",
            default=0.2,
            is_traced=True,
        ),
    ),
    make=lambda compressor, fraction, bits, gamma: choco(
        make_compressor(compressor, fraction, bits), gamma
    ),
)
