"""CIFAR-10's files: found, read, and refused."""

import os
import pickle
import tarfile

import pytest

np = pytest.importorskip("numpy", reason="the example reads pictures into numpy arrays")


@pytest.fixture
def folder(cifar, example, tmp_path):
    """A data_dir with the published folder in it: batches of four random pictures with the labels 0 to 3."""
    pictures = np.random.RandomState(0).randint(0, 256, (4, 28, 28)).astype(np.uint8)
    batch = example("make_sample").make_batch("title", "train", pictures, np.arange(4), np.arange(4))
    inner = tmp_path / "data" / cifar.FOLDER
    inner.mkdir(parents=True)
    for name in cifar.TRAIN_FILES + cifar.TEST_FILES:
        (inner / name).write_bytes(batch)
    return inner.parent


def test_folder_and_archive_give_the_same_and_missing_batches_are_named(cifar, folder, tmp_path):
    with tarfile.open(tmp_path / cifar.ARCHIVE, "w:gz") as tar:
        tar.add(folder / cifar.FOLDER, f"./{cifar.FOLDER}")
    places = (tmp_path / cifar.ARCHIVE, folder / cifar.FOLDER)
    for one, other in zip(*(cifar.read(place, cifar.TEST_FILES) for place in places)):
        np.testing.assert_array_equal(one, other)
    (folder / cifar.FOLDER / "data_batch_2").unlink()
    (folder / cifar.FOLDER / "data_batch_5").unlink()
    with pytest.raises(cifar.CIFARFilesError, match=r"lacks data_batch_2, data_batch_5\. HINT"):
        cifar.read(folder / cifar.FOLDER, cifar.TRAIN_FILES)


@pytest.mark.parametrize("content", [b"", b"no gzip", b"\x1f\x8b\x08\x00"])
def test_broken_archive(cifar, tmp_path, content):
    archive = tmp_path / cifar.ARCHIVE
    archive.write_bytes(content)
    with pytest.raises(cifar.CIFARFilesError, match="HINT"):
        cifar.read(archive, cifar.TEST_FILES)


class Caller:
    """Pickles as a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


DATA = np.arange(2 * 3072).reshape(2, 3072).astype(np.uint8)


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("keys", [("data", "labels"), (b"data", b"labels")])
def test_written_by_python_3(cifar, protocol, keys):
    """Cut-down copies of CIFAR-10 come from whatever Python and NumPy their author has."""
    raw = pickle.dumps({keys[0]: DATA, keys[1]: [3, 9]}, protocol=protocol)
    pictures, labels = cifar.parse_batch(raw, "here")
    np.testing.assert_array_equal(pictures.reshape(2, 3072), DATA)
    assert labels.tolist() == [3, 9]


def test_hostile_pickle_calls_nothing(cifar, tmp_path):
    target = tmp_path / "touched"
    raw = pickle.dumps({b"data": Caller(os.mkdir, str(target)), b"labels": [1]})
    with pytest.raises(cifar.CIFARFilesError, match=r"here .* asks for posix\.mkdir.*HINT"):
        cifar.parse_batch(raw, "here")
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "found a list instead of a dict"),
        ({b"labels": [1]}, "KeyError"),
        ({b"data": DATA}, "KeyError"),
        ({b"data": [1], b"labels": [1]}, "not an array"),
        ({b"data": DATA.astype(np.float32), b"labels": [1, 2]}, "N x 3072 bytes"),
        ({b"data": DATA.reshape(-1), b"labels": [1, 2]}, "N x 3072 bytes"),
        ({b"data": DATA[:, :3000], b"labels": [1, 2]}, "N x 3072 bytes"),
        ({b"data": np.asfortranarray(DATA), b"labels": [1, 2]}, "N x 3072 bytes"),
        ({b"data": DATA[:0], b"labels": []}, "N x 3072 bytes"),
        ({b"data": DATA, b"labels": [1]}, "2 pictures and 1 labels"),
        ({b"data": DATA, b"labels": [1, 10]}, "from 0 to 9"),
        ({b"data": DATA, b"labels": [1, True]}, "from 0 to 9"),
        ({b"data": DATA, b"fine_labels": [1, 99]}, "KeyError"),
    ],
)
def test_other_content(cifar, content, message):
    with pytest.raises(cifar.CIFARFilesError, match=f"here .*{message}.*HINT"):
        cifar.parse_batch(pickle.dumps(content), "here")
