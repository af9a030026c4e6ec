"""DiLoCo (Douillard et al., 2023, https://arxiv.org/abs/2311.08105): an outer optimizer of mean moves.

every τ updates:  φ ← outer(φ, (1/W) Σ_k (φ - θ_k - u_k)),    θ_i ← φ
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gossip_jax import exchange
from gossip_jax.protocols import local_sgd
from gossip_jax.protocols._outer import copied, periodic, stepped
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.rounds import Round
from gossip_jax.spec import Option, Spec


class OuterState(NamedTuple):
    """Of an outer optimizer, equal on every worker."""

    params: Any  # φ: as the parameters, in float32 or wider
    optimizer: Any  # the state of the outer optimizer


def nesterov(learning_rate: float = 0.7, momentum: float = 0.9) -> optax.GradientTransformation:
    """The outer optimizer of DiLoCo's paper."""
    return optax.sgd(learning_rate, momentum=momentum or None, nesterov=bool(momentum))


def diloco(
    outer: optax.GradientTransformation | None = None,
    period: int = 500,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DiLoCo: every τ updates an outer optimizer takes the mean move of all workers as a gradient.

    Where `round.step % τ == 0` the outer gradient is `Δ = φ - θ`, with θ the parameters after the local
    update, as a mean over workers; the outer optimizer moves the outer parameters φ by it, and all
    workers go on from φ. The state of the local optimizer stays each worker's own. It sends one mean of
    the parameters every τ updates, and keeps two more copies of them: φ and the outer momentum.

    With `optax.sgd(1.0)` as the outer optimizer it is `local_sgd`, with `optax.sgd(α, momentum=β)` it
    is `slowmo`. For a single worker it is not the local optimizer alone: φ follows it as in lookahead.

    Args:
      outer: any optax optimizer; where None, SGD with learning rate 0.7 and Nesterov momentum 0.9.
      period: the communication period τ, 1 or more.
      axis_name: the worker axis.

    Returns:
      A transformation whose state is an `OuterState`, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`, of which it uses the step. Start all replicas equal.

    Raises:
      ValueError: τ is out of range; in `update`, `params` or `round` is missing, or the round is of
        another W than the axis.
      TypeError: `outer` is no optimizer; in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.adamw(4e-4), diloco(period=100))

    References:
      Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023
      (https://arxiv.org/abs/2311.08105)
    """
    return outer_mean("diloco", nesterov() if outer is None else outer, period, axis_name)


def outer_mean(
    owner: str, outer: optax.GradientTransformation, period: int, axis_name: str
) -> Protocol:
    """A step of an outer optimizer along the mean move of all workers, every τ updates."""
    checked_outer(owner, outer)

    def init(params: Any) -> OuterState:
        start = copied(params)
        return OuterState(start, outer.init(start))

    def meet(point: Any, state: OuterState, round: Round) -> tuple[Any, OuterState]:
        del round
        gradient = exchange.mean(jax.tree.map(jnp.subtract, state.params, point), axis_name)
        new = OuterState(*stepped(outer, gradient, state.optimizer, state.params))
        return new.params, new

    return periodic(owner, period, axis_name, init, meet)


def checked_outer(owner: str, outer: Any) -> None:
    """Raises TypeError unless it is an optimizer."""
    if not isinstance(outer, optax.GradientTransformation):
        raise TypeError(
            f"{owner}: outer must be an optax optimizer, such as optax.sgd(0.7, momentum=0.9); got "
            f"{outer!r}"
        )


def period_option(default: int) -> Option:
    """The option τ of a protocol with an outer step."""
    return Option(name="period", kind=int, help="Every so many updates workers meet.", default=default)


OUTER = (
    Option(
        name="outer_learning_rate",
        kind=float,
        help="The learning rate of the outer SGD.",
        default=0.7,
    ),
    Option(
        name="outer_momentum",
        kind=float,
        help="The Nesterov momentum of the outer SGD.",
        default=0.9,
    ),
)

SPEC = Spec(
    factory=diloco,
    label="DiLoCo",
    short="DiLoCo",
    summary="an outer optimizer takes the mean move of all workers as a gradient",
    color="teal",
    line="-",
    rounds="none",
    traffic=lambda rounds, params, period, **_: local_sgd.counted(rounds, params, period),
    options=(*OUTER, period_option(100)),
    make=lambda outer_learning_rate, outer_momentum, period: diloco(
        nesterov(outer_learning_rate, outer_momentum), period
    ),
    waits_for_all=True,
)
