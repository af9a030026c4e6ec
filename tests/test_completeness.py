"""Each protocol is exported, documented, and has an oracle; none is left out."""

import dataclasses
import importlib
import inspect
import pkgutil
import re

import decentral_cases
import optax
import pytest
from cases import CASES

import gossip_jax as gj
from gossip_jax import protocols


def discovered() -> list[str]:
    """A protocol is a module of gossip_jax/protocols with a factory of its own name."""
    found = []
    for module in pkgutil.iter_modules(protocols.__path__):
        factory = getattr(
            importlib.import_module(f"{protocols.__name__}.{module.name}"), module.name, None
        )
        if factory is not None:
            found.append(module.name)
    return found


@pytest.fixture(params=discovered())
def protocol(request) -> str:
    return request.param


def test_protocols_are_found():
    assert {case.protocol for case in CASES} <= set(discovered())


def test_a_protocol_is_exported(protocol):
    assert protocol in gj.__all__
    module = importlib.import_module(f"{protocols.__name__}.{protocol}")
    assert getattr(gj, protocol) is getattr(module, protocol)


def test_a_protocol_has_a_spec_by_which_it_is_found(protocol):
    spec = gj.protocols.SPECS[protocol]
    assert spec is importlib.import_module(f"{protocols.__name__}.{protocol}").SPEC
    assert spec.factory is getattr(gj, protocol)
    # All but the axis are options: a factory can read nothing that its program is not known by.
    arguments = set(inspect.signature(spec.make or spec.factory).parameters) - {"axis_name"}
    assert {option.name for option in spec.options} - {"delayed"} == arguments


def test_protocols_are_told_apart_in_figures():
    for name in ("label", "short", "color"):
        assert len({getattr(spec, name) for spec in gj.protocols.SPECS.values()}) == len(discovered())


def test_a_spec_names_arguments_that_there_are():
    spec = gj.protocols.SPECS["all_reduce"]
    with pytest.raises(ValueError, match="all_reduce has no argument 'alpha'; it has axis_name"):
        dataclasses.replace(spec, options=(gj.spec.moving_rate(0.5),))


def test_a_protocol_has_an_oracle_for_each_of_its_variants(protocol):
    rows = [case for case in CASES if case.protocol == protocol]
    later = [case for case in decentral_cases.CASES if case.protocol == protocol]
    choices = [
        option.kind.__args__
        for option in gj.protocols.SPECS[protocol].options
        if hasattr(option.kind, "__args__") and option.name not in ("wire_dtype", "compressor")
    ]
    variants = len(choices[0]) if choices else 1
    assert len(rows) + len(later) >= variants
    for row in rows:
        assert isinstance(row.make(), optax.GradientTransformationExtraArgs)


def test_the_docstring_of_a_protocol_has_arguments_result_and_a_runnable_example(protocol):
    function = getattr(gj, protocol)
    documentation = inspect.getdoc(function) or ""
    sections = ["Returns:", "Examples:"]
    sections += ["Args:"] if inspect.signature(function).parameters else []
    for section in sections:
        assert f"\n{section}\n" in documentation
    assert re.search(r">>> optimizer = (optax\.chain|gj\.decentralise)\(", documentation)
    for argument in inspect.signature(function).parameters:
        assert f"  {argument}: " in documentation


def test_the_index_names_what_there_is_in_order():
    assert gj.__all__ == sorted(gj.__all__)
    for name in gj.__all__:
        assert hasattr(gj, name)
