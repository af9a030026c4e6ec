"""A type checker has nothing to say about a user's file, and knows what the library returns."""

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import gossip_jax as gj

ROOT = Path(__file__).parents[1]
USERS = """
import jax
import jax.numpy as jnp
import optax
from typing_extensions import assert_type

import gossip_jax as gj

draw: gj.Draw = gj.uniform_peers(num_workers=4, p=0.5)
optimizer = gj.decentralise(optax.sgd(0.1), gj.elastic_gossip(alpha=0.5), draw)
explicit = optax.chain(optax.sgd(0.1), gj.elastic_gossip(alpha=0.5))
round = draw(gj.keys.run_key(0), 1)
assert_type(round, gj.Round)
assert_type(gj.in_contact(round), jax.Array)
assert_type(gj.Round([1, -1]).num_workers, int)
assert_type(round.peer, jax.Array)
assert_type(gj.mixing_matrix(round), jax.Array)
counted: gj.traffic.Traffic = gj.traffic.counted_routes(round, jnp.zeros(3))
late = gj.delayed(gj.push_sum())
outer = gj.decentralise(optax.adamw(1e-3), gj.diloco(optax.sgd(0.7), period=50), draw)
sparse = gj.choco(gj.compression.top_k(0.1), gamma=0.2)
graph, probabilities, _ = gj.graphs.matcha(gj.graphs.chain(4), 0.5)


def step(params: jax.Array, state: optax.OptState) -> tuple[jax.Array, optax.OptState]:
    updates, state = optimizer.update(params, state, params)
    return params + jnp.asarray(updates), state


placement = gj.place(num_workers=4)
mapped = placement.map(step, in_axes=(0, 0))
params = placement.replicate(jnp.zeros(3))
state = jax.vmap(optimizer.init)(params)
text: str = mapped.lower(params, state).as_text()
assert_type(mapped, gj.Mapped)
params, state = mapped(params, state)
"""


def test_a_users_file_has_no_errors(tmp_path):
    pytest.importorskip("pyright")
    script = tmp_path / "users.py"
    script.write_text(USERS, encoding="utf-8")
    settings = {"include": ["users.py"], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    assert found["generalDiagnostics"] == []


@pytest.mark.slow
def test_mypy_has_nothing_to_say_either(tmp_path):
    script = tmp_path / "users.py"
    script.write_text(USERS, encoding="utf-8")
    # As of an installed package, only the user's file is judged; optax does not say that it is typed.
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--cache-dir=cache"]
    command = [sys.executable, "-m", "mypy", *options, str(script)]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=tmp_path, env=environment
    )
    assert done.stdout.strip() == "Success: no issues found in 1 source file", done.stdout


def test_the_package_says_that_it_is_typed():
    assert files("gossip_jax").joinpath("py.typed").is_file()
    assert "py.typed" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_what_is_listed_is_public():
    assert dir(gj) == sorted([*gj.__all__, "__version__"])
