"""Training images are shifted and mirrored at random, each on its own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.tasks.augmentation import draw, random_crop_and_flip

KEY = jax.random.key(7)


def augmented(images: np.ndarray, offsets: Any, flips: Any, padding: int) -> np.ndarray:
    """Image after image, in NumPy."""
    _, height, width, _ = images.shape
    crops = []
    for image, (top, left), flip in zip(images, offsets, flips, strict=True):
        padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        crop = padded[top : top + height, left : left + width]
        crops.append(np.fliplr(crop) if flip else crop)
    return np.stack(crops)


def assert_uniform(cells: np.ndarray, num_cells: int) -> None:
    """Chi-squared; of uniform cells, it rejects one sample in a million."""
    counts = np.bincount(cells, minlength=num_cells)
    assert len(counts) == num_cells
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("padding", [0, 2, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_are_cropped_and_flipped_as_drawn(dtype, padding, rng):
    images = rng.integers(0, 256, (40, 6, 9, 3)).astype(dtype)
    result = random_crop_and_flip(KEY, images, padding)
    assert result.dtype == dtype
    offsets, flips = draw(KEY, 40, padding)
    np.testing.assert_array_equal(result, augmented(images, offsets, flips, padding))


def test_by_default_an_image_moves_by_four_pixels_at_most_and_black_comes_in():
    white = jnp.full((300, 32, 32, 1), 255, jnp.uint8)
    result = np.asarray(random_crop_and_flip(KEY, white))
    offsets, flips = map(np.asarray, draw(KEY, 300, 4))
    down, right = (4 - offsets).T  # how far what is seen moves, before the flip
    right = np.where(flips, -right, right)
    at = np.arange(32)
    rows, columns = ((shift[:, None] <= at) & (at < 32 + shift[:, None]) for shift in (down, right))
    np.testing.assert_array_equal(result[..., 0], 255 * (rows[:, :, None] & columns[:, None]))
    assert {*down} == {*right} == {*range(-4, 5)}


def test_every_offset_and_flip_is_equally_likely_whatever_the_others():
    offsets, flips = map(np.asarray, draw(KEY, 100_000, 4))
    cells = np.ravel_multi_index((*offsets.T, flips), (9, 9, 2))
    assert_uniform(cells, 9 * 9 * 2)


def test_an_image_s_draw_says_nothing_of_its_neighbour_s():
    offsets, flips = map(np.asarray, draw(KEY, 100_000, 1))
    cells = np.ravel_multi_index((*offsets.T, flips), (3, 3, 2))
    pairs = cells.reshape(-1, 2)
    assert_uniform(np.ravel_multi_index(tuple(pairs.T), (18, 18)), 18 * 18)


def test_another_key_draws_otherwise():
    first, other = (draw(jax.random.key(seed), 1_000, 4) for seed in (0, 1))
    # Of 1,000 offsets of 81 and as many flips, equal keys share all and others 12 and 500 on average.
    assert np.all(first[0] == other[0], axis=1).sum() < 50
    assert 400 < (first[1] == other[1]).sum() < 600


@pytest.mark.parametrize("transform", [jax.vmap, jax.pmap, "scan"])
def test_workers_together_get_what_each_gets_alone(transform, rng):
    keys = jax.random.split(KEY, 4)
    images = rng.integers(0, 256, (4, 5, 8, 8, 1)).astype(np.uint8)
    if transform == "scan":
        together = jax.lax.map(lambda both: random_crop_and_flip(*both), (keys, images))
    else:
        together = transform(random_crop_and_flip)(keys, images)
    for worker in range(4):
        alone = random_crop_and_flip(keys[worker], images[worker])
        np.testing.assert_array_equal(together[worker], alone)
