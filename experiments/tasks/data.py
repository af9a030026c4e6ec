"""Datasets of images, in memory as uint8, and how those of any task are divided among workers."""

import dataclasses
import importlib.util
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array

from experiments.common.files import brief, checksum, exists, files_below, reason
from gossip_jax import keys
from gossip_jax.keys import Purpose

T = TypeVar("T")  # a pytree of arrays, whose first axis is of the examples


class Examples(NamedTuple):
    """Labelled images; stacked by worker, they have a leading axis of W."""

    image: Any  # uint8 [n, height, width, channels]
    label: Any  # int32 [n]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """What a task learns from: pytrees of arrays, whose first axis is of the examples."""

    train: Any
    test: Any
    num_validation: int  # how many training examples are held out, unless one asks for another number


@dataclasses.dataclass(frozen=True)
class Images(Dataset):
    """Images to be classified; `train` and `test` are `Examples`."""

    num_classes: int
    white: int  # the largest value of a pixel
    mean: tuple[float, ...]  # of each channel, of pixels scaled to [0, 1]
    std: tuple[float, ...]


class _Prepared(NamedTuple):
    """What tensorflow-datasets does not say of a dataset."""

    num_validation: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


# MNIST's and CIFAR-10's figures are the thesis's; Fashion-MNIST's mean and deviation are those of its
# training set, as usually quoted.
_PREPARED = {
    "mnist": _Prepared(8_800, (0.1307,), (0.3081,)),
    "fashion_mnist": _Prepared(8_800, (0.2860,), (0.3530,)),
    "cifar10": _Prepared(5_200, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}

NAMES = ("digits", *_PREPARED)
"""The datasets of images."""

_READ_AT_ONCE = 1_000  # examples decoded together: bounds the memory beside the arrays themselves


def load(name: str, data_dir: Path | None = None) -> Images:
    """Reads a dataset of images.

    Args:
      name: one of `NAMES`.
      data_dir: where tensorflow-datasets keeps prepared datasets; where not given, its usual places
        and, beside the checkout, shared/data/tfds. digits has no use for it.

    Raises:
      ValueError: the name is unknown, or the dataset is not prepared in `data_dir`, or in another
        format, or is not what its description says.
      OSError: one of its files cannot be read; it names it and the system's reason.
    """
    if name == "digits":
        return _load_digits()
    if name not in _PREPARED:
        raise ValueError(f"unknown dataset {name!r}; there are digits, {', '.join(_PREPARED)}")
    return _load_prepared(name, data_dir)


def number_of(examples: Any) -> int:
    """Counts examples that are not divided among workers."""
    return len(jax.tree.leaves(examples)[0])


def hold_out(train: T, num_validation: int, key: Array) -> tuple[T, T]:
    """Divides the training set at random into what is trained on and what validates.

    Raises:
      ValueError: nothing would be left to train on.
    """
    num_examples = number_of(train)
    if not 0 < num_validation < num_examples:
        raise ValueError(
            f"validation examples are held out from the {num_examples} training examples, so there "
            f"must be 1 to {num_examples - 1} of them; got {num_validation}"
        )
    order = np.asarray(jax.random.permutation(keys.derive(key, Purpose.SPLIT), num_examples))
    held_out, kept = order[:num_validation], order[num_validation:]
    return jax.tree.map(lambda leaf: leaf[kept], train), jax.tree.map(
        lambda leaf: leaf[held_out], train
    )


def first(train: T, num_examples: int | None) -> T:
    """So many of the training examples, or all of them.

    Raises:
      ValueError: there are not so many.
    """
    if num_examples is not None and num_examples > number_of(train):
        raise ValueError(
            f"there are {number_of(train)} examples to train on; got --train-examples {num_examples}"
        )
    return jax.tree.map(lambda leaf: leaf[:num_examples], train)


def shard(train: T, num_workers: int) -> T:
    """Divides the training set into disjoint, equal shards, stacked: leaves [W, n / W, ...].

    Raises:
      ValueError: the number of examples is not a multiple of the number of workers.
    """
    num_examples = number_of(train)
    if num_examples % num_workers:
        raise ValueError(
            f"{num_examples} training examples cannot be divided equally among {num_workers} workers; "
            f"change --workers, or --validation-examples, which are taken from the training set"
        )
    return jax.tree.map(
        lambda leaf: leaf.reshape(num_workers, num_examples // num_workers, *leaf.shape[1:]), train
    )


def _load_digits() -> Images:
    """scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels from 0 to 16.

    They come as one set, here always divided alike: 360 test images drawn at random.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    # The file that sklearn.datasets.load_digits reads: to import it takes longer than all the rest.
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(path, np.uint8, delimiter=",")
    everything = Examples(rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32))
    train, test = hold_out(everything, 360, keys.run_key(0))
    # The mean and standard deviation of all its pixels / 16.
    return Images(train, test, 237, num_classes=10, white=16, mean=(0.3053,), std=(0.3760,))


def _load_prepared(name: str, data_dir: Path | None) -> Images:
    where = data_dir or _usual_place(name)
    _require_readable(name, where)
    # tensorflow-datasets logs, through absl, what it would rather have installed.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    import tensorflow_datasets as tfds

    remedy, elsewhere = (
        f"Point --data-dir at a directory that holds it, prepared as array_record, or prepare it"
        f"{there}: pip install tensorflow; "
        f"tfds build {name} --file_format=array_record --data_dir={place}"
        for there, place in (("", where), (" in another directory", "DIRECTORY"))
    )
    try:
        builder: Any = tfds.builder(name, data_dir=where)
        prepared = bool(builder.info.splits)
    except Exception as error:
        raise ValueError(
            f"the dataset {name} in {where} cannot be read: {brief(error)}. {elsewhere}"
        ) from error
    if not prepared:
        raise ValueError(f"the dataset {name} is not prepared in {where}. {remedy}")
    try:
        train, test = (_read(builder, split) for split in ("train", "test"))
    except NotImplementedError as error:  # tensorflow-datasets cannot look examples up in it
        raise ValueError(
            f"the dataset {name} in {where} is prepared as {builder.info.file_format.value}, which "
            f"cannot be read here without TensorFlow. {elsewhere}"
        ) from error
    except Exception as error:
        _require_readable(name, where, is_whole=True)
        raise ValueError(
            f"the dataset {name} in {where} is not what its description says: {brief(error)}. "
            f"{elsewhere}"
        ) from error
    num_classes = builder.info.features["label"].num_classes
    return Images(train, test, num_classes=num_classes, white=255, **_PREPARED[name]._asdict())


def _usual_place(name: str) -> Path:
    """$TFDS_DATA_DIR, ~/tensorflow_datasets or ../shared/data/tfds: the first that has the dataset."""
    home = Path.home() / "tensorflow_datasets"
    beside = Path(__file__).resolve().parents[3] / "shared" / "data" / "tfds"
    places = [Path(os.environ.get("TFDS_DATA_DIR") or home), home, beside]
    return next((place for place in places if os.path.isdir(place / name)), places[0])


def _require_readable(name: str, where: Path, is_whole: bool = False) -> None:
    """Raises OSError, and says why, where a file of a dataset cannot be opened, or read to its end.

    tensorflow-datasets takes what it may not see for absent, and the system's errors for damage.
    """
    try:
        for file in files_below(where / name) if exists(where / name) else ():
            if is_whole:
                checksum(file)
            else:
                file.open("rb").close()
    except OSError as error:
        raise OSError(
            f"the dataset {name} in {where} cannot be read: {reason(error)}; nothing was changed"
        ) from error


def _read(builder: Any, split: str) -> Examples:
    """A whole split; ValueError where it is not what the dataset's description says."""
    features, num_examples = builder.info.features, builder.info.splits[split].num_examples
    source = builder.as_data_source(split=split)
    if len(source) != num_examples:
        raise ValueError(f"{split} has {len(source)} examples instead of {num_examples}")
    image = np.empty((num_examples, *features["image"].shape), np.uint8)
    label = np.empty(num_examples, np.int32)
    for index, example in enumerate(_in_order(source)):
        image[index], label[index] = example["image"], example["label"]
    if not 0 <= label.min() <= label.max() < features["label"].num_classes:
        raise ValueError(f"{split} has labels from {label.min()} to {label.max()}")
    return Examples(image, label)


def _in_order(source: Any) -> Iterator[dict[str, Any]]:
    for start in range(0, len(source), _READ_AT_ONCE):
        yield from source.__getitems__(range(start, min(start + _READ_AT_ONCE, len(source))))
