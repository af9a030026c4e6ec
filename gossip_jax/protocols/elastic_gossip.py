"""Elastic Gossip (S. Pramod, 2018, https://arxiv.org/abs/1812.02407).

θ_i ← θ_i + u_i - α Σ_{k ∈ K_i} (θ_i - θ_k),    K_i = {k : i picked k, or k picked i}
"""

from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from gossip_jax import checks, traffic
from gossip_jax.mixing import both_ways, by_route, received
from gossip_jax.protocols._pairwise import mixing
from gossip_jax.rounds import Round, in_contact
from gossip_jax.spec import WIRE_DTYPE, Spec, moving_rate
from gossip_jax.traffic import Traffic


def elastic_gossip(
    alpha: float, axis_name: str = "workers", wire_dtype: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Elastic Gossip: two workers in contact pull each other's parameters together.

    Worker i moves by `u_i - α Σ_{k ∈ K_i} (θ_i - θ_k)`, where `u_i` is the update from the
    transformations before this one, the θ are the parameters before the update, and `K_i` holds
    all whom i picked and all who picked i: both sides move, whoever initiated, so an exchange keeps
    the sum of the parameters over workers. With one peer, α = 0.5 is plain averaging.

    A worker with several peers keeps the weight `1 - α |K_i|` on its own parameters, which can be
    negative: -0.5 for α = 0.5 and three peers. That is the thesis's rule. Draw the rounds with
    `pairing` where it is not wanted: then nobody has more than one peer.

    Args:
      alpha: the moving rate α, in (0, 1].
      axis_name: the worker axis.
      wire_dtype: the type of floating point that parameters are sent in, such as "bfloat16", which
        halves the bytes; their own type by default. Both sides then go by what was sent, so that
        their moves stay opposite, and replicas that agree stay as they are.

    Returns:
      A transformation without state, to go *after* the optimizer in the chain. Its `update` needs
      `params` and `round=`.

    Raises:
      ValueError: α is out of range, or `wire_dtype` no type of floating point; in `update`, `params` or
        `round` is missing, or the round is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), elastic_gossip(alpha=0.5))

    References:
      S. Pramod, *Elastic Gossip: Distributing Neural Network Training Using Gossip-like
      Protocols*, 2018 (https://arxiv.org/abs/1812.02407)
    """
    alpha = checks.moving_rate("elastic_gossip", "alpha", alpha)

    def weights(round: Round) -> tuple[Round, Array]:
        round = both_ways("elastic_gossip", round)
        is_peer = received(round) if round.peer is None else by_route(round, in_contact(round))
        return round, jnp.where(is_peer, jnp.asarray(alpha, float), 0)

    return mixing("elastic_gossip", weights, axis_name, wire_dtype)


def _traffic(rounds: Round, params: Any, wire_dtype: Any) -> Traffic:
    return traffic.counted_routes(both_ways("elastic_gossip", rounds), params, wire_dtype)


SPEC = Spec(
    factory=elastic_gossip,
    label="Elastic Gossip",
    short="EG",
    summary="two workers in contact pull each other together",
    color="tab:blue",
    line="-",
    rounds="peers",
    traffic=_traffic,
    options=(moving_rate(0.5), WIRE_DTYPE),
    can_be_late=True,
)
