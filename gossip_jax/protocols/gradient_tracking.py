"""Gradient tracking (Pu and Nedić, 2021, https://arxiv.org/abs/1805.11454): mixing the directions, too.

s_i = u_i + c_i,    θ_i ← Σ_k w_ik (θ_k + s_k),    c_i ← Σ_k w_ik s_k - u_i
"""

from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gossip_jax import exchange
from gossip_jax.mixing import graph_weights
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.rounds import Round
from gossip_jax.spec import Option, Spec
from gossip_jax.traffic import counted_routes

Tracked = Literal["updates", "gradients"]


class TrackingState(NamedTuple):
    """By how much others move differently, as far as a worker knows; the sum over workers is 0."""

    correction: Any  # as the parameters


def gradient_tracking(
    track: Tracked = "updates", axis_name: str = "workers"
) -> optax.GradientTransformationExtraArgs:
    """Gradient tracking: workers mix parameters and directions, and each follows the mean direction.

    With unequal data D-PSGD ends away from the optimum at any constant step size, since every worker's
    own gradient is not zero there. Here a worker moves by `s = u + c`, in which the correction c comes
    to be the difference of the mean update from its own: `θ ← Σ_k w_ik (θ_k + s_k)`,
    `c ← Σ_k w_ik s_k - u`. The sum of c over workers stays 0. It sends two replicas where `dpsgd` sends
    one.

    It tracks updates, which go with any local optimizer; or gradients, before the local optimizer sees
    them: then a drop of the learning rate takes effect at once, and an adaptive optimizer adapts to the
    tracked gradient. That form goes *around* the local optimizer, which `gj.decentralise` sees to.

    Args:
      track: "updates" or "gradients".
      axis_name: the worker axis.

    Returns:
      A transformation whose state is a `TrackingState`, to go *after* the optimizer in the chain, or
      for `gj.decentralise`. Its `update` needs `params` and `round=`; the graph may change from round
      to round. Start all replicas equal.

    Raises:
      ValueError: `track` is none of these; in `update`, `params` or `round` is missing, the round is of
        another W than the axis, or the weights of its graph do not keep the sum over workers.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), gradient_tracking())

    References:
      Pu, Nedić, *Distributed Stochastic Gradient Tracking Methods*, 2021
      (https://arxiv.org/abs/1805.11454)
    """
    own = "gradient_tracking"
    if track not in get_args(Tracked):
        raise ValueError(f"{own}: track must be 'updates' or 'gradients'; got {track!r}")

    def init(params: Any) -> TrackingState:
        return TrackingState(jax.tree.map(jnp.zeros_like, params))

    def checked(params: Any, round: Any) -> Round:
        round = _arguments.checked_round(own, params, round, axis_name)
        _arguments.require_kept_sum(own, round)
        return round

    def mixed(updates: Any, point: Any, directions: Any, round: Round) -> tuple[Any, Any]:
        """Updates that mix the point, and mixed directions."""
        both, sent = (updates, directions), (point, directions)
        return exchange.mix(both, sent, round, graph_weights(round), axis_name)

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = checked(params, round)
        given = jax.tree.map(_as, updates, params)
        directions = jax.tree.map(jnp.add, given, state.correction)
        point = jax.tree.map(jnp.add, params, directions)
        moves, mean = mixed(directions, point, directions, round)
        correction = jax.tree.map(jnp.subtract, mean, given)
        return jax.tree.map(_as, moves, updates), TrackingState(correction)

    def around(local: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
        local = optax.with_extra_args_support(local)

        def init_both(params: Any) -> tuple[TrackingState, Any]:
            return init(params), local.init(params)

        def update_both(
            updates: Any, state: Any, params: Any = None, *, round: Any = None, **others: Any
        ):
            tracking, of_local = state
            round = checked(params, round)
            gradient = jax.tree.map(_as, updates, params)
            directions = jax.tree.map(jnp.add, gradient, tracking.correction)
            moves, of_local = local.update(
                jax.tree.map(_as, directions, updates), of_local, params, round=round, **others
            )
            point = jax.tree.map(lambda p, move: p + move.astype(p.dtype), params, moves)
            moves, mean = mixed(moves, point, directions, round)
            return moves, (TrackingState(jax.tree.map(jnp.subtract, mean, gradient)), of_local)

        return optax.GradientTransformationExtraArgs(init_both, update_both)

    if track == "gradients":
        return Protocol(init, _arguments.only_around(own), around, axis_name)
    return Protocol(init, update, "after", axis_name)


def _as(value: Array, like: Array) -> Array:
    return value.astype(like.dtype)


SPEC = Spec(
    factory=gradient_tracking,
    label="gradient tracking",
    short="GT",
    summary="neighbours mix parameters and directions, so that each follows the mean direction",
    color="navy",
    line="-",
    rounds="graph",
    traffic=lambda rounds, params, track: counted_routes(rounds, (params, params)),
    options=(
        Option(
            name="track",
            kind=Tracked,
            help="Whether updates are tracked, or gradients before the local optimizer.",
            default="updates",
        ),
    ),
    conserved=(TrackingState,),
)
