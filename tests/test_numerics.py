"""No setting of JAX changes a round; what decides a result is kept with it, and compared."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from fabricated import accuracy_of
from test_draws import GOLDEN_PAIRING, GOLDEN_UNIFORM, GOLDEN_WEIGHTED, WEIGHTS

import gossip_jax as gj
from experiments.common import numerics
from experiments.runs import records
from experiments.tables import rows, sweep
from experiments.tasks import data
from experiments.training import run
from experiments.training.program import Programs
from experiments.training.results import Result
from gossip_jax import training

FLAGS = ["--width", "8", "--epochs", "2", "--p", "0.5", "--backend", "vmap"]
LAWS = {
    "uniform": (gj.uniform_peers(4, 0.5), GOLDEN_UNIFORM),
    "weighted": (gj.uniform_peers(4, 0.5, weights=WEIGHTS), GOLDEN_WEIGHTED),
    "pairing": (gj.pairing(5, 0.5), GOLDEN_PAIRING),
}
UNUSUAL = {
    "jax_enable_x64": True,
    "jax_threefry_partitionable": False,
    "jax_default_matmul_precision": "highest",
}


@contextlib.contextmanager
def setting(name: str, value: Any) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


@pytest.fixture(scope="module", autouse=True)
def compile_once() -> Iterator[None]:
    programs = Programs(data.load("digits"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "Programs", lambda _: programs)
        yield


@pytest.fixture(params=LAWS)
def law(request) -> tuple[gj.Draw, Any]:
    return LAWS[request.param]


def drawn(draw: gj.Draw) -> list[list[int]]:
    return np.asarray(training.draw_rounds(draw, gj.keys.run_key(0), 1, 4).peer).tolist()


def test_no_setting_of_jax_changes_a_round(law):
    """Drawn one by one, jitted, and for a whole epoch, as a run does it."""
    draw, want = law
    of_run = drawn(draw)
    of_nothing_here = {
        "jax_random_seed_offset": 7,
        "jax_default_prng_impl": "rbg",
        "jax_enable_custom_prng": True,
        "jax_high_dynamic_range_gumbel": True,
    }
    with contextlib.ExitStack() as changed:
        for name, value in (UNUSUAL | of_nothing_here).items():
            changed.enter_context(setting(name, value))
        key = gj.keys.run_key(0)
        assert drawn(draw) == of_run
        for step in range(1, 5):
            assert np.asarray(draw(key, step).peer).tolist() == want[step - 1]
            assert np.asarray(jax.jit(draw)(key, step).peer).tolist() == want[step - 1]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_the_key_of_a_run_is_that_of_jax_without_settings(seed):
    ours, theirs = gj.keys.run_key(seed), jax.random.key(seed, impl="threefry2x32")
    assert jax.random.key_data(ours).tolist() == jax.random.key_data(theirs).tolist()
    with setting("jax_random_seed_offset", 7), setting("jax_enable_x64", True):
        assert jax.random.key_data(gj.keys.run_key(seed)).tolist() == [0, seed]


def test_no_variable_of_the_environment_changes_a_round():
    program = (
        "import gossip_jax as gj, jax, numpy as np; from gossip_jax import training\n"
        "draw = gj.uniform_peers(4, 0.5)\n"
        "print(np.asarray(training.draw_rounds(draw, gj.keys.run_key(0), 1, 4).peer).tolist())"
    )
    environment = os.environ | {
        "JAX_THREEFRY_PARTITIONABLE": "0",
        "JAX_ENABLE_X64": "1",
        "JAX_RANDOM_SEED_OFFSET": "7",
        "JAX_DEFAULT_PRNG_IMPL": "rbg",
    }
    command = [sys.executable, "-c", program]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout) == drawn(gj.uniform_peers(4, 0.5))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, marks=[pytest.mark.slow][name == "jax_threefry_partitionable" :])
        for name, value in UNUSUAL.items()
    ],
)
def test_a_run_does_not_go_on_under_another_setting_of_jax(name, value, train_cli, tmp_path):
    assert train_cli(*FLAGS, "--out", "run")[0] == 0
    config = tmp_path / "run" / "config.json"
    assert json.loads(config.read_text())["jax"] == numerics.STANDARD
    before = config.read_bytes()
    with setting(name, value):
        code, _, message = train_cli("--resume", "run", "--epochs", "3")
    assert code == 2
    assert f"{name} is {value}, but {numerics.STANDARD[name]} in the run in run" in message
    assert name.upper() in message
    assert config.read_bytes() == before
    # Also where the file says nothing of it, as that of an older run.
    config.write_text(json.dumps({k: v for k, v in json.loads(before).items() if k != "jax"}))
    with setting(name, value):
        assert train_cli("--resume", "run", "--epochs", "3")[0] == 2
    assert train_cli("--resume", "run", "--epochs", "3")[0] == 0


def test_a_checkpoint_made_under_another_setting_of_jax_is_refused_by_name(train_cli, tmp_path):
    with setting("jax_threefry_partitionable", False):
        assert train_cli(*FLAGS, "--out", "run")[0] == 0
    config = tmp_path / "run" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"jax": numerics.STANDARD}))
    code, _, message = train_cli("--resume", "run", "--epochs", "3")
    assert code == 2
    assert "jax_threefry_partitionable False there, 'not set' here" in message


def test_a_record_made_under_another_setting_of_jax_is_refused_by_name(tmp_path):
    text = 'title = "T"\ngroup = "t"\n[settings]\nwidth = 8\nepochs = 1\n[rows]\nA = {}\n'
    table = rows.parse("t", text)
    (job,) = sweep.jobs_of(table, table.rows, [0], backend="vmap")
    settings = job.config.settings()
    path = job.record_path(tmp_path)
    written = records.Record(
        settings,
        Result(
            accuracy_of([0.5], 0.5),
            0,
            0,
            0,
            0,
            1,
            1,
        ),
        (),
        [],
    )
    records.write(path, written)
    assert job.record(tmp_path) == written, "records of older runs stay readable"
    with (
        setting("jax_enable_x64", True),
        pytest.raises(ValueError, match="jax_enable_x64 'not set' there, True here"),
    ):
        job.record(tmp_path)
