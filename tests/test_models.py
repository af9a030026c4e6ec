"""The pre-activation ResNet is the thesis's: its parameters, where they start, and what it computes."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tasks.models import PreActBlock, PreActResNet18

MODEL = PreActResNet18(num_classes=10)
STAGES = (64, 64, 128, 128, 256, 256, 512, 512)  # channels after each block


@partial(jax.jit, static_argnames="train")
def apply(variables: Any, images: Any, train: bool) -> tuple[Any, Any]:
    """The logits, and the running statistics after them."""
    logits, updated = MODEL.apply(variables, images, train=train, mutable="batch_stats")
    return logits, updated["batch_stats"]


@pytest.fixture(scope="module")
def initial() -> Any:
    return jax.jit(lambda key: MODEL.init(key, jnp.zeros((1, 32, 32, 3)), train=False))(
        jax.random.key(0)
    )


@pytest.fixture(scope="module")
def trained(initial) -> Any:
    """As after some training: no norm is the identity, and running statistics are no batch's here."""
    rng = np.random.default_rng(0)

    def disturb(path: Any, leaf: Any) -> Any:
        name = path[-1].key
        if name in ("scale", "var"):
            leaf = rng.uniform(0.5, 1.5, leaf.shape)
        elif name in ("bias", "mean"):
            leaf = rng.normal(size=leaf.shape)
        return np.asarray(leaf, np.float32)

    return jax.tree_util.tree_map_with_path(disturb, initial)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Sides of 12, 6, 3 and 2 through the stages: a stride of 2 meets even sides and odd ones."""
    return np.random.default_rng(1).normal(size=(8, 12, 12, 3)).astype(np.float32)


def convolve(x: np.ndarray, kernel: Any, stride: int = 1) -> np.ndarray:
    """By PyTorch's rule: padded by half the kernel on every side."""
    size = len(kernel)
    pad = size // 2
    height, width = ((side + 2 * pad - size) // stride + 1 for side in x.shape[1:3])
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    out = np.zeros((len(x), height, width, kernel.shape[-1]))
    for i in range(height):
        for j in range(width):
            window = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            out[:, i, j] = np.tensordot(window, np.asarray(kernel, np.float64), 3)
    return out


def normed_relu(x: np.ndarray, params: Any, stats: Any, train: bool) -> np.ndarray:
    mean, var = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else (stats["mean"], stats["var"])
    return np.maximum((x - mean) / np.sqrt(var + 1e-5) * params["scale"] + params["bias"], 0)


def resnet(variables: Any, images: np.ndarray, train: bool) -> np.ndarray:
    """The whole network in float64, from its description."""
    params, stats = variables["params"], variables["batch_stats"]
    x = convolve(images.astype(np.float64), params["Conv_0"]["kernel"])
    for index, features in enumerate(STAGES):
        block, norms = params[f"PreActBlock_{index}"], stats[f"PreActBlock_{index}"]
        *shortcut, first, second = (block[name]["kernel"] for name in sorted(block) if "Conv" in name)
        stride = 1 if features == x.shape[-1] else 2
        out = normed_relu(x, block["BatchNorm_0"], norms["BatchNorm_0"], train)
        if shortcut:
            x = convolve(out, shortcut[0], stride)
        out = convolve(out, first, stride)
        out = normed_relu(out, block["BatchNorm_1"], norms["BatchNorm_1"], train)
        x = convolve(out, second) + x
    return x.mean((1, 2)) @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]


def test_the_resnet_has_the_thesis_s_parameters(initial):
    leaves = jax.tree.leaves(initial["params"])
    assert sum(leaf.size for leaf in leaves) == 11_171_146  # of the thesis
    assert {leaf.dtype for leaf in jax.tree.leaves(initial)} == {jnp.dtype("float32")}
    # 17 convolutions of 3 x 3, 3 of 1 x 1; 16 norms of scale and bias; weights and biases at the end.
    kernels = [leaf.shape for leaf in leaves if leaf.ndim == 4]
    assert [shape[:2] for shape in kernels].count((3, 3)) == 17
    assert [shape for shape in kernels if shape[:2] == (1, 1)] == [
        (1, 1, 64, 128),
        (1, 1, 128, 256),
        (1, 1, 256, 512),
    ]
    assert len(leaves) == 20 + 16 * 2 + 2
    assert len(jax.tree.leaves(initial["batch_stats"])) == 16 * 2


def test_every_weight_starts_he_normal(initial):
    kernels = [leaf for leaf in jax.tree.leaves(initial["params"]) if leaf.ndim > 1]
    assert len(kernels) == 21
    for kernel in map(np.asarray, kernels):
        fan_in = np.prod(kernel.shape[:-1])
        # Two bounds of five standard errors for each of 21 kernels: one seed in 40,000 would fail. A
        # normal cut at two standard deviations, as flax's own, ends at 2.3 of what are then its own.
        standard = kernel.ravel().astype(np.float64) * (fan_in / 2) ** 0.5
        assert abs(standard.mean()) < 5 * standard.size**-0.5
        assert abs(standard.std() - 1) < 5 * (2 * standard.size) ** -0.5
        assert np.abs(standard).max() > 2.5


def test_biases_norms_and_running_statistics_start_as_they_should(initial):
    bias = np.abs(initial["params"]["Dense_0"]["bias"])
    # Of ten uniform values, one reaches a quarter of the bound but in one seed of a million.
    assert 0.25 * 512**-0.5 < bias.max() <= 512**-0.5
    start = {"scale": 1, "bias": 0, "mean": 0, "var": 1}
    for collection, names in (("params", {"scale", "bias"}), ("batch_stats", {"mean", "var"})):
        for block, norm in itertools.product(range(8), range(2)):
            leaves = initial[collection][f"PreActBlock_{block}"][f"BatchNorm_{norm}"]
            assert leaves.keys() == names
            for name, leaf in leaves.items():
                np.testing.assert_array_equal(leaf, start[name])


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (32, 32, 3), (9, 14, 3)])
@pytest.mark.parametrize("train", [False, True])
def test_images_of_any_size_give_logits(shape, train):
    model = PreActResNet18(num_classes=7)

    def logits(key: Any, images: Any) -> Any:
        variables = model.init(key, images, train=False)
        return model.apply(variables, images, train=train, mutable="batch_stats")[0]

    out = jax.eval_shape(logits, jax.random.key(0), jnp.zeros((5, *shape)))
    assert (out.shape, out.dtype) == ((5, 7), jnp.float32)


@pytest.mark.parametrize("train", [False, True])
def test_the_network_computes_what_its_description_says(train, trained, images):
    logits, _ = apply(trained, images, train)
    expected = resnet(trained, images, train)
    # float32 through 18 layers: the logits, of about 10, agree to some 1e-5 of it.
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_training_moves_the_running_statistics_a_tenth_of_the_way(trained, images):
    _, stats = apply(trained, images, train=True)
    old, new = (tree["PreActBlock_0"]["BatchNorm_0"] for tree in (trained["batch_stats"], stats))
    stem = convolve(images, trained["params"]["Conv_0"]["kernel"])
    for name, batch in (("mean", stem.mean((0, 1, 2))), ("var", stem.var((0, 1, 2)))):
        np.testing.assert_allclose(new[name], 0.9 * old[name] + 0.1 * batch, rtol=1e-5, atol=1e-6)


def test_an_evaluated_image_is_judged_alone_and_leaves_no_trace(trained, images):
    others = np.concatenate([images[:1], -3 * images[1:]])
    (logits, stats), (again, _) = (apply(trained, batch, train=False) for batch in (images, others))
    np.testing.assert_allclose(logits[0], again[0], rtol=1e-5)
    assert not np.allclose(logits[1:], again[1:])
    jax.tree.map(np.testing.assert_array_equal, stats, trained["batch_stats"])
    (logits, _), (again, _) = (apply(trained, batch, train=True) for batch in (images, others))
    assert not np.allclose(logits[0], again[0])


def test_each_worker_has_statistics_of_its_own(rng):
    block = PreActBlock(features=6, stride=2)
    images = jnp.asarray(rng.normal(size=(3, 4, 5, 5, 2)), jnp.float32)
    variables = block.init(jax.random.key(0), images[0], train=False)

    def step(images: Any) -> Any:
        return block.apply(variables, images, train=True, mutable="batch_stats")

    together = jax.vmap(step, axis_name="workers")(images)
    for worker in range(3):
        for stacked, alone in zip(
            jax.tree.leaves(together), jax.tree.leaves(step(images[worker])), strict=True
        ):
            np.testing.assert_allclose(stacked[worker], alone, rtol=1e-5, atol=1e-6)
