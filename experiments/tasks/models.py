"""The thesis's models, in flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from experiments.tasks.convolution import convolve

_he_normal = nn.initializers.variance_scaling(2.0, "fan_in", "normal")


class MLP(nn.Module):
    """Three hidden ReLU layers, dropout 0.2 on the input and 0.5 on each hidden layer.

    Weights start He-normal (fan-in, not truncated), biases uniform(±1/√fan_in). With a width of 1024
    and MNIST's images it has 2,913,290 parameters.
    """

    num_classes: int
    width: int = 1024

    @nn.compact
    def __call__(self, images: Array, train: bool) -> Array:
        """From images [B, ...], float32, to logits [B, num_classes]."""
        x = images.reshape(images.shape[0], -1)
        x = nn.Dropout(0.2, deterministic=not train)(x)
        for _ in range(3):
            x = nn.relu(_dense(x, self.width))
            x = nn.Dropout(0.5, deterministic=not train)(x)
        return _dense(x, self.num_classes)


class PreActResNet18(nn.Module):
    """ResNet-18 for small images, where norm and ReLU come before each convolution of a block.

    Weights start He-normal (fan-in, not truncated), the last layer's biases uniform(±1/√fan_in). The
    running statistics, in the collection `batch_stats`, are those of each worker; a batch trained on
    enters them with a weight of 0.1. With CIFAR-10's images it has 11,171,146 parameters.

    References:
      He et al. (2016), Identity Mappings in Deep Residual Networks, https://arxiv.org/abs/1603.05027.
    """

    num_classes: int

    @nn.compact
    def __call__(self, images: Array, train: bool) -> Array:
        """From images [B, height, width, channels], float32, to logits [B, num_classes]."""
        x = _conv(images, 64, size=3)
        for features, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            x = PreActBlock(features, stride)(x, train)
            x = PreActBlock(features)(x, train)
        # The paper has another norm and ReLU here; as in kuangliu's pytorch-cifar, the thesis has none.
        return _dense(x.mean(axis=(1, 2)), self.num_classes)


class PreActBlock(nn.Module):
    """Two 3 x 3 convolutions, with norm and ReLU before each, added to a shortcut.

    The shortcut is the input as it came or, where the block changes the shape, a 1 x 1 convolution of
    what the first ReLU gives.
    """

    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """From [B, h, w, channels], float32, to [B, ⌈h / stride⌉, ⌈w / stride⌉, features]."""
        out = _normed_relu(x, train)
        if self.stride != 1 or x.shape[-1] != self.features:
            x = _conv(out, self.features, size=1, stride=self.stride)
        out = _conv(out, self.features, size=3, stride=self.stride)
        out = _conv(_normed_relu(out, train), self.features, size=3)
        return out + x


def _conv(x: Array, features: int, size: int, stride: int = 1) -> Array:
    # Padding alike on all sides, as in PyTorch: at stride 2, "SAME" would pad one side only.
    return nn.Conv(
        features,
        kernel_size=(size, size),
        strides=(stride, stride),
        padding=size // 2,
        use_bias=False,
        kernel_init=_he_normal,
        conv_general_dilated=convolve,
    )(x)


def _normed_relu(x: Array, train: bool) -> Array:
    # Unlike PyTorch's, the batch's variance enters the running one without a factor of n / (n - 1).
    return nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5)(x))


def _dense(x: Array, features: int) -> Array:
    bound = x.shape[-1] ** -0.5

    def uniform(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return nn.Dense(features, kernel_init=_he_normal, bias_init=uniform)(x)


def make_model(name: str, num_classes: int, width: int) -> nn.Module:
    """Makes the model of that name, one of `MODELS`; the width is the MLP's."""
    return MLP(num_classes, width) if name == "mlp" else PreActResNet18(num_classes)


MODELS = ("mlp", "resnet18")
