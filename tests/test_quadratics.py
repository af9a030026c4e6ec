"""Workers with different quadratics: who comes to the optimum of their sum at a constant step size.

`python tests/test_quadratics.py PATH` draws the figure of docs/protocols.md.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gossip_jax as gj
from gossip_jax import graphs

W, SIZE = 6, 3
EXACT = {
    "gradient_tracking": gj.gradient_tracking,
    "gradient_tracking, of gradients": lambda: gj.gradient_tracking("gradients"),
    "exact_diffusion": gj.exact_diffusion,
}
BIASED = {
    "dpsgd, awc": gj.dpsgd,
    "dpsgd, atc": lambda: gj.dpsgd("atc"),
    "quasi_global_momentum": gj.quasi_global_momentum,
}


def problems() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each worker, A [W, n, n] and b [W, n] of the loss ½ x A x - b x; and the optimum of all."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(W, SIZE, SIZE)) / SIZE**0.5
    curvature = root @ root.swapaxes(1, 2) + 0.5 * np.eye(SIZE)
    linear = 2 * rng.normal(size=(W, SIZE))
    return curvature, linear, np.linalg.solve(curvature.sum(axis=0), linear.sum(axis=0))


def distances(protocol, step_size: float, updates: int = 6000) -> np.ndarray:
    """The worst worker's distance to the optimum after each update, in float64."""
    with jax.enable_x64(True):
        curvature, linear, optimum = (jnp.asarray(value) for value in problems())
        optimizer = gj.decentralise(optax.sgd(step_size), protocol)
        draw = gj.every(graphs.ring(W))

        def train(curvature, linear):
            def update(carry, step):
                x, state = carry
                gradient = curvature @ x - linear
                round = draw(gj.keys.run_key(0), step)
                moves, state = optimizer.update(gradient, state, x, round=round)
                x = x + moves
                return (x, state), jnp.linalg.norm(x - optimum)

            x = jnp.zeros(SIZE)
            steps = jnp.arange(1, updates + 1)
            return jax.lax.scan(update, (x, optimizer.init(x)), steps)[1]

        return np.asarray(jax.jit(jax.vmap(train, axis_name="workers"))(curvature, linear)).max(axis=0)


@pytest.mark.parametrize("name", EXACT)
def test_it_reaches_the_optimum_at_a_constant_step_size(name):
    assert distances(EXACT[name](), 0.1)[-1] < 1e-6


@pytest.mark.parametrize("name", BIASED)
def test_it_has_a_bias_that_falls_with_the_step_size(name):
    large, small = (distances(BIASED[name](), step_size)[-1] for step_size in (0.1, 0.025))
    assert large > 1e-2
    assert 2 < large / small < 8


def draw_figure(path: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, make in {**EXACT, **BIASED}.items():
        axes.semilogy(distances(make(), 0.1, 600), label=name)
    axes.semilogy(distances(gj.dpsgd(), 0.025, 600), ":", label="dpsgd, awc, a quarter of the step")
    axes.set_xlabel("update")
    axes.set_ylabel("worst worker's distance to the optimum")
    axes.set_ylim(1e-10)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw_figure(sys.argv[1])
