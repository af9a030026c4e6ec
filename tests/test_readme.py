"""What README.md shows, done: the example runs, under vmap and under pmap."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


PLACED = "workers.map(step, in_axes=(0, 0, 0))"
BARE = '{}(step, axis_name="workers", in_axes=(0, 0, 0))'


@functools.cache  # it takes a process of its own
def run_example(num_devices: int, placed: str = PLACED) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert PLACED in example
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", example.replace(PLACED, placed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_example_learns_the_same_on_one_device_and_on_four():
    on_one, on_four = (run_example(num_devices) for num_devices in (1, 4))
    (shown,) = re.findall(r"```\n(\[\[.*?\]\]\n)```", README, re.DOTALL)
    first, second, printed = (
        np.array(re.findall(r"[\d.]+", text), float) for text in (on_one, on_four, shown)
    )
    assert first.size == 4 * 3
    np.testing.assert_allclose(first, printed, atol=1.5e-3)  # rounded to 3 digits
    np.testing.assert_allclose(second, printed, atol=1.5e-3)
    np.testing.assert_allclose(first, 1, atol=0.05)  # what the example's workers are to learn


@pytest.mark.parametrize("function", ["jax.vmap", "jax.pmap"])
def test_example_runs_under_bare_jax_too(function):
    assert BARE.format("jax.vmap") in README
    assert run_example(4, BARE.format(function)) == run_example(4)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_commands_of_the_readme_are_targets_of_the_makefile(target):
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
