"""The thesis's tasks: to name the class of each image."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import Array

from experiments.tasks import data
from experiments.tasks.augmentation import random_crop_and_flip
from experiments.tasks.data import Dataset, Examples, Images
from experiments.tasks.models import MODELS, make_model
from experiments.tasks.task import Learner, Metric, Task
from gossip_jax.metrics import num_correct

ACCURACY = Metric(
    name="accuracy",
    label="accuracy",
    is_higher_better=True,
    is_mean=True,
    is_share=True,
    format=".4f",
    report_format=".2f",
)


def classification(model: nn.Module, dataset: Images, augment: bool = False) -> Learner:
    """The functions of a model that learns the classes of a dataset.

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

    def score(params: Any, model_state: Any, examples: Examples) -> dict[str, Array]:
        def logits(image: Array) -> Any:  # of flax's apply: an Array, as nothing is mutable
            return model.apply({"params": params, **model_state}, normalise(image), train=False)

        return {ACCURACY.name: num_correct(logits, examples.image, examples.label)}

    return Learner(init, loss, score)


def _task(name: str) -> Task:
    def load(data_dir: Path | None) -> Dataset:
        return data.load(name, data_dir)

    def make(dataset: Images, model: str, width: int, augment: bool) -> Learner:
        return classification(make_model(model, dataset.num_classes, width), dataset, augment)

    return Task(
        name=name,
        metrics=(ACCURACY,),
        models=MODELS,
        load=load,
        make=make,
        options=("model", "width", "augment"),
    )


TASKS = tuple(map(_task, data.NAMES))
"""One for each dataset."""
