"""The table of docs/adopting.md: optax's wrappers around and beside a protocol, each cell run."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax_table
import pytest

import gossip_jax as gj

NUM_WORKERS, UPDATES = 4, 40
NAMES = {
    "optax": optax,
    "decentralise": gj.decentralise,
    "sgd": optax.sgd(0.05),
    "gossip": gj.elastic_gossip(0.5),
    "injected": optax.inject_hyperparams(gj.elastic_gossip),
    "draw": gj.pairing(NUM_WORKERS, p=0.5),
}


def apart(optimizer: optax.GradientTransformation) -> float:
    """How far replicas end apart whose workers have optima of their own.

    The round is not handed over, which several of the wrappers could not pass on.
    """
    optima = np.random.default_rng(0).normal(size=(NUM_WORKERS, 5)).astype(np.float32)

    def train(optimum):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(getattr(params, "fast", params) - optimum, state, params)
            return (optax.apply_updates(params, updates), state), None

        params = jnp.zeros(5)
        try:
            state = optimizer.init(params)
            jax.eval_shape(optimizer.update, params, state, params)
        except AttributeError:  # lookahead has fast and slow parameters
            params = optax.LookaheadParams.init_synced(params)
        start = (params, optimizer.init(params))
        return jax.lax.scan(step, start, length=UPDATES)[0][0]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # optax mixes them
        params = jax.jit(jax.vmap(train, axis_name="workers"))(optima)
        return float(gj.metrics.consensus_distance(params))


@pytest.fixture(scope="module")
def without() -> float:
    return apart(optax.sgd(0.05))


@pytest.mark.parametrize("row", optax_table.ROWS, ids=lambda row: row.expression)
def test_a_wrapper_and_a_protocol_do_what_the_table_says(row, without):
    if row.outcome == "refused":
        optimizer = eval(row.expression, NAMES)
        with pytest.raises(ValueError, match=r"^decentralise: "):
            optimizer.init(jnp.zeros(5))
        return
    distance = apart(eval(row.expression, NAMES))
    if row.outcome == "agree":
        assert distance < 0.3 * without
    else:
        assert distance > 1.2 * without


def test_the_page_shows_the_rows_that_are_tested():
    page = (Path(__file__).parents[1] / "docs" / "adopting.md").read_text(encoding="utf-8")
    assert optax_table.markdown() in page
