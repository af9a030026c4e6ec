"""Property 1: training runs recorded from the thesis author's code are reproduced to 1e-5.

Through the public contract alone: a protocol in an optax chain, under bare jax.vmap, jax.pmap and
jax.shard_map.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import BACKENDS
from jax.sharding import PartitionSpec

import gossip_jax as gj

TRACES = ("nocomm_w4", "allreduce_w4", "elastic_w4", "pull_w4")
LAYERS = ("l1.weight", "l1.bias", "l2.weight", "l2.bias")


def optimizer_of(meta: dict[str, Any]) -> optax.GradientTransformationExtraArgs:
    sgd = optax.sgd(meta["learning_rate"], momentum=meta["momentum"], nesterov=meta["nesterov"])
    chains = {
        "nocomm": lambda: optax.chain(sgd, gj.no_communication()),
        "allreduce": lambda: optax.chain(gj.all_reduce(), sgd),
        "elastic": lambda: optax.chain(sgd, gj.elastic_gossip(meta["alpha"])),
        "pull": lambda: optax.chain(sgd, gj.gossiping_sgd("pull")),
    }
    return chains[meta["method"]]()


def loss(params: dict[str, Any], inputs: Any, labels: Any) -> Any:
    hidden = jnp.tanh(inputs @ params["l1.weight"].T + params["l1.bias"][None])
    logits = hidden @ params["l2.weight"].T + params["l2.bias"][None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def bare(backend: str, function: Callable[..., Any], num_workers: int) -> Callable[..., Any]:
    """One worker's function for all workers, as a user would; its last argument is shared."""
    if backend == "vmap":
        return jax.jit(jax.vmap(function, in_axes=(0, 0, 0, 0, None), axis_name="workers"))
    if backend == "pmap":
        return jax.pmap(function, in_axes=(0, 0, 0, 0, None), axis_name="workers")

    def block(*arguments):
        *own, shared = arguments
        own = jax.tree.map(lambda leaf: leaf[0], own)
        return jax.tree.map(lambda leaf: leaf[None], function(*own, shared))

    mesh = jax.make_mesh((num_workers,), ("workers",), (jax.sharding.AxisType.Auto,))
    each, shared = PartitionSpec("workers"), PartitionSpec()
    specs = (each, each, each, each, shared)
    return jax.jit(jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=each))


def step_of(optimizer: optax.GradientTransformationExtraArgs) -> Callable[..., Any]:
    def step(params, opt_state, inputs, labels, round):
        grads = jax.grad(loss)(params, inputs, labels)
        updates, opt_state = optimizer.update(grads, opt_state, params, round=round)
        return optax.apply_updates(params, updates), opt_state

    return step


@pytest.fixture(params=TRACES)
def trace(request, shared) -> dict[str, Any]:
    with np.load(shared / "traces" / f"{request.param}.npz") as arrays:
        found = dict(arrays)
    found["meta"] = json.loads(found["meta"].item())
    # The protocols that draw no peers have none recorded.
    silent = np.full(found["labels"].shape[:2], -1, np.int32)
    found["rounds"] = gj.Round(found.get("peer", silent), np.arange(1, len(silent) + 1))
    found["params"] = {layer: found[f"params/{layer}"] for layer in LAYERS}  # [steps + 1, W, ...]
    return found


def assert_replayed(params: Any, trace: dict[str, Any], rows: slice | int) -> None:
    for layer in LAYERS:
        np.testing.assert_allclose(
            params[layer], trace["params"][layer][rows], rtol=0, atol=1e-5, err_msg=layer
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_update_of_a_trace_is_replayed(trace, backend):
    optimizer = optimizer_of(trace["meta"])
    step = bare(backend, step_of(optimizer), trace["meta"]["num_workers"])
    params = jax.tree.map(lambda rows: jnp.asarray(rows[0]), trace["params"])
    opt_state = jax.vmap(optimizer.init)(params)
    for t in range(trace["meta"]["steps"]):
        round = jax.tree.map(lambda leaf, t=t: leaf[t], trace["rounds"])
        params, opt_state = step(params, opt_state, trace["inputs"][t], trace["labels"][t], round)
        assert_replayed(params, trace, t + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trace_is_replayed_inside_one_scan_over_its_rounds(trace, backend):
    optimizer = optimizer_of(trace["meta"])
    step = step_of(optimizer)

    def run(params, opt_state, inputs, labels, rounds):
        def body(carry, batch):
            carry = step(*carry, *batch)
            return carry, carry[0]

        return jax.lax.scan(body, (params, opt_state), (inputs, labels, rounds))[1]

    params = jax.tree.map(lambda rows: jnp.asarray(rows[0]), trace["params"])
    opt_state = jax.vmap(optimizer.init)(params)
    by_worker = functools.partial(np.swapaxes, axis1=0, axis2=1)  # [steps, W, ...]: to [W, steps, ...]
    history = bare(backend, run, trace["meta"]["num_workers"])(
        params, opt_state, by_worker(trace["inputs"]), by_worker(trace["labels"]), trace["rounds"]
    )
    assert_replayed(jax.tree.map(by_worker, history), trace, slice(1, None))
