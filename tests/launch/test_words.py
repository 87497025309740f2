"""What is typed, and what stands in launch.yaml."""

import pytest

from lightning_sm.launch import LaunchError
from lightning_sm.launch._words import hyperparameters_of, read_words


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_options_and_the_command():
    read = read_words(
        [
            *("--image", "pytorch-2.8-gpu", "--instance-type", "ml.g5.12xlarge", "--instances", "2", "--spot"),
            *("--distribution", "torch_distributed", "--channel", "training=s3://b/a=1", "--channel", "val=s3://b/v"),
            *("--env", "A=1", "--tag", "team=x", "--metric", "loss", "--metric", "val/loss"),
            *("fit", "--config", "config.yaml", "--trainer.max_epochs", "5"),
        ]
    )
    settings = read.settings
    assert (settings.image, settings.instance_type, settings.instances) == ("pytorch-2.8-gpu", ["ml.g5.12xlarge"], 2)
    assert settings.channels == {"training": "s3://b/a=1", "val": "s3://b/v"}
    assert (settings.environment, settings.tags, settings.spot) == ({"A": "1"}, {"team": "x"}, True)
    assert settings.metrics == ["loss", "val/loss"]
    assert read.hyperparameters == {"config": "config.yaml", "trainer.max_epochs": 5}
    assert not read.dry_run


def test_a_file_stands_below_what_is_typed(folder):
    (folder / "launch.yaml").write_text(
        "image: pytorch-2.8-gpu\ninstance-type: ml.g5.xlarge\nmax_run: 2h\nspot: true\n"
        "channels: {training: s3://b/t, val: s3://b/v}\nhyperparameters: {model.lr: 0.1}\n"
    )
    settings = read_words(["--max-run", "3h", "--channel", "val=s3://b/other", "--no-spot"]).settings
    assert (settings.image, settings.instance_type, settings.max_run, settings.spot) == (
        "pytorch-2.8-gpu",
        ["ml.g5.xlarge"],
        "3h",
        False,
    )
    assert settings.channels == {"training": "s3://b/t", "val": "s3://b/other"}
    assert settings.hyperparameters == {"model.lr": 0.1}
    (folder / "other.yaml").write_text("image: x")
    assert read_words(["--file", "other.yaml"]).settings.image == "x"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["fit"], {}),
        (["test", "--ckpt_path=best"], {"subcommand": "test", "ckpt_path": "best"}),
        (["fit", "-c", "a.yaml", "--config=b.yaml"], {"config": ["a.yaml", "b.yaml"]}),
        (["--lr", "0.1", "--flag=true", "--none", "null"], {"lr": 0.1, "flag": True, "none": None}),
        (["--lr", "1e-3"], {"lr": 0.001}),
        (["--sizes", "[1, 2]", "--text", "a: b: c"], {"sizes": [1, 2], "text": "a: b: c"}),
        (["--lr", "-1"], {"lr": -1}),
        (["--text="], {"text": ""}),
    ],
)
def test_the_command_as_hyperparameters(words, expected):
    assert hyperparameters_of(words) == expected
    assert read_words(["--image", "x", "--", *words]).hyperparameters == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "train.py"], r"'train\.py' is no setting"),
        (["fit", "--lr"], "--lr has no value"),
        (["fit", "--trainer.callbacks+=x"], "adds to a list"),
        (["--"], None),
    ],
)
def test_words_that_no_hyperparameter_can_carry(words, message):
    if message is None:
        assert read_words(words).hyperparameters == {}
        return
    with pytest.raises(LaunchError, match=message):
        read_words(words)


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a", "holds no settings"), ("a: [", "cannot be read"), ("imgae: x", "Did you mean 'image'")],
)
def test_files_that_cannot_be_used(folder, text, message):
    (folder / "launch.yaml").write_text(text)
    with pytest.raises(LaunchError, match=message):
        read_words([])
    with pytest.raises(LaunchError, match=r"none\.yaml cannot be read"):
        read_words(["--file", "none.yaml"])


def test_unknown_options_and_pairs_without_a_value(capsys):
    with pytest.raises(SystemExit) as ended:
        read_words(["--imgae", "x"])
    assert ended.value.code == 2
    with pytest.raises(LaunchError, match=r"--channel is 'training'"):
        read_words(["--channel", "training"])


def test_every_setting_has_an_option_with_help(capsys):
    with pytest.raises(SystemExit):
        read_words(["--help"])
    shown = capsys.readouterr().out
    assert "--max-pending TEXT" in shown
    assert "None" not in shown
