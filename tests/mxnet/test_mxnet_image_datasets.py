"""Image data sets from files in the formats of MNIST and CIFAR."""

import gzip

import numpy as np
import pytest
from jfit.mx.gluon.data import DataLoader
from jfit.mx.gluon.data.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST

import jfit.mx as mx


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype("uint8").tobytes()


def digits(rows, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (rows, 28, 28)), np.arange(rows) % 10


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
@pytest.mark.parametrize("packed", [False, True])
def test_mnist(kind, packed, tmp_path):
    for part, rows in (("train", 4), ("t10k", 2)):
        for what, array in zip(("images-idx3", "labels-idx1"), digits(rows), strict=True):
            content, name = idx(array), f"{part}-{what}-ubyte"
            (tmp_path / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    data = kind(str(tmp_path))
    image, label = data[3]
    assert (len(data), len(kind(tmp_path, train=False))) == (4, 2)
    assert (type(image), image.shape, image.dtype, label, label.dtype) == (mx.nd.NDArray, (28, 28, 1), np.uint8, 3, "int32")
    np.testing.assert_array_equal(image.asnumpy()[..., 0], digits(4)[0][3])
    scaled = kind(tmp_path, transform=lambda x, y: (x.reshape((-1,)).astype(np.float32) / 255, y))
    batch = next(iter(DataLoader(scaled, 4)))
    assert (batch[0].shape, batch[0].dtype, batch[1].dtype) == ((4, 784), np.float32, np.int32)
    np.testing.assert_allclose(batch[0].asnumpy(), digits(4)[0].reshape(4, -1) / 255, rtol=1e-6)


def test_unequal_files(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(digits(4)[0]))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(digits(3)[1]))
    with pytest.raises(ValueError, match=r"MNIST: the files in .* have 4 images, but 3 labels"):
        MNIST(tmp_path)


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"FashionMNIST: the folder .*datasets/fashion-mnist has no file train-images"
    ) as caught:
        FashionMNIST()
    assert isinstance(caught.value, mx.MXNetError)
    with pytest.raises(mx.MXNetError, match=r"has no file test_batch.bin. jfit does not download"):
        CIFAR10(train=False)


def cifar(rows, labels, seed=0):
    draw = np.random.RandomState(seed)
    pixels = draw.randint(0, 256, (rows, 3, 32, 32)).astype("uint8")
    numbers = draw.randint(0, 100, (rows, labels)).astype("uint8")
    return pixels, numbers, np.concatenate([numbers, pixels.reshape(rows, -1)], 1).tobytes()


def test_cifar10(tmp_path):
    parts = [cifar(2, 1, seed) for seed in range(5)]
    for k, (_, _, content) in enumerate(parts, 1):
        (tmp_path / f"data_batch_{k}.bin").write_bytes(content)
    data = CIFAR10(tmp_path)
    image, label = data[9]
    assert (len(data), image.shape, label.dtype) == (10, (32, 32, 3), np.int32)
    np.testing.assert_array_equal(image.asnumpy(), parts[4][0][1].transpose(1, 2, 0))
    assert label == parts[4][1][1, 0]
    (tmp_path / "data_batch_1.bin").write_bytes(parts[0][2][:-1])
    with pytest.raises(mx.MXNetError, match="expected a multiple of 3073"):
        CIFAR10(tmp_path)


@pytest.mark.parametrize("fine", [False, True])
def test_cifar100(fine, tmp_path):
    pixels, numbers, content = cifar(3, 2)
    (tmp_path / "test.bin").write_bytes(content)
    data = CIFAR100(str(tmp_path), fine_label=fine, train=False)
    assert [int(label) for _, label in (data[i] for i in range(3))] == numbers[:, int(fine)].tolist()
    np.testing.assert_array_equal(data[2][0].asnumpy(), pixels[2].transpose(1, 2, 0))
