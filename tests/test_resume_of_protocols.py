"""A run that is stopped in the middle of a period, or with a message in flight, goes on to the bit."""

import json

import jax
import jax.numpy as jnp
import optax
import pytest

from gossip_jax.protocols import SPECS

# Nine updates an epoch: periods of four, and delays of one, are cut by the end of an epoch.
SMALL = ["--width", "8", "--p", "0.5", "--backend", "vmap"]
OPTIONS = {"period": "4", "fragments": "2", "delay": "1", "merge": "0.3", "phase": "staggered"}
OPTIONS |= {"compressor": "quantise", "bits": "4"}


def has_state(spec) -> bool:
    options = {option.name: option.default_for(4) for option in spec.options}
    return bool(jax.tree.leaves(spec.join(optax.identity(), **options).init(jnp.zeros(3))))


def arguments_of(spec) -> list[str]:
    given = [
        f"--{option.name.replace('_', '-')}={OPTIONS[option.name]}"
        for option in spec.options
        if option.name in OPTIONS
    ]
    return ["--protocol", spec.name, *given, *(["--delayed"] if spec.can_be_late else [])]


STATEFUL = [spec.name for spec in SPECS.values() if spec.can_be_late or has_state(spec)]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", STATEFUL)
def test_a_run_goes_on_to_the_bit(protocol, train_cli, tmp_path):
    settings = [*SMALL, *arguments_of(SPECS[protocol])]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for arguments in (
        [*settings, "--epochs", "3", "--out", str(whole)],
        [*settings, "--epochs", "1", "--out", str(parts)],
        ["--resume", str(parts), "--epochs", "3"],
    ):
        code, _, message = train_cli(*arguments)
        assert code == 0, message
    assert figures(parts) == figures(whole)


def figures(out) -> list[dict]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    for line in found:
        del line["seconds"]
    return found
