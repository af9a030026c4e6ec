"""CIFAR-10's training augmentation, on the device."""

import jax
import jax.numpy as jnp
from jax import Array, lax


def random_crop_and_flip(key: Array, images: Array, padding: int = 4) -> Array:
    """Shifts each image at random, and mirrors half of them.

    An image is padded with black pixels on every side, cropped at a random offset to the size it had,
    and flipped left to right with probability 1/2. Each image has its own offset and flip.

    Args:
      key: a random key; the same key gives the same crops and flips.
      images: raw pixels [B, height, width, channels], so that 0 is black; of any dtype.
      padding: the furthest an image is shifted, in pixels.

    Returns:
      Images of the shape and dtype of `images`.
    """
    offsets, flips = draw(key, len(images), padding)
    padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))

    def augment(image: Array, offset: Array, flip: Array) -> Array:
        crop = lax.dynamic_slice(image, (*offset, 0), images.shape[1:])
        return jnp.where(flip, crop[:, ::-1], crop)

    return jax.vmap(augment)(padded, offsets, flips)


def draw(key: Array, num_images: int, padding: int) -> tuple[Array, Array]:
    """Draws where each padded image is cropped, and whether it is flipped.

    Args:
      key: a random key.
      num_images: B, how many images to draw for.
      padding: how many pixels were added on each side.

    Returns:
      Offsets of the crop from the top and from the left, int32 [B, 2], uniform on 0 to 2 padding
      inclusive; and flips, bool [B], true with probability 1/2.
    """
    offset_key, flip_key = jax.random.split(key)
    offsets = jax.random.randint(offset_key, (num_images, 2), 0, 2 * padding + 1, dtype=jnp.int32)
    return offsets, jax.random.bernoulli(flip_key, shape=(num_images,))
