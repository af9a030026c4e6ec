"""One of several processes, each with one CPU device, that train together: `test_backends_agree.py`.

Run as `python multiprocess_worker.py PROCESS PROCESSES PORT OUT`; writes the parameters of its worker,
after a run with each of the protocols and what it receives over routes of graphs, to the file OUT.
"""

import sys

import jax
import numpy as np


def main(process: int, processes: int, port: int, out: str) -> None:
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", processes, process)

    import cases
    import toy

    import gossip_jax as gj

    placement, draw = gj.place(processes, "shard_map"), gj.uniform_peers(processes, p=0.5)
    replicas = {case.name: toy.run(case, placement, draw).params for case in cases.CASES}
    own = placement.scatter(np.arange(4.0 * processes, dtype=np.float32).reshape(processes, 4))
    for name, round in cases.one_way_rounds(processes).items():
        moved = cases.communicate(gj.dpsgd(), placement)(own, own, placement.share(round))
        replicas[f"routes/{name}"] = {"": moved}
    np.savez(
        out,
        **{
            f"{case}/{name}": leaf.addressable_data(0)
            for case, params in replicas.items()
            for name, leaf in params.items()
        },
    )


if __name__ == "__main__":
    first, count, at, path = sys.argv[1:]
    main(int(first), int(count), int(at), path)
