"""One of several processes, each with one CPU device, that train together: `test_backends_agree.py`.

Run as `python multiprocess_worker.py PROCESS PROCESSES PORT CASE OUT`; writes the parameters of its own
worker to the file OUT.
"""

import sys

import jax
import numpy as np


def main(process: int, processes: int, port: int, name: str, out: str) -> None:
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", processes, process)

    import cases
    import toy

    import gossip_jax as gj

    (case,) = (case for case in cases.CASES if case.name == name)
    placement = gj.place(processes, "shard_map", devices=jax.devices())
    params = toy.run(case, placement, gj.uniform_peers(processes, p=0.5)).params
    np.savez(out, **{name: leaf.addressable_data(0) for name, leaf in params.items()})


if __name__ == "__main__":
    first, count, at, *texts = sys.argv[1:]
    main(int(first), int(count), int(at), *texts)
