"""Runs killed at random moments, also while they write a checkpoint, end as an unbroken one."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from commands import run_module, start_module, wait_for

from experiments.runs.journal import Journal
from experiments.runs.run_directory import RunDirectory
from experiments.tasks.data import load
from experiments.training import run

KILLS, EPOCHS = 8, 12
RUN = ["--width", "32", "--epochs", str(EPOCHS), "--p", "0.5", "--backend", "vmap"]


def outcome(path: Path) -> tuple[Any, ...]:
    """All that a run left, to the bit, but for the time that it took."""
    directory = RunDirectory(path)
    setup = run.set_up(directory.read_config(), load("digits"))
    progress = Journal(setup, directory.checkpoints).restore(EPOCHS)
    state = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(progress.state)]
    metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((path / "result.json").read_text())["result"] | {"updates_per_second": 0}
    return state, [line | {"seconds": 0} for line in metrics], result


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> tuple[Any, ...]:
    path = tmp_path_factory.mktemp("unbroken") / "run"
    done = run_module("train", *RUN, "--out", str(path))
    assert done.returncode == 0, done.stderr
    return outcome(path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_run_killed_at_a_random_moment_goes_on_to_the_bit(seed, unbroken, tmp_path):
    """Every other kill is while a checkpoint is being written, the others at any time."""
    rng, path = np.random.default_rng(seed), tmp_path / "run"
    epoch, delay = int(rng.integers(1, EPOCHS)), float(rng.uniform(0, 0.05))
    saved = path / "checkpoints"

    def is_time() -> bool:
        if seed % 2:
            return any(saved.glob(f"{epoch}.unfinished*")) or (saved / str(epoch)).exists()
        return seed == 0 or (saved / str(epoch - 1)).exists() or (epoch == 1 and path.exists())

    started = start_module("train", *RUN, "--out", str(path))
    try:
        wait_for(is_time)
        time.sleep(delay)
    finally:
        started.kill()
        started.communicate()
    assert started.returncode == -signal.SIGKILL, "it was over before it could be killed"
    if (path / "config.json").exists():
        done = run_module("train", "--resume", str(path))
    else:
        done = run_module("train", *RUN, "--out", str(path))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(path.rglob("*.unfinished*"))
    assert outcome(path) == unbroken
