"""What the workers learn: a model on normalised images, as pure functions of its parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import Array

from experiments.tasks.augmentation import random_crop_and_flip
from experiments.tasks.data import Dataset, Examples
from gossip_jax.metrics import num_correct
from gossip_jax.training import Loss


class Task(NamedTuple):
    """A classification task, one worker's view."""

    init: Callable[[Array], tuple[Any, Any]]  # key -> (params, model_state)
    loss: Loss  # the mean cross-entropy over a batch of Examples
    num_correct: Callable[[Any, Any, Examples], Array]  # (params, model_state, examples) -> int32


def classification(model: nn.Module, dataset: Dataset, augment: bool = False) -> Task:
    """The task of naming the class of each image.

    Args:
      model: from images [B, height, width, channels], float32, and `train` to logits [B, classes].
      dataset: what to learn.
      augment: crop and flip the images that are trained on.
    """
    # What the functions below need of the dataset, so that they do not keep all of it in memory.
    white, shape = dataset.white, dataset.train.image.shape[1:]
    # Of the shape of a batch, which channels alone would be promoted to.
    mean, std = (jnp.asarray(of).reshape(1, 1, 1, -1) for of in (dataset.mean, dataset.std))

    def normalise(image: Array) -> Array:
        return (image.astype(jnp.float32) / white - mean) / std

    def init(key: Array) -> tuple[Any, Any]:
        image = jnp.zeros((1, *shape), jnp.uint8)
        variables = dict(model.init(key, normalise(image), train=False))
        return variables.pop("params"), variables

    def loss(params: Any, model_state: Any, batch: Examples, key: Array) -> tuple[Array, Any]:
        image = batch.image
        if augment:
            key, augment_key = jax.random.split(key)
            image = random_crop_and_flip(augment_key, image)
        logits, model_state = model.apply(
            {"params": params, **model_state},
            normalise(image),
            train=True,
            rngs={"dropout": key},
            mutable=list(model_state),
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.label)
        return losses.mean(), model_state

    def correct(params: Any, model_state: Any, examples: Examples) -> Array:
        def logits(image: Array) -> Any:  # of flax's apply: an Array, as nothing is mutable
            return model.apply({"params": params, **model_state}, normalise(image), train=False)

        return num_correct(logits, examples.image, examples.label)

    return Task(init, loss, correct)
