"""Compiles a training step for TPUs that are not there, and prints what is in it: `test_tpu.py`.

Run as `python tpu_program.py TOPOLOGY WORKERS DRAW`, where libtpu is installed, with the environment of
`ENVIRONMENT`; the last line is JSON.
"""

import json
import re
import sys
from typing import Any

ENVIRONMENT = {  # asks no metadata server, which only a TPU's host has
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "JAX_PLATFORMS": "cpu",
}
LAYERS, WIDTH, BATCH = 4, 1024, 32
MATMUL = re.compile(r" (convolution|dot)\(|kind=kOutput")  # a fusion of kind kOutput is around one


def counts(program: str) -> dict[str, int]:
    """How many permutes a program has, and how many have a matrix product between start and done."""
    found = {"permutes": 0, "pairs": 0, "overlapped": 0}
    found["permutes"] = len(re.findall(r" collective-permute(?:-start)?\(", program))
    for computation in program.split("\n\n"):
        started: dict[str, int] = {}
        lines = computation.splitlines()
        for number, line in enumerate(lines):
            if start := re.search(r"%?([\w.\-]+) = .* collective-permute-start\(", line):
                started[start[1]] = number
            done = re.search(r" collective-permute-done\(.*?%?([\w.\-]+)\)", line)
            if done and done[1] in started:
                found["pairs"] += 1
                between = lines[started[done[1]] + 1 : number]
                found["overlapped"] += any(map(MATMUL.search, between))
    return found


def main(topology: str, num_workers: int, name: str) -> None:
    import jax
    import jax.numpy as jnp
    import optax
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    import gossip_jax as gj
    from gossip_jax import training

    draw, protocol = {
        "complete": lambda w: (gj.uniform_peers(w, 1 / 8), gj.elastic_gossip(0.5)),
        "ring": lambda w: (gj.every(gj.graphs.ring(w)), gj.dpsgd()),
        "one-peer": lambda w: (gj.in_turn(gj.graphs.exponential(w)), gj.dpsgd()),
    }[name](num_workers)
    described = topologies.get_topology_desc(platform="tpu", topology_name=f"v5e:{topology}")
    place = gj.place(num_workers, "shard_map", devices=described.devices[:num_workers])

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        for kernel in params:
            batch = jax.nn.relu(batch @ kernel)
        return jnp.mean(batch**2), model_state

    optimizer = optax.chain(optax.sgd(0.1), protocol)
    kernels = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    state = jax.eval_shape(lambda params: training.init_worker(params, {}, optimizer), kernels)
    round, key = jax.eval_shape(lambda: (draw(gj.keys.run_key(0), 1), gj.keys.run_key(0)))
    mesh = place.mesh
    assert mesh is not None

    def placed(tree: Any, *axes: Any) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        leading = (num_workers,) * len(axes)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype, sharding=sharding),
            tree,
        )

    step = place.map(
        training.by_route(training.train_update(loss, optimizer)), (0, 0, None, None), (0,)
    )
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    lowered = step.lower(placed(state, "workers"), placed(batch, "workers"), placed(round), placed(key))
    program = lowered.compile().as_text() or ""
    print(json.dumps(counts(program) | {"routes": draw.graph.num_routes, "leaves": LAYERS}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
