"""Each example runs by the command of its first line, and its last line says a figure."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = {  # what a figure may be: a model that learnt nothing has 0.5, 3, or log(16) = 2.8
    "diloco": 5.0,  # bits a byte, of 8
    "equinox_mlp": 0.05,
    "flax_linen": 0.05,
    "flax_nnx": 0.05,
    "grain_stream": 0.05,
    "orbax_checkpoint": 0.0,
    "sharded_jit": 0.01,
    "transformer_fsdp": 0.3,
}


def test_every_example_is_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(MOST)


@pytest.mark.parametrize("name", MOST)
def test_an_example_reaches_its_figure_by_the_command_of_its_first_line(name):
    path = ROOT / "examples" / f"{name}.py"
    first = path.read_text(encoding="utf-8").splitlines()[0]
    variable, python, file = shlex.split(first.split(": ", 1)[1])
    assert (python, file) == ("python", f"examples/{name}.py")
    environment = os.environ | dict([variable.split("=")]) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, file], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    figure = re.fullmatch(r"[a-z ]+: (\d+\.\d{4})", done.stdout.splitlines()[-1])
    assert figure
    assert float(figure[1]) <= MOST[name]
