"""A trace of a few updates, by JAX's profiler."""

from pathlib import Path

import jax
import numpy as np

import gossip_jax as gj
from experiments.cluster.processes import together
from experiments.training import run
from experiments.training.run import Setup
from gossip_jax import training
from gossip_jax.rounds import in_contact, routes_in_use

_OF_EACH_KIND = 3  # updates


def profile(setup: Setup, directory: Path) -> None:
    """Traces some silent updates and some that talk, of the run's first epoch, on a state of its own.

    Every update is a dispatch to itself here, and a step of the trace, which also names its exchanges.
    In the program, operations carry the names of the gradient, the optimizer and each exchange.

    Args:
      setup: of the run.
      directory: where the profiler writes: what XProf reads, and a perfetto_trace.json.gz.

    Raises:
      OSError: it cannot be written to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rounds = training.draw_rounds(setup.draw, setup.key, 1, setup.updates_per_epoch)
    talks = np.asarray(routes_in_use(rounds)).any(axis=1)
    chosen = [np.flatnonzero(talks == kind)[:_OF_EACH_KIND] for kind in (False, True)]
    state = run.start(setup).state
    rest = (setup.key, setup.traced, None)
    one_round = jax.tree.map(lambda leaf: leaf[:1], rounds)
    update = setup.program.compile_epoch(state, setup.shards, one_round, *rest)
    with together(update, setup.program.placement.devices, rounds, "the profile"):  # warms up
        state, *_ = jax.block_until_ready(update(state, setup.shards, one_round, *rest))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own calls would hide the rest
    with jax.profiler.trace(directory, create_perfetto_trace=True, profiler_options=options):
        for index in sorted(np.concatenate(chosen).tolist()):
            one_round = jax.tree.map(lambda leaf, index=index: leaf[index : index + 1], rounds)
            with (
                jax.profiler.StepTraceAnnotation("update", step_num=index + 1),
                jax.profiler.TraceAnnotation(_name(one_round)),
            ):
                state, *_ = jax.block_until_ready(update(state, setup.shards, one_round, *rest))


def _name(round: gj.Round) -> str:
    """What is exchanged in a round, stacked as a single one."""
    pairs = [f"{one}-{other}" for _, one, other in np.argwhere(np.triu(in_contact(round)))]
    return f"exchange {', '.join(pairs)}" if pairs else "silence"
