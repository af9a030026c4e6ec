"""What a protocol is run with: the local optimizer, and the law of its rounds."""

import functools
from collections.abc import Mapping
from typing import Any

import optax
from jax import Array

import gossip_jax as gj
from experiments.training.config import Config
from gossip_jax.protocols import SPECS


def make_optimizer(
    compiled: Config, traced: Mapping[str, Array], updates_per_epoch: int
) -> optax.GradientTransformationExtraArgs:
    """SGD with Nesterov momentum, chained with the protocol.

    Args:
      compiled: the settings that are compiled in.
      traced: the protocol's options that are values of the program, by name.
      updates_per_epoch: tells after which updates the learning rate is halved.
    """
    rate = compiled.learning_rate
    if compiled.halve_after:
        after = [epoch * updates_per_epoch for epoch in compiled.halve_after]
        halvings = {update: 0.5 for update in after if update < 2**31}  # no update has a later number
        rate = optax.piecewise_constant_schedule(compiled.learning_rate, halvings)
    sgd = optax.sgd(rate, momentum=compiled.momentum, nesterov=True)
    return compiled.spec.chain(sgd, **traced, **compiled.options(compiled.spec.compiled))


def make_draw(config: Config) -> gj.Draw:
    """The law of the run's rounds; silent ones for a protocol that has no use for peers."""
    if not config.spec.draws_rounds:
        return gj.uniform_peers(config.workers, p=0.0)
    return _draw(config.peers, config.workers, config.p, config.period)


@functools.cache  # so that what is compiled for a law of rounds serves every seed
def _draw(peers: str, num_workers: int, p: float, period: int) -> gj.Draw:
    draw = {"uniform": gj.uniform_peers, "pairing": gj.pairing}[peers]
    return draw(num_workers, p, period)


def as_often(protocol: str, p: float) -> dict[str, Any]:
    """The settings with which a protocol communicates about as often as with this probability."""
    spec = SPECS[protocol]
    has_period = "period" in spec.compiled and not spec.draws_rounds
    return {"protocol": protocol} | ({"period": round(1 / p)} if has_period else {"p": p})
