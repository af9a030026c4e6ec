"""What XLA makes of an update for real TPU topologies, of which none need be here."""

import os
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

import gossip_jax as gj
from experiments.training.config import Config, ProtocolName
from experiments.training.protocols import make_draw
from gossip_jax import graphs, keys, training

TOPOLOGIES = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}  # of v5e, by number of workers
_LEAVES, _WIDTH, _BATCH = 4, 1024, 32  # of a perceptron

# Without them libtpu asks the host's metadata, which a machine without a TPU does not have.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


class Compiled(NamedTuple):
    """An update that was compiled for a TPU, and not run."""

    topology: str
    workers: int
    program: str
    compile_seconds: float
    permutes: int
    collectives: int  # all-reduces and all-gathers
    code_bytes: int
    temporary_replicas: float  # memory for temporary values, in replicas
    overlapped: int  # permutes with a matrix product between their start and their end


def prepare() -> None:
    """Tells libtpu what there is, before the first use of JAX's devices."""
    os.environ.update(_ENVIRONMENT)


def measure(num_workers: int, protocols: Sequence[ProtocolName] = ()) -> list[Compiled]:
    """Compiles an update for v5e, with a worker on each of so many chips, one of `TOPOLOGIES`.

    Args:
      num_workers: W.
      protocols: what is compiled beside the exchanges over some graphs, where W is 8: each with the
        graph and the options that it has by default.

    Raises:
      ValueError: libtpu is not installed.
    """
    devices = _devices(num_workers)
    ring, one_peer = graphs.ring(num_workers), graphs.exponential(num_workers)
    cases = {
        "no_communication": (gj.no_communication(), gj.uniform_peers(num_workers, 0.0)),
        "elastic_gossip, uniform": (gj.elastic_gossip(0.5), gj.uniform_peers(num_workers, 1 / 8)),
        "elastic_gossip, pairing": (gj.elastic_gossip(0.5), gj.pairing(num_workers, 1 / 8)),
        "dpsgd, ring": (gj.dpsgd(), gj.every(ring)),
        "dpsgd, one-peer exponential": (gj.dpsgd(), gj.in_turn(one_peer)),
    }
    sgd = optax.sgd(0.1)
    found = [
        _compiled(name, devices, gj.decentralise(sgd, protocol), draw)
        for name, (protocol, draw) in cases.items()
    ]
    for name in protocols if num_workers == 8 else ():
        config = Config(protocol=name, workers=num_workers, batch_size=num_workers).checked()
        options = config.options(option.name for option in config.spec.options)
        found.append(_compiled(name, devices, config.spec.join(sgd, **options), make_draw(config)))
    return found


def _devices(num_workers: int) -> list[Any]:
    prepare()
    try:
        name = f"v5e:{TOPOLOGIES[num_workers]}"
        return topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"bench: the section tpu needs libtpu, as in pip install '.[tpu]'; JAX says: {error}"
        ) from error


def _compiled(name: str, devices: list[Any], optimizer: Any, draw: gj.Draw) -> Compiled:
    placement = gj.place(len(devices), "shard_map", devices=devices)
    update = training.by_route(training.train_update(_loss, optimizer))

    def shaped(tree: Any, *axes: Any) -> Any:
        """Shapes on the devices; stacked ones, where an axis is given."""
        sharding = NamedSharding(placement.mesh, PartitionSpec(*axes))  # pyright: ignore[reportArgumentType]
        leading = (len(devices),) * len(axes)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype, sharding=sharding),
            tree,
        )

    params = [jax.ShapeDtypeStruct((_WIDTH, _WIDTH), jnp.float32)] * _LEAVES
    state = jax.eval_shape(lambda params: training.init_worker(params, {}, optimizer), params)
    key = jax.eval_shape(lambda: keys.run_key(0))
    round = jax.eval_shape(draw, key, 1)
    batch = jax.ShapeDtypeStruct((_BATCH, _WIDTH), jnp.float32)
    mapped = placement.map(update, in_axes=(0, 0, None, None), donate_argnums=(0,))
    stacked = placement.axis_name
    arguments = shaped(state, stacked), shaped(batch, stacked), shaped(round), shaped(key)
    before = time.perf_counter()
    compiled = mapped.lower(*arguments).compile()
    seconds = time.perf_counter() - before
    program, memory = compiled.as_text(), compiled.memory_analysis()
    assert program is not None
    assert memory is not None
    return Compiled(
        f"v5e {TOPOLOGIES[len(devices)]}",
        len(devices),
        name,
        seconds,
        len(re.findall(r"collective-permute(?:-start)?\(", program)),
        len(re.findall(r" all-(?:reduce|gather)(?:-start)?\(", program)),
        memory.generated_code_size_in_bytes,
        memory.temp_size_in_bytes / (4 * _LEAVES * _WIDTH**2),
        overlapped(program),
    )


def overlapped(program: str) -> int:
    """How many permutes of a scheduled program have a matrix product between their start and end."""
    found = 0
    begun: dict[str, int] = {}
    lines = program.splitlines()
    for number, line in enumerate(lines):
        if start := re.match(r"\s*(?:ROOT )?%(\S+) = .* collective-permute-start\(", line):
            begun[start[1]] = number
        elif end := re.search(r" collective-permute-done\(.*%([\w.\-]+)\)", line):
            between = "\n".join(lines[begun[end[1]] : number])
            found += bool(re.search(r" (convolution|dot)\(|kind=kOutput", between))
    return found


def _loss(params: Any, model_state: Any, batch: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
    del key
    for weights in params:
        batch = jax.nn.relu(batch @ weights)
    return jnp.mean(batch**2), model_state
