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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--config", "c.yaml", "--wait", "--spot"], "--wait behind 'fit' would be an argument of the program"),
        (["fit", "--config", "c.yaml", "--image", "x"], "--image behind 'fit'.*HINT: Write it before 'fit'"),
        (["main.py", "--lr", "1", "--name=x"], r"--name behind 'main\.py'"),
        (["tran", "--lr", "1"], r"'tran' is no option"),
        (["fit", "--a", "--b", "1"], "--a has no value"),
    ],
)
def test_options_of_launch_behind_the_command(words, message):
    with pytest.raises(LaunchError, match=message):
        read_words(["--name", "fit", *words])


def test_a_script_and_its_own_option_of_the_same_name():
    read = read_words(["--spot", "src/main.py", "fit", "--lr", "1"][:2] + ["--lr", "1"])
    assert (read.settings.entry_point, read.settings.spot, read.hyperparameters) == ("src/main.py", True, {"lr": 1})
    for words in (["--", "--name", "x"], ["main.py", "--", "--name", "x"]):
        assert read_words(words).hyperparameters == {"name": "x"}
    read = read_words(["--name", "fit", "main.py", "fit", "--config", "c.yaml"])
    assert (read.settings.name, read.settings.entry_point, read.hyperparameters) == (
        "fit",
        "main.py",
        {"config": "c.yaml"},
    )


@pytest.mark.parametrize("text", ["010", "12:30", "1_000", "no", "1.10", "0x10", "~", "2024-01-01", "a: b", "#c", "1."])
def test_words_that_yaml_would_change_go_as_they_were_typed(text):
    assert hyperparameters_of([f"--tag={text}"]) == {"tag": text}


@pytest.mark.parametrize(
    ("option", "advice"), [("--instance-count", "--instances"), ("--imgae", "--image"), ("--inputs", "--channel")]
)
def test_the_closest_option(option, advice, capsys):
    with pytest.raises(SystemExit) as ended:
        read_words([option, "2", "fit"])
    assert ended.value.code == 2
    assert f"there is no option {option}. HINT: Did you mean {advice}?" in capsys.readouterr().err


def test_every_setting_stands_in_a_group_and_the_first_three_are_enough(capsys):
    from dataclasses import fields

    from lightning_sm.launch import LaunchSettings, TuningSettings
    from lightning_sm.launch._settings import flag_of

    with pytest.raises(SystemExit):
        read_words(["--help"], command="tune")
    shown = capsys.readouterr().out
    for each in (*fields(LaunchSettings), *fields(TuningSettings)):
        assert shown.count(f"  {flag_of(each.name)} ") + shown.count(f"  {flag_of(each.name)}\n") == 1, each.name
    first = shown[shown.index("what a first job needs") : shown.index("the program:")]
    assert [line.split()[0] for line in first.splitlines()[1:] if line.startswith("  --")] == [
        "--image",
        "--instance-type",
        "--role",
    ]
