"""Hyperparameters without dots, as tuning jobs and SDK v3 send them."""

import pytest

from lightning_sm.errors import HyperparameterError
from tests.projects.container import config_of


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        *(
            (name, 0.25, lambda cli: cli.model.given["lr"])
            for name in ("lr", "model__lr", "model__init_args__lr", "model.lr", "model.init_args.lr")
        ),
        ("max_epochs", 7, lambda cli: cli.trainer.max_epochs),
        ("max-epochs", 7, lambda cli: cli.trainer.max_epochs),
        ("trainer__max_epochs", 7, lambda cli: cli.trainer.max_epochs),
        ("accumulate_grad_batches", 3, lambda cli: cli.trainer.accumulate_grad_batches),
        ("seed_everything", 9, lambda cli: config_of(cli)["seed_everything"]),
        ("mapping", {"a": 1}, lambda cli: cli.model.given["mapping"]),
        ("data__batch_size", 4, lambda cli: cli.datamodule.batch_size),
        ("save_every", "5m", lambda cli: config_of(cli)["sagemaker"]["save_every"]),
    ],
)
def test_a_name_sets_the_only_key_that_ends_in_it(container, name, value, read):
    container.hyperparameters({name: value})
    found = read(container.cli())
    assert getattr(found, "as_dict", lambda: found)() == value


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [("lr", "model.lr", "model.lr"), ("max_epochs", "max-epochs", "trainer.max_epochs")],
)
def test_two_names_of_one_key_with_different_values_are_refused(container, first, second, key):
    container.hyperparameters({first: 2, second: 3})
    with pytest.raises(HyperparameterError) as caught:
        container.cli()
    assert f"{first!r} (2) and {second!r} (3) both set {key}." in str(caught.value)


@pytest.mark.parametrize("key", ["data.batch_size", "data.init_args.batch_size"])
@pytest.mark.parametrize("place", ["config", "hyperparameter", "typed"])
def test_an_explicit_key_wins(container, key, place):
    choice = f"{{batch_size: {key}}}"
    container.config(f"sagemaker: {{hyperparameters: {choice}}}" if place == "config" else "")
    chosen = {"sagemaker.hyperparameters": {"batch_size": key}} if place == "hyperparameter" else {}
    cli = container.hyperparameters({"batch_size": 2, **chosen}).cli(
        *([f"--sagemaker.hyperparameters={choice}"] if place == "typed" else [])
    )
    assert (cli.datamodule.batch_size, cli.model.given["batch_size"]) == (2, 1)
    assert f"{key} = 2 ← hyperparameter 'batch_size'" in cli.routing.table()


def test_an_explicit_key_takes_a_name_of_the_users(container):
    container.config("sagemaker: {hyperparameters: {rate: model.lr, run: ''}}")
    container.hyperparameters(rate=0.5, run="mine")
    assert container.cli().model.given["lr"] == 0.5


def test_a_key_of_the_project_itself_is_meant(container):
    def add(parser):
        parser.add_argument("--lr", type=float, default=1.0)
        parser.add_argument("--my.deep_name", type=float, default=1.0)

    container.hyperparameters(lr=0.5, my__deep_name=2)
    cli = container.cli(add=add)
    assert (config_of(cli)["lr"], cli.model.given["lr"], config_of(cli)["my"]["deep_name"]) == (0.5, 0.1, 2.0)


def test_the_target_of_a_link_is_not_meant(container):
    from tiny_data import TinyData
    from tiny_model import TinyModel

    (container.code / "config.yaml").write_text("trainer: {enable_progress_bar: false}")
    container.hyperparameters(batch_size=4)
    cli = container.cli(
        add=lambda parser: parser.link_arguments("data.batch_size", "model.batch_size"),
        model_class=TinyModel,
        datamodule_class=TinyData,
    )
    assert (cli.datamodule.batch_size, cli.model.given["batch_size"]) == (4, 4)
