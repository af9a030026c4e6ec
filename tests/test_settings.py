"""A setting says in its declaration whether it is of the result, of the program or of the place."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import gossip_jax as gj
from experiments.tasks import data
from experiments.training.config import Config, completed, names_of, names_that_may_change
from experiments.training.program import Programs
from gossip_jax import traffic
from gossip_jax.protocols import SPECS
from gossip_jax.spec import PERIOD, Spec, moving_rate


@pytest.fixture(scope="module")
def programs():
    return Programs(data.load("digits"))


def test_every_setting_is_of_the_result_or_of_the_place_and_of_one_of_them_only():
    declared = [field.name for field in dataclasses.fields(Config)]
    assert sorted(names_of("result") + names_of("place")) == sorted(declared)


def test_what_is_done_with_sick_workers_is_of_the_result():
    isolated = Config(on_nan="isolate").settings()
    assert isolated["on_nan"] == "isolate"
    old = {name: value for name, value in isolated.items() if name != "on_nan"}
    assert completed(old)["on_nan"] == "stop"  # of records from before it counted


def test_a_run_that_goes_on_may_be_longer_and_elsewhere_but_is_otherwise_the_same():
    assert set(names_of("result")) & set(names_that_may_change()) == {"epochs", "on_nan"}


VALUES: dict[str, Any] = {"p": 0.5, "seed": 7, "epochs": 3, "drop_rate": 0.5, "peers": "pairing"}


@pytest.mark.parametrize("name", VALUES)
def test_runs_that_differ_in_what_is_not_compiled_in_share_a_program(name, programs):
    other = Config(**{name: VALUES[name]}, backend="vmap")
    assert programs(other, 9) is programs(Config(backend="vmap"), 9)


OTHERS: dict[str, Any] = {"width": 8, "momentum": 0.5, "workers": 2, "backend": "pmap", "augment": True}


@pytest.mark.parametrize("name", OTHERS)
def test_runs_that_differ_in_what_is_compiled_in_do_not(name, programs):
    other = dataclasses.replace(Config(backend="vmap"), **{name: OTHERS[name]})
    assert programs(other, 9) is not programs(Config(backend="vmap"), 9)


def test_a_gossip_protocol_that_compiles_its_period_in_gets_a_program_for_each(programs, monkeypatch):
    seen = []

    def patient(alpha: Any, period: int) -> optax.GradientTransformationExtraArgs:
        seen.append((alpha, period))
        return gj.elastic_gossip(alpha)

    spec = Spec(
        factory=patient,
        label="Patient Gossip",
        short="PG",
        summary="nothing yet",
        color="red",
        line="-",
        rounds="peers",
        traffic=lambda rounds, params, period: traffic.counted_routes(rounds, params),
        options=(moving_rate(0.5), PERIOD),
    )
    monkeypatch.setitem(SPECS, "patient", spec)
    config = Config(protocol="patient", backend="vmap").checked()
    often, seldom = (programs(dataclasses.replace(config, period=period), 9) for period in (1, 8))
    assert often is not seldom
    assert programs(dataclasses.replace(config, period=8, alpha=0.1), 9) is seldom  # α is a value
    seldom._optimizer({"alpha": jnp.float32(0.25)})
    assert seen == [(0.25, 8)]


def test_a_program_can_read_nothing_that_it_is_not_known_by(programs):
    config = Config(p=0.5, seed=3, alpha=0.1, period=8, backend="vmap")
    assert config.compiled() == Config(backend="vmap")
    easgd = dataclasses.replace(config, protocol="elastic_averaging")
    assert easgd.compiled() == Config(backend="vmap", protocol="elastic_averaging", period=8)


def test_protocols_in_which_nobody_may_be_missing_refuse_what_would_hold_them_up():
    for name, spec in SPECS.items():
        for config in (Config(drop_rate=0.5), Config(on_nan="isolate"), Config(on_nan="restart")):
            config = dataclasses.replace(config, protocol=name)
            if not spec.may_miss_workers:
                with pytest.raises(ValueError, match=name):
                    config.checked()
            else:
                config.checked()


def test_every_option_of_a_protocol_can_be_set_by_its_name():
    settings = {field.name for field in dataclasses.fields(Config)}
    for spec in SPECS.values():
        assert {option.name for option in spec.options} <= settings
        config = Config(protocol=spec.name).checked()
        for option in spec.options:
            default = option.default_for(config.workers)
            assert getattr(config, option.name) == default
