"""The bundled sample: what its README says, in the format that torchvision reads, and made by its script."""

import tarfile
from collections import Counter

import pytest

np = pytest.importorskip("numpy", reason="the example reads pictures into numpy arrays")


@pytest.fixture(scope="module")
def sample(cifar10_dir, cifar):
    return cifar10_dir / "sample" / cifar.ARCHIVE


@pytest.mark.parametrize(("split", "count"), [("TRAIN_FILES", 1600), ("TEST_FILES", 400)])
def test_counts_shapes_and_classes(cifar, sample, split, count):
    pictures, labels = cifar.read(sample, getattr(cifar, split))
    assert pictures.shape == (count, 3, 32, 32)
    assert Counter(labels.tolist()) == {label: count // 10 for label in range(10)}
    assert pictures.std(axis=(1, 2, 3)).min() > 0
    np.testing.assert_array_equal(pictures[:, 0], pictures[:, 2])


def test_torchvision_reads_the_same(cifar, sample, tmp_path, monkeypatch):
    try:
        from torchvision import datasets
    except Exception as error:  # a torchvision that does not fit its torch raises RuntimeError
        pytest.skip(f"torchvision cannot be imported: {error}")
    with tarfile.open(sample) as tar:
        for member in tar:
            target = tmp_path / member.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(tar.extractfile(member).read())
    # Only the checksums tell the sample from CIFAR-10.
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda *args: True)
    theirs = datasets.CIFAR10(str(tmp_path), train=False)
    pictures, labels = cifar.read(sample, cifar.TEST_FILES)
    np.testing.assert_array_equal(theirs.data, pictures.transpose(0, 2, 3, 1))
    assert theirs.targets == labels.tolist()
    assert theirs.classes[9] == "Ankle boot"
