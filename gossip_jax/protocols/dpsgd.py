"""D-PSGD (Lian et al., 2017, https://arxiv.org/abs/1705.09056): mixing with all neighbours of a graph.

awc:  θ_i ← Σ_k w_ik θ_k + u_i
atc:  θ_i ← Σ_k w_ik (θ_k + u_k)
"""

from typing import Any, Literal, get_args

import optax
from jax import Array

from gossip_jax import traffic
from gossip_jax.mixing import graph_weights
from gossip_jax.protocols._pairwise import mixing
from gossip_jax.rounds import Round
from gossip_jax.spec import WIRE_DTYPE, Option, Spec

Order = Literal["awc", "atc"]


def dpsgd(
    order: Order = "awc", axis_name: str = "workers", wire_dtype: Any = None
) -> optax.GradientTransformationExtraArgs:
    """D-PSGD: every worker becomes a weighted mean of itself and those it hears from, plus its update.

    Worker i moves by `u_i + Σ_k w_ik (θ_k - θ_i)`, where `w` are the weights of the round's graph
    (`gj.mixing_matrix`). All graphs here but some of one's own are doubly stochastic: mixing then keeps
    the sum of the parameters over workers, and replicas that agree stay as they are, to the bit.

    Papers and frameworks differ in the order. *Adapt while communicating* (`"awc"`) mixes the
    parameters from before the local update, as D-PSGD's paper does: where it is known which routes are
    in use, what is sent travels while the gradient is computed. *Adapt, then communicate* (`"atc"`)
    mixes those after it: nothing overlaps, but workers end closer to the optimum at the same step size.

    Args:
      order: "awc" or "atc".
      axis_name: the worker axis.
      wire_dtype: the type of floating point that parameters are sent in, "bfloat16" or "float16", which
        halves the bytes; their own type by default. All then go by what was sent.

    Returns:
      A transformation without state, to go *after* the optimizer in the chain. Its `update` needs
      `params` and `round=`. Rounds come from `gj.every`, `gj.in_turn` or `gj.at_random`; contacts of
      `gj.uniform_peers` and `gj.pairing` are mixed with Metropolis-Hastings weights.

    Raises:
      ValueError: an unknown order, or `wire_dtype` is no type that replicas are sent in; in `update`,
        `params` or `round` is missing, or the round is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), dpsgd())

    References:
      Lian, Zhang, Zhang, Hsieh, Zhang, Liu, *Can Decentralized Algorithms Outperform Centralized
      Algorithms?*, 2017 (https://arxiv.org/abs/1705.09056)
    """
    if order not in get_args(Order):
        raise ValueError(f"dpsgd: order must be 'awc' or 'atc'; got {order!r}")

    def weights(round: Round) -> tuple[Round, Array]:
        return round, graph_weights(round)

    return mixing("dpsgd", weights, axis_name, wire_dtype, order)


SPEC = Spec(
    factory=dpsgd,
    label="D-PSGD",
    short="DP",
    summary="every worker becomes a weighted mean of itself and those it hears from",
    color="tab:purple",
    line="-",
    rounds="graph",
    traffic=lambda rounds, params, order, wire_dtype: traffic.counted_routes(
        rounds, params, wire_dtype
    ),
    options=(
        Option(
            name="order",
            kind=Order,
            help="Whether parameters are mixed before the local update (awc) or after it (atc).",
            default="awc",
        ),
        WIRE_DTYPE,
    ),
    can_be_late=True,
)
