"""``link_arguments`` overwrites its target, so routing sets what the target is taken from."""

import os

import pytest

from lightning_sm.errors import RoutingError


def linking(*sources, default="here", **link):
    def add(parser):
        for source in sources:
            if "." not in source:
                parser.add_argument(f"--{source}", type=str, default=default)
        parser.link_arguments(sources[0] if len(sources) == 1 else sources, "data.init_args.data_dir", **link)

    return add


def test_a_channel_feeds_the_source_of_a_link(container):
    cli = container.cli(add=linking("data_root"))
    channel = str(container.channel("training"))
    assert cli.datamodule.data_dir == channel
    assert cli.routing.sources["data_root"] == "channel 'training'"
    assert "data.data_dir" not in cli.routing.sources


@pytest.mark.parametrize(
    ("words", "values", "default"),
    [
        (["--data_root=mine"], {}, "here"),
        ([], {"data_root": "mine"}, "here"),
        ([], {"config": ["config.yaml", "root.yaml"]}, "here"),
        ([], {}, "hf://mine"),
    ],
)
def test_a_source_that_was_set_stays(container, words, values, default):
    container.config("data_root: s3://bucket/mine", "root.yaml").hyperparameters(values)
    cli = container.cli(*words, add=linking("data_root", default=default))
    assert cli.datamodule.data_dir.endswith("mine")
    assert "data_root" not in cli.routing.sources


def test_a_link_that_computes_stops_the_job_and_says_how_to_go_on(container):
    add = linking("data_root", "part", compute_fn=lambda root, part: os.path.join(root, part))
    with pytest.raises(RoutingError, match=r"computed from data_root and part\. HINT: .*sagemaker\.channels"):
        container.cli(add=add)
    assert container.cli("--data_root=/x", "--part=y", add=add).datamodule.data_dir == "/x/y"
    assert container.cli("--sagemaker.channels", "{training: ''}", add=add).datamodule.data_dir == "here/here"


def test_a_source_may_be_an_argument_of_another_class(container):
    container.config(
        "from tiny_model import TinyModel\nclass Reads(TinyModel):\n"
        "    def __init__(self, cache_dir: str = 'cache'):\n        super().__init__()\n"
        "        self.cache_dir = cache_dir\n",
        "reads.py",
    )
    add = linking("model.init_args.cache_dir")
    cli = container.hyperparameters(model="reads.Reads").cli(add=add)
    assert cli.model.cache_dir == cli.datamodule.data_dir == str(container.channel("training"))
