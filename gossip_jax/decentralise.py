"""An optimizer made decentralised: the protocol in its place, and rounds that it draws itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gossip_jax import axis, keys
from gossip_jax.draws import Draw
from gossip_jax.protocols._protocol import Join, Protocol

_ELSEWHERE = {
    "ScheduleFreeState": "schedule_free keeps a second copy of the parameters, z",
    "SAMState": "sam goes back to a copy of the parameters at every sync_period-th update",
}
"""State classes of optimizers that hold parameters of their own, and go around the protocol."""

_NOWHERE = {
    "MechanicState": "mechanize computes the parameters anew from those at the start",
    "MadgradState": "madgrad computes the parameters anew from those at the start",
}
"""Likewise, of those whose updates take back what was exchanged, whichever way round."""


class DecentralisedState(NamedTuple):
    """The state of an optimizer that draws its own rounds."""

    count: Any  # int32 scalar: the updates made, equal on every worker; the next round is of count + 1
    inner: Any  # of the local optimizer and the protocol


def decentralise(
    optimizer: optax.GradientTransformation,
    protocol: optax.GradientTransformation | Join,
    draw: Draw | None = None,
    key: Array | None = None,
    axis_name: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Puts a protocol where it belongs: before the local optimizer, after it, or around it.

    Elastic Gossip before the optimizer, or before a `scale(-learning_rate)`, drives replicas apart
    without an error; here each protocol goes to its own place of the chain.

    With a `draw`, the optimizer draws its rounds itself, by the number of updates that it has made, so
    that `update(grads, state, params)` is all that it takes: it then works wherever an optimizer does,
    such as in flax's `TrainState.apply_gradients`, and inside wrappers that hand no argument on. The
    rounds are `draw(key, 1)`, `draw(key, 2)` and so on; where `round=` is given, that one counts.

    Every worker must make equally many updates, since rounds are drawn by their number. What decides
    for each worker whether to update at all (`optax.apply_if_finite`, or `optax.MultiSteps` whose
    schedule differs) goes around the local optimizer, not around this. Under a bare `jax.vmap` a round
    without contact runs no exchange, as with shared rounds; only inside a conditional of each worker's
    own, such as that of `optax.MultiSteps` around this, vmap runs the exchange at every update.

    Args:
      optimizer: the local optimizer, with its learning rate.
      protocol: what one of the factories returns, such as `elastic_gossip(alpha=0.5)`; or, for one that
        is wrapped, a function from the local optimizer to the two together:
        `lambda local: optax.chain(local, optax.masked(elastic_gossip(alpha=0.5), mask))`.
      draw: a law of rounds, such as `uniform_peers(num_workers, p)`. Without it, `update` needs
        `round=`.
      key: what the rounds are drawn from, the same on every worker; `gj.keys.run_key(0)` by default.
      axis_name: the worker axis; the protocol's own by default.

    Returns:
      The optimizer. With a `draw` its state is a `DecentralisedState`.

    Raises:
      TypeError: `protocol` is neither of the two, `draw` is no law of rounds, or `key` no key.
      ValueError: the two are the wrong way round, or there is a key without a draw; in `init`, the
        local optimizer keeps parameters of its own that the protocol would not exchange.

    Examples:
      >>> import gossip_jax as gj
      >>> draw = gj.uniform_peers(num_workers=4, p=1 / 8)
      >>> optimizer = decentralise(optax.sgd(0.1), gj.elastic_gossip(alpha=0.5), draw)
      >>> params = jnp.zeros((4, 3))
      >>> state = jax.vmap(optimizer.init)(params)
      >>> updates, state = jax.vmap(optimizer.update, axis_name="workers")(params, state, params)
      >>> state.count
      Array([1, 1, 1, 1], dtype=int32)
    """
    _check_order(optimizer, protocol)
    join: Any = protocol.join if isinstance(protocol, Protocol) else protocol
    is_before = isinstance(protocol, Protocol) and protocol.place == "before"
    whole = optax.with_extra_args_support(join(_checked(optimizer, is_before)))
    if draw is None:
        if key is not None:
            raise ValueError("decentralise: a key is for drawing rounds, and there is no draw")
        return whole
    if not callable(draw) or not hasattr(draw, "num_workers"):
        raise TypeError(
            f"decentralise: draw must be a law of rounds, such as uniform_peers(num_workers, p); got "
            f"{draw!r}"
        )
    drawn_from = keys.run_key(0) if key is None else _checked_key(key)
    name = getattr(protocol, "axis_name", "workers") if axis_name is None else axis_name

    def init(params: Any) -> DecentralisedState:
        return DecentralisedState(jnp.zeros((), jnp.int32), whole.init(params))

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **others: Any):
        count = optax.safe_increment(state.count)
        if round is None:
            round = draw(drawn_from, axis.shared(count, name))
        updates, inner = whole.update(updates, state.inner, params, round=round, **others)
        return updates, DecentralisedState(count, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def _check_order(optimizer: Any, protocol: Any) -> None:
    """Raises unless the first is an optimizer, and the second a protocol."""
    if isinstance(optimizer, Protocol):
        raise ValueError(
            "decentralise: the optimizer comes first and then the protocol, as in "
            "decentralise(optax.sgd(0.1), elastic_gossip(alpha=0.5)); the first given is a protocol"
        )
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"decentralise: optimizer must be an optax transformation; got {optimizer!r}")
    if isinstance(protocol, Protocol) or (callable(protocol) and not isinstance(protocol, type)):
        return
    raise TypeError(
        f"decentralise: protocol must be what a factory such as elastic_gossip(alpha=0.5) returns; got "
        f"{'an optax transformation' if isinstance(protocol, tuple) else repr(protocol)}. One that is "
        f"wrapped is given as a function of the local optimizer: "
        f"lambda local: optax.chain(local, optax.masked(elastic_gossip(alpha=0.5), mask))"
    )


def _checked(
    optimizer: optax.GradientTransformation, is_before: bool
) -> optax.GradientTransformationExtraArgs:
    """The local optimizer, whose `init` refuses state that the protocol would have to exchange too."""
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        state = optimizer.init(params)
        if not is_before:  # what averages gradients exchanges no parameters
            _check_state(state)
        return state

    return optax.GradientTransformationExtraArgs(init, optimizer.update)


def _check_state(state: Any) -> None:
    def is_known(node: Any) -> bool:
        return type(node).__name__ in _ELSEWHERE | _NOWHERE

    for node in jax.tree.leaves(state, is_leaf=is_known):
        if (name := type(node).__name__) in _ELSEWHERE:
            wrapper = _ELSEWHERE[name].split()[0]
            raise ValueError(
                f"decentralise: {_ELSEWHERE[name]}, which the protocol would not exchange: replicas "
                f"would drift apart. Put it around: {wrapper}(decentralise(optimizer, protocol, draw), "
                f"...)"
            )
        if name in _NOWHERE:
            raise ValueError(
                f"decentralise: {_NOWHERE[name]}, which takes back what was exchanged. Use another "
                f"local optimizer, or all_reduce"
            )


def _checked_key(key: Any) -> Any:
    if not isinstance(key, jax.Array):
        raise TypeError(
            f"decentralise: key must be a key, as gj.keys.run_key(seed) makes it; got {key!r}"
        )
    return key
