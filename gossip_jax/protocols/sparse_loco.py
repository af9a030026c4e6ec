"""SparseLoCo (Sarfi et al., 2025, https://arxiv.org/abs/2508.15706): compressed outer steps.

every τ updates:  e_i ← β e_i + φ - θ_i - u_i,    q_i = C(e_i),    e_i ← e_i - q_i,
φ ← φ - α (1/W) Σ_k q_k,    θ_i ← φ
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from gossip_jax import checks, exchange, keys, traffic
from gossip_jax.compression import Compressor, top_k
from gossip_jax.protocols._outer import copied, periodic, wide_shapes
from gossip_jax.protocols.choco import (
    COMPRESSION,
    check_compressor,
    encoded,
    make_compressor,
    shared_key,
)
from gossip_jax.protocols.diloco import period_option
from gossip_jax.rounds import Round
from gossip_jax.spec import Option, Spec
from gossip_jax.traffic import Traffic


class SparseState(NamedTuple):
    """Of outer steps in compressed messages; in float32 or wider."""

    params: Any  # φ: as the parameters, equal on every worker
    error: Any  # e_i: what a worker has not sent yet


def sparse_loco(
    compressor: Compressor | None = None,
    period: int = 15,
    beta: float = 0.95,
    alpha: float = 1.0,
    axis_name: str = "workers",
    key: Array | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SparseLoCo: as DiLoCo, with compressed messages, whose errors are sent later.

    Every τ updates a worker adds how far it came, `φ - θ`, to its error buffer e, of which β is left
    from before; it sends a compressed e, and keeps the rest. All take the mean of what was sent, move φ
    by α times it, and go on from φ. There is no outer momentum: the buffers act as one. Each worker's
    message goes to all others, so it pays while `W` times the message is less than twice the
    parameters.

    Args:
      compressor: of `gj.compression`; where None, the largest thirty-second in each 4096 entries.
      period: the communication period τ, 1 or more.
      beta: what is left of the error buffer, in [0, 1].
      alpha: the outer learning rate, above 0.
      axis_name: the worker axis.
      key: what random compressors draw from, the same on every worker; `gj.keys.run_key(0)` by default.

    Returns:
      A transformation whose state is a `SparseState`, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`, of which it uses the step. Start all replicas equal.

    Raises:
      ValueError: an argument is out of range; in `update`, `params` or `round` is missing, or the round
        is of another W than the axis.
      TypeError: `compressor` is none; in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.adamw(4e-4), sparse_loco(period=15))

    References:
      Sarfi, Thérien, Lidin, Belilovsky, *Communication Efficient LLM Pre-training with SparseLoCo*,
      2025 (https://arxiv.org/abs/2508.15706)
    """
    own = "sparse_loco"
    compress = top_k(1 / 32, chunk=4096) if compressor is None else compressor
    check_compressor(own, compress)
    beta = checks.in_range(own, "beta", beta, "[0, 1]", lambda number: 0 <= number <= 1)
    alpha = checks.in_range(own, "alpha", alpha, "(0, inf)", lambda number: number > 0)
    drawn_from = keys.run_key(0) if key is None else key

    def init(params: Any) -> SparseState:
        start = copied(params)
        return SparseState(start, jax.tree.map(jnp.zeros_like, start))

    def meet(point: Any, state: SparseState, round: Round) -> tuple[Any, SparseState]:
        def accumulated(e: Array, slow: Array, new: Array) -> Array:
            return beta * e + slow - new

        error = jax.tree.map(accumulated, state.error, state.params, point)
        shared = shared_key(drawn_from, round)
        messages = encoded(compress, error, shared, axis_name)

        def decoded(message: Array, like: Array) -> Array:
            return compress.decode(message, like.shape, like.dtype, shared)

        def step(slow: Array, of_all: Array) -> Array:
            """φ, less what all have sent of this leaf."""

            def add(total: Array, message: Array) -> tuple[Array, None]:
                return total + decoded(message, slow), None

            total, _ = lax.scan(add, jnp.zeros_like(slow), of_all)
            return slow - (alpha / len(of_all)) * total

        sent = jax.tree.map(decoded, messages, error)
        params = jax.tree.map(step, state.params, exchange.gathered(messages, axis_name))
        return params, SparseState(params, jax.tree.map(jnp.subtract, error, sent))

    return periodic(own, period, axis_name, init, meet)


def _traffic(
    rounds: Round, params: Any, compressor: str, fraction: float, bits: int, period: int, **_: Any
) -> Traffic:
    message = make_compressor(compressor, fraction, bits).message(wide_shapes(params))
    return traffic.counted_gathering(rounds, message, period)


SPEC = Spec(
    factory=sparse_loco,
    label="SparseLoCo",
    short="SparseLoCo",
    summary="as DiLoCo, in compressed messages whose errors are sent later",
    color="darkkhaki",
    line="--",
    rounds="none",
    traffic=_traffic,
    options=(
        *COMPRESSION,
        period_option(15),
        Option(
            name="error_decay",
            kind=float,
            help="What is left of what was not sent, from one outer step to the next.",
            default=0.95,
        ),
        Option(
            name="sparse_learning_rate",
            kind=float,
            help="The learning rate of the outer steps.",
            default=1.0,
        ),
    ),
    make=lambda compressor, fraction, bits, period, error_decay, sparse_learning_rate: sparse_loco(
        make_compressor(compressor, fraction, bits), period, error_decay, sparse_learning_rate
    ),
    waits_for_all=True,
)
