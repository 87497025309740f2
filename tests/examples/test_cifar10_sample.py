"""The bundled sample: what its README says, in the format that torchvision reads, and made by its script."""

import gzip
import pickle
import struct
import sys
import tarfile
from collections import Counter
from pathlib import Path

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


def test_no_picture_twice(cifar, sample):
    pictures, _ = cifar.read(sample, cifar.TRAIN_FILES + cifar.TEST_FILES)
    assert len(np.unique(pictures.reshape(len(pictures), -1), axis=0)) == len(pictures)


def test_it_is_small_and_names_source_and_licence(sample):
    assert sample.stat().st_size < 1_000_000
    assert "Zalando SE" in (sample.parent / "LICENSE").read_text(encoding="utf-8")
    assert "is not CIFAR-10" in (sample.parent / "README.md").read_text(encoding="utf-8")


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


@pytest.fixture
def source(cifar, sample, tmp_path):
    """Fashion-MNIST's files as far as the sample tells of them; the pictures that it leaves out are of no class."""
    for name, batches in (("train", cifar.TRAIN_FILES), ("t10k", cifar.TEST_FILES)):
        pictures, labels = cifar.read(sample, batches)
        indices = [_index(found) for batch in _batches(sample, batches) for found in batch[b"filenames"]]
        every_picture = np.zeros((max(indices) + 1, 28, 28), np.uint8)
        every_label = np.full(len(every_picture), 255, np.uint8)
        every_picture[indices] = pictures[:, 0, 2:-2, 2:-2]
        every_label[indices] = labels
        _write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", every_picture)
        _write_idx(tmp_path / f"{name}-labels-idx1-ubyte.gz", every_label)
    return tmp_path


def _batches(sample, names):
    with tarfile.open(sample) as tar:
        for member in tar:
            if Path(member.name).name in names:
                yield pickle.loads(tar.extractfile(member).read(), encoding="bytes")


def _index(name):
    return int(name.decode().rpartition("-")[2].partition(".")[0])


def _write_idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


class TestTheScript:
    def test_makes_the_same_files(self, example, sample, source):
        with tarfile.open(sample) as tar:
            files = {Path(member.name).name: tar.extractfile(member).read() for member in tar}
        assert dict(example("make_sample").make_files(source)) == files

    @pytest.mark.skipif(sys.version_info < (3, 9), reason="tarfile of Python 3.8 writes device numbers for files, too")
    def test_makes_the_same_archive(self, example, sample, source):
        """Compared unpacked: how gzip packs may change with zlib's version."""
        make_sample = example("make_sample")
        assert make_sample.pack(make_sample.make_files(source)) == gzip.decompress(sample.read_bytes())
