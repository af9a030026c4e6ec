"""What the factories of the protocols return."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import optax
from jax import Array

from gossip_jax.rounds import Round

Join = Callable[[optax.GradientTransformation], optax.GradientTransformationExtraArgs]
"""From the local optimizer to that optimizer with the protocol."""


class Late(NamedTuple):
    """A protocol in two halves, between which what was sent may be in flight."""

    send: Callable[[Any, Any, Round], tuple[Any, Array]]
    """(params, state, round) -> the weighted sum of what arrives, as the parameters, and its weight."""
    take: Callable[[Any, Any, Any, Round, Any, Array], tuple[Any, Any]]
    """(updates, state, params, round, sum, weight) -> (updates, state)"""


class Protocol(optax.GradientTransformationExtraArgs):
    """An optax transformation that knows where it goes.

    It is the pair of `init` and `update` that optax knows, and can be used wherever one can.

    Args:
      init: from parameters to the state.
      update: as of any transformation; it takes `round=`.
      place: "before" or "after" the local optimizer; or, for one that wraps it, what makes of it the
        whole.
      axis_name: the worker axis.
      late: the protocol in two halves; None, where it has none.
    """

    place: Literal["before", "after"] | Join
    axis_name: Any
    late: Late | None

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        place: Literal["before", "after"] | Join = "after",
        axis_name: Any = "workers",
        late: Late | None = None,
    ):
        protocol = super().__new__(cls, init, update)
        protocol.place, protocol.axis_name, protocol.late = place, axis_name, late
        return protocol

    def join(self, local: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
        """The local optimizer and this protocol, each in its place."""
        if callable(self.place):
            return self.place(local)
        return optax.chain(self, local) if self.place == "before" else optax.chain(local, self)
