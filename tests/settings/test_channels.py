import os
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import pytest

from lightning_sm._sagemaker.job import Channel, TrainingJob
from lightning_sm._settings.channels import Consumer, route_channels, unrouted_channels
from lightning_sm._settings.options import SageMakerOptions
from lightning_sm.errors import RoutingError
from tests.settings.given import context_of, given_of


@pytest.fixture
def make_job(tmp_path):
    def make(*names, **modes):
        channels = {}
        for name in (*names, *modes):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            (folder / "file").write_text("1")
            channels[name] = Channel(name, str(folder), modes.get(name, "File"))
        return TrainingJob(in_container=True, base_dir="/nowhere", channels=channels)

    return make


def data_class(source):
    """A class whose constructor has the given parameters."""
    space = {**vars(typing), "Optional": Optional, "Split": Split, "Path": Path, "os": os}
    exec(f"class Data:\n    def __init__(self, {source}): pass", space)
    return space["Data"]


def route(job, source, given=None, options=None, is_named=False):
    context = context_of(job, given, SageMakerOptions(channels=options or {}))
    return {each.key: each for each in route_channels(context, Consumer("data", data_class(source), is_named))}


def fed(job, source, **more):
    """Which channel each parameter gets."""
    return {key: os.path.basename(setting.value) for key, setting in route(job, source, **more).items()}


@pytest.mark.parametrize(
    ("channels", "parameters", "expected"),
    [
        (["training"], "data_dir", {"data.data_dir": "training"}),
        (["train"], "data_dir", {"data.data_dir": "train"}),
        (["images"], "data_dir", {"data.data_dir": "images"}),
        (["validation"], "root='x'", {"data.root": "validation"}),
        (["training"], "root", {"data.root": "training"}),
        (["training"], "data_path", {"data.data_path": "training"}),
        (["training"], "dataset_root, batch_size=1", {"data.dataset_root": "training"}),
        (["training"], "train_dir, data_dir", {"data.train_dir": "training"}),
        (["train"], "training_path, size", {"data.training_path": "train"}),
        (["training"], "batch_size", {}),
        (["images", "labels"], "data_dir", {}),
        (["images", "labels"], "images_dir, labels_path", {"data.images_dir": "images", "data.labels_path": "labels"}),
        (["train", "validation"], "data_dir, val_dir=None", {"data.data_dir": "train", "data.val_dir": "validation"}),
        (["train", "val"], "data_dir, validation_root", {"data.data_dir": "train", "data.validation_root": "val"}),
        (["training", "valid"], "data_dir, valid", {"data.data_dir": "training", "data.valid": "valid"}),
        (["train", "test"], "data_dir, test_data_dir", {"data.data_dir": "train", "data.test_data_dir": "test"}),
        (["train", "extra-x.y"], "root, extra_x_y_dir", {"data.root": "train", "data.extra_x_y_dir": "extra-x.y"}),
        (["training", "code", "sm_drivers", "recipe"], "data_dir, code", {"data.data_dir": "training"}),
        (["code"], "data_dir", {}),
        ([], "data_dir", {}),
        # A default that is remote or below the base directory stays.
        (["training"], "data_dir='s3://bucket/x'", {}),
        (["training"], "data_dir='/nowhere/kept'", {}),
        (["training"], "data_dir='data'", {"data.data_dir": "training"}),
    ],
)  # fmt: skip
def test_by_name(make_job, channels, parameters, expected):
    assert fed(make_job(*channels), parameters) == expected


@dataclass
class Split:
    part: int = 1


@pytest.mark.parametrize(
    "parameter",
    # A number of the channel's name, and what is no path by its type.
    ["train=True", "train: bool = None", "train: Optional[float] = None", "train: 'int' = 0", "train=0.8",
     *(f"train: {annotation} = None" for annotation in
       ("'Optional[int]'", "Split", "Optional[Split]", "List[str]", "Union[str, int]", "Callable"))],
)  # fmt: skip
def test_what_is_no_path(make_job, parameter):
    assert fed(make_job("train"), f"data_dir, {parameter}") == {"data.data_dir": "train"}


@pytest.mark.parametrize(
    "annotation",
    ["str", "'str | None'", "Optional[Path]", "Union[str, os.PathLike]", "'Path_drw'", "'Unknown'", "Any",
     "TypeVar('T')", "NewType('Folder', str)"],
)  # fmt: skip
def test_what_may_be_a_path_by_its_type(make_job, annotation):
    assert fed(make_job("train"), f"data_dir, train: {annotation} = None") == {"data.train": "train"}


@pytest.mark.parametrize(
    ("name", "option"),
    [("labels", "sagemaker.channels.labels"), ("labels.v1", "the key 'labels.v1' of the mapping sagemaker.channels")],
)
def test_an_unfed_channel_names_what_it_could_feed(make_job, name, option):
    source = "data_dir: str, label_file: str = '', cache: Optional[Path] = None, size: int = 1, kind: str = '', x=None"
    consumer = Consumer("data", data_class(source))
    (note,) = unrouted_channels(context_of(make_job("training", name)), consumer)
    assert note.endswith(f"feeds no parameter; to choose one (data.label_file or data.cache), set {option}")


def test_the_parameters_behind_keywords_count(make_job):
    class Base:
        def __init__(self, data_dir):
            pass

    class Data(Base):
        def __init__(self, size=1, **kwargs):
            super().__init__(**kwargs)

    consumer = Consumer("data", Data, True)
    (setting,) = route_channels(context_of(make_job("training")), consumer)
    assert setting.key == "data.init_args.data_dir"
    assert setting.source == "channel 'training'"


def test_nothing_that_reads_data(make_job):
    job = make_job("training")
    assert [*route_channels(context_of(job), None), *unrouted_channels(context_of(job), None)] == []
    assert unrouted_channels(context_of(job), Consumer("data", data_class("size"))) == (
        f"channel 'training' ({job.channels['training'].path}) feeds no parameter; "
        "to choose one, set sagemaker.channels.training",
    )


def test_two_channels_for_one_parameter(make_job):
    job = make_job("train", "training")
    with pytest.raises(RoutingError, match=r"'train' and 'training' both feed data\.data_dir\. HINT: Choose"):
        route(job, "data_dir")
    options = {"training": "data.data_dir"}
    assert fed(job, "data_dir", options=options) == {"data.data_dir": "training"}
    (note,) = unrouted_channels(
        context_of(job, options=SageMakerOptions(channels=options)), Consumer("data", data_class("data_dir"))
    )
    assert "channel 'train'" in note
    with pytest.raises(RoutingError, match="both feed"):
        route(job, "data_dir", options={"train": "data.data_dir", "training": "data.data_dir"})


def test_two_parameters_for_one_channel(make_job):
    job, source = make_job("training"), "data_dir='a', root='b'"
    with pytest.raises(
        RoutingError, match=r"could feed data\.data_dir or data\.root\. HINT: .* sagemaker.channels.train"
    ):
        route(job, source)
    assert fed(job, source, options={"training": "data.root"}) == {"data.root": "training"}


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("chosen", ["data.where", "data.init_args.where"])
def test_chosen(make_job, is_named, chosen):
    given = given_of({"data": {"where": "s3://kept/otherwise"}})
    routed = route(make_job("x", "y"), "where, data_dir", given, {"x": chosen}, is_named)
    (setting,) = routed.values()
    assert setting.key == ("data.init_args.where" if is_named else "data.where")
    assert str(setting).endswith("← channel 'x' by sagemaker.channels (replaces s3://kept/otherwise from a.yaml)")


def test_a_channel_that_the_job_has_not(make_job):
    with pytest.raises(RoutingError, match="names y, z, which the job has not: x"):
        route(make_job("x"), "data_dir", options={"z": "data.data_dir", "y": ""})


def test_what_was_said_explicitly_stays_even_if_the_channel_is_broken(make_job):
    assert route(make_job(training="Pipe"), "data_dir", given_of(data={"data_dir": "here"})) == {}
    with pytest.raises(RoutingError, match=r"The channel 'training' at .* is a pipe"):
        route(make_job(training="Pipe"), "data_dir")


@pytest.mark.parametrize(
    ("make", "below", "problem"),
    [
        (lambda path: None, "", "does not exist"),
        (os.mkdir, "", "is empty"),
        (os.mkfifo, "", "is a pipe"),
        (lambda path: os.mkfifo(f"{path}_0"), "", "is a pipe"),
        (Path.touch, "y", "does not exist"),
    ],
)
def test_channels_without_files(tmp_path, make, below, problem):
    make(tmp_path / "x")
    with pytest.raises(RoutingError, match=rf"The channel 'x' at .* {problem}.* HINT: "):
        Channel("x", str(tmp_path / "x" / below), "File").validate()
