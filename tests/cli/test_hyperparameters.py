"""Hyperparameters reach the model as what their author wrote, whoever writes the command line."""

import json
import math

import pytest
import torch

from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm.errors import HyperparameterError

TYPED = [
    ("numbers", [1, 2, 3]),
    ("texts", ["a", "b c", "5", "null"]),
    ("mapping", {"a": {"b": {"c": None, "d": [True, 1.5, "x"]}}}),
    ("mapping", None),
    ("maybe", None),
    ("maybe", "None"),
    ("maybe", "null"),
    ("flag", True),
    ("size", -7),
    ("lr", 1e-05),
    ("lr", math.inf),
    ("lr", math.nan),
    ("text", "5"),
    ("text", "true"),
    ("text", "[1]"),
    ("text", "a: b"),
    ("text", 'it\'s "so"\n\ttwo lines'),
    ("text", "--trainer.max_epochs=9"),
    ("text", ""),
    ("text", "é 你好 😀 \u2028 \x7f"),
    ("either", 5),
    ("anything", {"x": [1, {"y": None}]}),
]
_IDS = [f"{name}={value!r}" for name, value in TYPED]


@pytest.mark.parametrize(("name", "value"), TYPED, ids=_IDS)
def test_sdk_v2_writes_json(container, name, value):
    container.hyperparameters({f"model.{name}": value})
    content = {"config": json.dumps("config.yaml"), f"model.{name}": json.dumps(value)}
    read = Hyperparameters.from_file(content, "hyperparameters.json")
    # The toolkit's spelling is the second.
    words = [word for each in sorted(read.values) for word in (f"--{each}", read.spellings(each)[1])]
    assert repr(container.cli(*words).model.given[name]) == repr(value)


@pytest.mark.parametrize("before", [None, {"a": 1, "b": {"c": 2}}])
@pytest.mark.parametrize("value", [None, "", {"y": None}, 5])
def test_a_key_of_a_mapping_leaves_its_other_keys(container, before, value):
    container.config(f"model: {{init_args: {{mapping: {json.dumps(before)}}}}}", "before.yaml")
    container.hyperparameters({"config": ["config.yaml", "before.yaml"], "model.mapping.new": value})
    assert container.cli().model.given["mapping"] == {**(before or {}), "new": value}


@pytest.mark.parametrize(
    ("name", "value"),
    [("debug", True), ("debug", False), ("sizes", [3, 4]), ("sizes", [3]), ("words", ["a", "1"])],
)
def test_options_of_argparse_that_take_no_word_or_several(container, name, value):
    def add(parser):
        parser.add_argument("--debug", action="store_true")
        parser.add_argument("--sizes", nargs="+", type=int)
        parser.add_argument("--words", nargs="*")

    for write in (container.hyperparameters, container.raw_hyperparameters):
        sent = value if write == container.hyperparameters else json.dumps(value)
        assert write(**{name: sent}).cli(add=add).config[name] == value


@pytest.mark.parametrize("class_key", ["model", "model.class_path"])
def test_classes_by_hyperparameter(container, class_key):
    container.hyperparameters(
        config=None,
        **{class_key: "tiny_model.TinyModel", "model.size": 4, "data": "tiny_data.TinyData", "data.batch_size": 2},
    )
    cli = container.cli()
    assert cli.model.given["size"] == 4
    assert (cli.datamodule.batch_size, cli.datamodule.data_dir) == (2, str(container.channel("training")))


_NO_KEY = "(by a hyperparameter) is no key; did you mean '{}'?"


@pytest.mark.parametrize(
    ("values", "words", "message"),
    [
        ({"trainer.max_epoch": 1}, [], _NO_KEY.format("trainer.max_epochs")),
        ({"model.lrr": 1}, [], _NO_KEY.format("model.lr")),
        ({"model.init_args.lrr": 1}, [], _NO_KEY.format("model.lr")),
        ({"modle.lr": 1}, [], _NO_KEY.format("model.lr")),
        ({"data.batchsize": 1}, [], _NO_KEY.format("data.batch_size")),
        ({"sagemaker.chanels": 1}, [], _NO_KEY.format("sagemaker.channels")),
        ({"sagemaker.checkpoints_dir": 1}, [], _NO_KEY.format("sagemaker.checkpoint_dir")),
        ({"seed_everythin": 1}, [], _NO_KEY.format("seed_everything")),
        # Two keys end in it.
        ({"batch_size": 2}, [], "'batch_size' may mean data.batch_size or model.batch_size"),
        ({"batch_size": 2}, [], "hyperparameters: {batch_size: data.batch_size}, or send it as 'data__batch_size'"),
        ({"lr": 1, "sagemaker.hyperparameters": "lr"}, [], "sagemaker.hyperparameters"),
        ({"lr": 1, "sagemaker.hyperparameters": ["lr"]}, [], "sagemaker.hyperparameters"),
        ({"lr": 1, "sagemaker.hyperparameters": {"lr": 1}}, [], "sagemaker.hyperparameters"),
        ({"model.lr": "much"}, [], "much"),
        ({"model.size": 1.5}, [], "size"),
        ({"trainer.max_epochs": "many"}, [], "max_epochs"),
        ({}, ["--trainer.max_epochz", "1"], "trainer.max_epochs"),
        # An abbreviation is no key.
        ({}, ["--trainer.max_ep=3"], "did you mean 'trainer.max_epochs'?"),
        ({}, ["--unknown=1"], "unknown"),
        ({}, ["stray"], "stray"),
        ({}, ["--", "stray"], "unrecognized arguments: -- stray"),
        ({"subcommand": "fitt"}, [], "fitt"),
        ({"": 1}, [], "HINT: "),
        ({"a..b": 1}, [], "HINT: "),
        ({"config": "missing.yaml"}, [], "missing.yaml"),
        ({"config": 7}, [], "'config' is 7"),
        ({"sagemaker.channels": 5}, [], "sagemaker.channels"),
        ({"sagemaker.channels": {"training": "data.dat_dir"}}, [], "data.data_dir"),
        ({"sagemaker.channels": {"trainign": "data.data_dir"}}, [], "training"),
    ],
)
def test_what_cannot_be_parsed_reaches_the_failure_reason(container, values, words, message):
    container.hyperparameters(values)
    with pytest.raises(ValueError) as caught:
        container.cli(*words, run=True)
    assert message in str(caught.value)
    assert type(caught.value).__name__ in container.failure
    assert message in container.failure
    assert "lightning-sm-call" not in container.failure  # options that only we write
    assert len(container.failure) <= 1024


@pytest.mark.skipif(
    Namespace("pytorch_lightning").version < (2, 5)
    or not hasattr(Namespace("pytorch_lightning").module("cli").LightningCLI, "_parse_ckpt_path"),
    reason="Lightning parses hyperparameters of checkpoints since 2.5.5",
)
def test_a_checkpoint_of_another_model_reaches_the_failure_reason(container, tmp_path):
    torch.save({"hyper_parameters": {"no_such": 1}}, tmp_path / "other.ckpt")
    container.hyperparameters({"ckpt_path": str(tmp_path / "other.ckpt")})
    with pytest.raises(HyperparameterError, match="no_such"):
        container.cli("fit", run=True)
    assert "no_such" in container.failure
    assert "HINT: Name a checkpoint of this model" in container.failure
