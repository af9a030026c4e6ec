"""Datasets are whole, divided without loss or overlap, and damage is noticed."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.tasks import data
from experiments.tasks.data import Examples
from gossip_jax import keys


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def numbered(num_examples: int) -> Examples:
    """Examples that can be told apart by their label."""
    label = np.arange(num_examples, dtype=np.int32)
    return Examples((label % 251).astype(np.uint8)[:, None, None, None], label)


def test_digits_are_the_1797_images_of_scikit_learn(digits):
    assert (len(digits.train.label), len(digits.test.label)) == (1437, 360)
    assert digits.train.image.shape[1:] == (8, 8, 1)
    every_pixel = np.concatenate([digits.train.image, digits.test.image]) / digits.white
    assert every_pixel.min() == 0
    assert every_pixel.max() == 1
    np.testing.assert_allclose(every_pixel.mean(), digits.mean[0], atol=1e-3)
    np.testing.assert_allclose(every_pixel.std(), digits.std[0], atol=1e-3)


def test_the_digits_test_set_is_the_same_every_time(digits):
    np.testing.assert_array_equal(data.load("digits").test.image, digits.test.image)


def test_held_out_and_kept_examples_are_the_whole_set():
    kept, held_out = data.hold_out(numbered(100), 30, keys.run_key(0))
    assert len(held_out.label) == 30
    assert sorted([*kept.label, *held_out.label]) == list(range(100))
    np.testing.assert_array_equal(kept.image[:, 0, 0, 0], kept.label)


def test_another_seed_holds_out_others():
    first, second = (data.hold_out(numbered(100), 30, keys.run_key(seed))[1] for seed in (0, 1))
    assert set(first.label) != set(second.label)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 5, 6])
def test_shards_are_disjoint_equal_and_the_whole_set(num_workers):
    shards = data.shard(numbered(60), num_workers)
    assert shards.image.shape == (num_workers, 60 // num_workers, 1, 1, 1)
    assert sorted(shards.label.ravel()) == list(range(60))


def test_mnist_is_read_whole_and_its_figures_are_the_thesis_s(shared):
    mnist = data.load("mnist", shared / "data" / "tfds")
    assert mnist.train.image.shape == (60_000, 28, 28, 1)
    assert mnist.test.image.shape == (10_000, 28, 28, 1)
    # Of the original: 5,923 zeros and 6,742 ones among the training images (yann.lecun.com).
    assert np.bincount(mnist.train.label)[:2].tolist() == [5923, 6742]
    pixels = mnist.train.image.astype(np.float32) / mnist.white
    np.testing.assert_allclose([pixels.mean(), pixels.std()], [0.1307, 0.3081], atol=1e-4)


def cut_short(dataset: Path) -> None:
    (records,) = dataset.glob("mnist-test*")
    records.write_bytes(records.read_bytes()[:100_000])


def overwrite_a_block(dataset: Path) -> None:
    (records,) = dataset.glob("mnist-test*")
    content = bytearray(records.read_bytes())
    content[200_000:200_100] = bytes(100)
    records.write_bytes(content)


def remove_the_records(dataset: Path) -> None:
    (records,) = dataset.glob("mnist-test*")
    records.unlink()


def spoil_the_description(dataset: Path) -> None:
    (dataset / "dataset_info.json").write_text("{", encoding="utf-8")


@pytest.fixture
def copy_of_mnist(shared, tmp_path) -> Path:
    copy = tmp_path / "mnist" / "3.0.1"
    shutil.copytree(shared / "data" / "tfds" / "mnist" / "3.0.1", copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    return copy


@pytest.mark.parametrize(
    "damage",
    [
        cut_short,
        pytest.param(overwrite_a_block, marks=pytest.mark.slow),
        pytest.param(remove_the_records, marks=pytest.mark.slow),
        pytest.param(spoil_the_description, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_dataset_is_named(damage, copy_of_mnist):
    damage(copy_of_mnist)
    data_dir = copy_of_mnist.parents[1]
    with pytest.raises(
        ValueError,
        match=f"mnist in {data_dir} (is damaged|is not what its description says|cannot be read)",
    ) as error:
        data.load("mnist", data_dir)
    assert "--data-dir" in str(error.value)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_a_dataset_that_is_not_prepared_says_how_to_prepare_it(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} is not prepared in {tmp_path}") as error:
        data.load(name, tmp_path)
    assert f"tfds build {name}" in str(error.value)
    assert "pip install tensorflow" in str(error.value)


def test_an_unknown_dataset_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"imagenet.*digits, mnist, fashion_mnist, cifar10"):
        data.load("imagenet")


@pytest.mark.parametrize("num_validation", [0, -1, 100, 101])
def test_something_must_be_left_to_train_on_and_to_validate_with(num_validation):
    with pytest.raises(ValueError, match="1 to 99"):
        data.hold_out(numbered(100), num_validation, jax.random.key(0))


def test_a_set_that_cannot_be_divided_equally_is_refused():
    with pytest.raises(ValueError, match=r"100 training examples .* 3 workers"):
        data.shard(numbered(100), 3)
