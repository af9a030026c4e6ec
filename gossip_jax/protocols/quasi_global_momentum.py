"""Quasi-global momentum (Lin et al., 2021, https://arxiv.org/abs/2102.04761): that of mixed moves.

v_i = β m_i + u_i,    θ'_i = Σ_k w_ik (θ_k + v_k),    m_i ← μ m_i + (1 - μ) (θ'_i - θ_i)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gossip_jax import checks, exchange
from gossip_jax.mixing import graph_weights
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.spec import WIRE_DTYPE, Option, Spec
from gossip_jax.traffic import counted_routes


class QuasiGlobalState(NamedTuple):
    """A worker's momentum, of how its parameters moved with mixing."""

    momentum: Any  # as the parameters


def quasi_global_momentum(
    beta: float = 0.9,
    mu: float = 0.9,
    nesterov: bool = False,
    axis_name: str = "workers",
    wire_dtype: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Quasi-global momentum: D-PSGD with a momentum that follows how the mixed parameters moved.

    Where workers have unequal data, the momentum of each one's own gradients pulls replicas apart. This
    one is of the move `θ' - θ` of the parameters, in which the others have their part:
    `v = β m + u`, `θ' = Σ_k w_ik (θ_k + v_k)`, `m ← μ m + (1 - μ) (θ' - θ)`; with `nesterov` a worker
    moves by `u + β v` instead of v. As much is sent as by `dpsgd("atc")`, which it is with β = 0.

    It is written in units of updates, which is as in the paper while the learning rate stays, and needs
    no division by it. So put it after SGD *without* a momentum, or any other local optimizer.

    Args:
      beta: the momentum β, in [0, 1).
      mu: what m keeps of itself at an update, μ, in [0, 1).
      nesterov: whether a worker looks ahead.
      axis_name: the worker axis.
      wire_dtype: the type of floating point that parameters are sent in, "bfloat16" or "float16"; their
        own type by default.

    Returns:
      A transformation whose state is a `QuasiGlobalState`, to go *after* the optimizer in the chain.
      Its `update` needs `params` and `round=`; mixing is by the weights of the round's graph.

    Raises:
      ValueError: an argument is out of range; in `update`, `params` or `round` is missing, or the round
        is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), quasi_global_momentum())

    References:
      Lin, Karimireddy, Stich, Jaggi, *Quasi-Global Momentum: Accelerating Decentralized Deep Learning
      on Heterogeneous Data*, 2021 (https://arxiv.org/abs/2102.04761)
    """
    own = "quasi_global_momentum"
    beta = checks.in_range(own, "beta", beta, "[0, 1)", lambda number: 0 <= number < 1)
    mu = checks.in_range(own, "mu", mu, "[0, 1)", lambda number: 0 <= number < 1)
    wire_dtype = checks.wire_dtype(own, wire_dtype)

    def init(params: Any) -> QuasiGlobalState:
        return QuasiGlobalState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round(own, params, round, axis_name)

        def ahead(m: Array, u: Array) -> Array:
            u = u.astype(m.dtype)
            v = beta * m + u
            return u + beta * v if nesterov else v

        moves = jax.tree.map(ahead, state.momentum, updates)
        point = jax.tree.map(jnp.add, params, moves)
        moves = exchange.mix(moves, point, round, graph_weights(round), axis_name, wire_dtype)
        momentum = jax.tree.map(lambda m, move: mu * m + (1 - mu) * move, state.momentum, moves)
        updates = jax.tree.map(lambda move, u: move.astype(u.dtype), moves, updates)
        return updates, QuasiGlobalState(momentum)

    return Protocol(init, update, "after", axis_name)


SPEC = Spec(
    factory=quasi_global_momentum,
    label="QG-DSGDm",
    short="QG",
    summary="neighbours mix, with a momentum of how mixed parameters moved (use --momentum 0)",
    color="darkorange",
    line="-",
    rounds="graph",
    traffic=lambda rounds, params, wire_dtype, **_: counted_routes(rounds, params, wire_dtype),
    options=(
        Option(name="beta", kind=float, help="The momentum.", default=0.9),
        Option(name="mu", kind=float, help="What the momentum keeps of itself.", default=0.9),
        Option(name="nesterov", kind=bool, help="Whether workers look ahead.", default=False),
        WIRE_DTYPE,
    ),
)
