"""NoLoCo (Kolehmainen et al., 2025, https://arxiv.org/abs/2506.10911): outer steps between pairs.

every τ updates, with g the pair:
δ_i ← a δ_i + b mean_g(θ + u - φ) + c (mean_g(φ) - φ_i),    φ_i ← φ_i + δ_i,    θ_i ← φ_i
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gossip_jax import checks, exchange, traffic
from gossip_jax.mixing import graph_weights
from gossip_jax.protocols._outer import copied, periodic, wide_shapes
from gossip_jax.protocols.diloco import period_option
from gossip_jax.rounds import Round
from gossip_jax.spec import Option, Spec
from gossip_jax.traffic import Traffic


class NolocoState(NamedTuple):
    """A worker's own slow parameters and how they moved; both in float32 or wider."""

    params: Any  # φ_i
    move: Any  # δ_i


def noloco(
    period: int = 50,
    momentum: float = 0.5,
    learning_rate: float = 0.7,
    pull: float | None = None,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """NoLoCo: as DiLoCo, but workers meet in pairs: nobody waits for all, and there is no collective.

    Every worker has slow parameters φ_i of its own. Where `round.step % τ == 0`, those that the round
    brings together take the mean of how far they came, `Δ = θ + u - φ`, and of their φ: with the rates
    a (`momentum`), b (`learning_rate`) and c (`pull`), `δ_i ← a δ_i + b mean(Δ) + c (mean(φ) - φ_i)`,
    then `φ_i ← φ_i + δ_i`, and the worker goes on from φ_i. Two replicas go each way, Δ and φ. Whoever
    meets nobody at such an update takes its own step.

    Draw the rounds by `gj.pairing(W, p=1, period=τ)`: contacts at other updates are not used. In a
    round of several contacts, or of a graph, means are taken by `gj.mixing_matrix`. The model to use is
    the mean of replicas, or any of them; they agree approximately. For a single worker it is not the
    local optimizer alone.

    Args:
      period: the communication period τ, 1 or more.
      momentum: a, in [0, 1).
      learning_rate: b, above 0.
      pull: c, 0 or more; as b where None.
      axis_name: the worker axis.

    Returns:
      A transformation whose state is a `NolocoState`, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`. Start all replicas equal.

    Raises:
      ValueError: an argument is out of range; in `update`, `params` or `round` is missing, or the round
        is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.adam(1e-3), noloco(period=50))

    References:
      Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, *NoLoCo: No-all-reduce Low Communication Training
      Method for Large Models*, 2025 (https://arxiv.org/abs/2506.10911)
    """
    a = checks.in_range("noloco", "momentum", momentum, "[0, 1)", lambda number: 0 <= number < 1)
    b = checks.in_range("noloco", "learning_rate", learning_rate, "(0, inf)", lambda number: number > 0)
    c = b
    if pull is not None:
        c = checks.in_range("noloco", "pull", pull, "[0, inf)", lambda number: number >= 0)

    def init(params: Any) -> NolocoState:
        start = copied(params)
        return NolocoState(start, jax.tree.map(jnp.zeros_like, start))

    def meet(point: Any, state: NolocoState, round: Round) -> tuple[Any, NolocoState]:
        delta = jax.tree.map(jnp.subtract, point, state.params)
        nothing = jax.tree.map(jnp.zeros_like, state.params)
        mean_delta, to_mean = exchange.mix(
            (delta, nothing), (delta, state.params), round, graph_weights(round), axis_name
        )

        def accelerate(move: Array, mean: Array, away: Array) -> Array:
            return a * move + b * mean + c * away

        move = jax.tree.map(accelerate, state.move, mean_delta, to_mean)
        new = NolocoState(jax.tree.map(jnp.add, state.params, move), move)
        return new.params, new

    return periodic("noloco", period, axis_name, init, meet)


def _traffic(rounds: Round, params: Any, period: int, **_: Any) -> Traffic:
    wide = wide_shapes(params)
    return traffic.counted_routes(traffic.at(rounds, traffic.due(rounds, period)), (wide, wide))


SPEC = Spec(
    factory=noloco,
    label="NoLoCo",
    short="NoLoCo",
    summary="as DiLoCo, between pairs: nobody waits for all",
    color="deepskyblue",
    line="-",
    rounds="pairs",
    traffic=_traffic,
    options=(
        period_option(50),
        Option(
            name="pair_momentum",
            kind=float,
            help="The momentum of the outer steps.",
            default=0.5,
        ),
        Option(
            name="pair_learning_rate",
            kind=float,
            help="The rate at which workers follow the mean move of a pair, and its mean parameters.",
            default=0.7,
        ),
    ),
    make=lambda period, pair_momentum, pair_learning_rate: noloco(
        period, pair_momentum, pair_learning_rate
    ),
    defaults={"p": 1.0, "peers": "pairing"},
)
