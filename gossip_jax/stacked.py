"""Protocols in code that keeps its replicas stacked, in one jit whose arrays are sharded."""

from typing import Any

import jax
import optax
from jax.sharding import AbstractMesh, Mesh

from gossip_jax.workers import on_blocks


def stacked(
    transformation: optax.GradientTransformation,
    axis_name: str = "workers",
    mesh: Mesh | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Has a protocol, or a chain with one, take stacked values: leaves [W, ...], in one jit.

    For code that holds all replicas in arrays that are sharded over a mesh, computes gradients by a
    `jax.vmap` and leaves the rest to XLA. Under that vmap an exchange would gather all replicas on
    every device; here the transformation alone runs under `jax.shard_map` over the worker axis of the
    mesh, so that who talks sends its replica to its peer, and nobody else sends anything. Further axes
    of the mesh, Auto or Explicit, stay what they are, so a replica can be divided over several devices.

    A mesh with Explicit axes needs `jax.set_mesh`, here as everywhere in JAX: what depends on no
    argument, such as the first momentum, has no mesh without it.

    Args:
      transformation: a protocol, or an optimizer chained with one, on one worker's values.
      axis_name: the axis of the mesh that stacked values are divided over, and the protocol's worker
      axis.
      mesh: the mesh; by default that of the arguments, where their types name it (Explicit axes), or
        else that of `jax.set_mesh`.

    Returns:
      The transformation on stacked values. What else its `update` takes, such as `round=`, is shared.

    Raises:
      ValueError: in `update`, there is no mesh, it has no such axis, or W is no multiple of its size.

    Examples:
      >>> import gossip_jax as gj
      >>> mesh = jax.make_mesh((1,), ("workers",))
      >>> optimizer = stacked(optax.chain(optax.sgd(0.1), gj.elastic_gossip(alpha=0.5)), mesh=mesh)
    """
    transformation = optax.with_extra_args_support(transformation)

    def update(updates: Any, state: Any, params: Any = None, **shared: Any):
        leaves = jax.tree.leaves(updates)
        found = _mesh_of(leaves, axis_name) if mesh is None else mesh
        if axis_name not in found.shape:
            raise ValueError(
                f"stacked: the mesh must have an axis {axis_name!r} for the workers; its axes are "
                f"{found.axis_names}"
            )
        num_workers, num_devices = leaves[0].shape[0], found.shape[axis_name]
        if num_workers % num_devices:
            raise ValueError(
                f"stacked: {num_workers} workers cannot be shared equally by the {num_devices} devices "
                f"of the axis {axis_name!r}"
            )

        def of_one(updates: Any, state: Any, params: Any, shared: Any) -> Any:
            return transformation.update(updates, state, params, **shared)

        axes = (0, 0, 0, None)
        mapped = on_blocks(of_one, axes, found, axis_name, axis_name, num_workers // num_devices)
        return mapped(updates, state, params, shared)

    return optax.GradientTransformationExtraArgs(jax.vmap(transformation.init), update)


def _mesh_of(leaves: list[jax.Array], axis_name: str) -> AbstractMesh:
    """The mesh that the types of the values name, or that of `jax.set_mesh`."""
    meshes = [jax.typeof(leaf).sharding.mesh for leaf in leaves]
    for mesh in [*meshes, jax.sharding.get_abstract_mesh()]:
        if not mesh.empty:
            return mesh
    raise ValueError(
        f"stacked: there is no mesh with an axis {axis_name!r} here; pass mesh=, or call jax.set_mesh"
    )
