"""The protocols by name: how each joins the optimizer, and what it sends."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import optax

import gossip_jax as gj
from experiments.training.config import Config
from gossip_jax import traffic
from gossip_jax.traffic import Traffic


class Protocol(NamedTuple):
    """A protocol as the command line offers it."""

    # With the local optimizer, and α, which may be a traced value.
    chain: Callable[[Config, Any, Any], optax.GradientTransformationExtraArgs]
    traffic: Callable[[Config, gj.Round, Any], Traffic]  # over these rounds, of these parameters
    is_pairwise: bool  # whether it has a use for peers
    has_moving_rate: bool  # whether it has a use for α


def _silence(config: Config, rounds: gj.Round, params: Any) -> Traffic:
    return traffic.silence(config.workers)


def _pairwise(config: Config, rounds: gj.Round, params: Any) -> Traffic:
    return traffic.counted_pairwise(rounds, params, config.wire_dtype)


PROTOCOLS: dict[str, Protocol] = {
    "no_communication": Protocol(
        lambda config, local, alpha: optax.chain(local, gj.no_communication()), _silence, False, False
    ),
    "all_reduce": Protocol(
        lambda config, local, alpha: optax.chain(gj.all_reduce(), local),
        lambda config, rounds, params: traffic.counted_collective(rounds, params),
        False,
        False,
    ),
    "elastic_gossip": Protocol(
        lambda config, local, alpha: optax.chain(
            local, gj.elastic_gossip(alpha, wire_dtype=config.wire_dtype)
        ),
        _pairwise,
        True,
        True,
    ),
    "gossiping_sgd": Protocol(
        lambda config, local, alpha: optax.chain(
            local, gj.gossiping_sgd(config.variant, wire_dtype=config.wire_dtype)
        ),
        _pairwise,
        True,
        False,
    ),
    "elastic_averaging": Protocol(
        lambda config, local, alpha: optax.chain(local, gj.elastic_averaging(alpha, config.period)),
        lambda config, rounds, params: traffic.counted_collective(rounds, params, config.period),
        False,
        True,
    ),
}


def make_optimizer(
    config: Config, alpha: Any, updates_per_epoch: int
) -> optax.GradientTransformationExtraArgs:
    """SGD with Nesterov momentum, chained with the protocol.

    Args:
      config: the settings.
      alpha: the moving rate, for which a traced value will do.
      updates_per_epoch: tells after which updates the learning rate is halved.
    """
    rate = config.learning_rate
    if config.halve_after:
        after = [epoch * updates_per_epoch for epoch in config.halve_after]
        halvings = {update: 0.5 for update in after if update < 2**31}  # no update has a later number
        rate = optax.piecewise_constant_schedule(config.learning_rate, halvings)
    sgd = optax.sgd(rate, momentum=config.momentum, nesterov=True)
    return PROTOCOLS[config.protocol].chain(config, sgd, alpha)


def make_draw(config: Config) -> gj.Draw:
    """The law of the run's rounds; silent ones for a protocol that has no use for peers."""
    if not PROTOCOLS[config.protocol].is_pairwise:
        return gj.uniform_peers(config.workers, p=0.0)
    return _draw(config.peers, config.workers, config.p, config.period)


@functools.cache  # so that what is compiled for a law of rounds serves every seed
def _draw(peers: str, num_workers: int, p: float, period: int) -> gj.Draw:
    draw = {"uniform": gj.uniform_peers, "pairing": gj.pairing}[peers]
    return draw(num_workers, p, period)
