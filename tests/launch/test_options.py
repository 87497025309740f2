"""What is typed, what stands in launch.yaml, and what the job runs."""

import pytest

from lightning_sm.errors import LightningSMError
from lightning_sm.launch._arguments import command_parser, hyperparameters_of
from lightning_sm.launch._command import _read


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*words, command="launch"):
    return _read(command_parser(command), words)


LAUNCH = """
image: pytorch-2.8-gpu
max_run: 2h
spot: true
environment: {OMP_NUM_THREADS: 4, A: true}
channels: {training: s3://b/t, val: s3://b/v}
hyperparameters: {model.lr: 0.1, version: "010"}
metrics: [loss]
tuning:
  objective: val_acc
  ranges: {model.lr: {min: 1e-5, max: 1e-1, scale: log}, model.optimizer: ["2", adam]}
"""


def test_a_file_stands_below_what_is_typed(folder):
    (folder / "launch.yaml").write_text(LAUNCH)
    settings, tuning, options = read(
        *("--max-run", "3h", "--channel", "val={uri: s3://b/v}", "--channel", "more=s3://b/a=1", "--no-spot"),
        *("--env", "A=010", "--metric", "val/loss", "--metric", "acc", "--set", "ResourceConfig.VolumeSizeInGB=100"),
        *("fit", "--config", "config.yaml", "--trainer.max_epochs", "5"),
    )
    assert (settings.image, settings.max_run, settings.spot) == ("pytorch-2.8-gpu", "3h", False)
    assert settings.channels == {"training": "s3://b/t", "val": {"uri": "s3://b/v"}, "more": "s3://b/a=1"}
    assert (settings.environment, settings.metrics) == ({"OMP_NUM_THREADS": 4, "A": "010"}, ["val/loss", "acc"])
    assert settings.set == {"ResourceConfig.VolumeSizeInGB": 100}
    typed = {"config": "config.yaml", "trainer.max_epochs": 5}
    assert settings.hyperparameters == {"model.lr": 0.1, "version": "010", **typed}
    assert (tuning, options["dry_run"]) == (None, False)
    (folder / "other.yaml").write_text("image: x")
    assert read("--file", "other.yaml")[0].image == "x"
    words = ("--max-jobs", "3", "--range", "n={min: 1, max: 3, type: integer}", "--draw", "7", "fit", "--a", "1e-3")
    settings, tuning, options = read(*words, command="tune")
    assert (tuning.objective, tuning.max_jobs, options["draw"]) == ("val_acc", 3, 7)
    assert settings.hyperparameters == {"model.lr": 0.1, "version": "010", "a": "1e-3"}
    assert tuning.ranges == {
        "model.lr": {"min": 1e-5, "max": 0.1, "scale": "log"},
        "model.optimizer": ["2", "adam"],
        "n": {"min": 1, "max": 3, "type": "integer"},
    }


def test_sections_of_the_file_without_entries(folder):
    (folder / "launch.yaml").write_text("hyperparameters:\n  # config: a.yaml\nmetrics:\ntuning:\n  ranges:\n")
    settings, tuning, _ = read("--range", "n=[1]", "fit", command="tune")
    assert (settings.hyperparameters, settings.metrics, tuning.ranges) == ({}, [], {"n": [1]})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["fit"], {}),
        (["test", "--ckpt_path=best"], {"subcommand": "test", "ckpt_path": "best"}),
        (["fit", "-c", "a.yaml", "--config=b.yaml"], {"config": ["a.yaml", "b.yaml"]}),
        (["--lr", "1e-3", "--flag=true", "--none", "null"], {"lr": 0.001, "flag": True, "none": None}),
        (["--sizes", "[1, 2]", "--text", "a: b: c"], {"sizes": [1, 2], "text": "a: b: c"}),
        (["--lr", "-1", "--text=", "--+trainer.x", "20"], {"lr": -1, "text": "", "+trainer.x": 20}),
        # YAML would change these.
        *(([f"--tag={text}"], {"tag": text}) for text in ("010", "12:30", "1_000", "no", "1.10", "0x10", "~", "1.")),
        *(([f"--tag={text}"], {"tag": text}) for text in ("2024-01-01", "a: b", "#c", "[a", "{epoch}", "{epoch:02d}")),
        (["--days", "[2024-01-01, 1e-3]"], {"days": ["2024-01-01", 0.001]}),
        # The short names of commits.
        *(([*fit, "--tag", text], {"tag": text}) for text in ("7142e85", "71e4285") for fit in ([], ["fit"])),
        # LightningCLI reads what was typed.
        *((["fit", "--tag", text], {"tag": text}) for text in ("1e-3", "[0-9]", "[010]", "{a: 1}", "[1,2]", '"a"')),
        (["fit", "--lr", "0.1", "--sizes", "[1, 2]", "--no", "null"], {"lr": 0.1, "sizes": [1, 2], "no": None}),
        (["fit", "--mp_parameters", "{partitions: 2}"], {"mp_parameters": {"partitions": 2}}),
    ],
)
def test_the_command_as_hyperparameters(words, expected):
    assert hyperparameters_of(words) == expected
    assert read("--image", "x", "--", *words)[0].hyperparameters == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "train.py"], r"'train\.py' is no setting"),
        (["fit", "--lr"], "--lr has no value"),
        (["fit", "--a", "--b", "1"], "--a has no value"),
        (["fit", "--trainer.callbacks+=x"], "adds to a list"),
        (
            ["fit", "--trainer.max_epochs=5", "--config", "c.yaml"],
            r"--config c\.yaml stands behind --trainer\.max_epochs",
        ),
        (["fit", "--config", "c.yaml", "--wait", "--spot"], "--wait behind 'fit' would be an argument of the program"),
        (["fit", "--config", "c.yaml", "--image", "x"], "--image behind 'fit'.*HINT: Write it before 'fit'"),
        (["main.py", "--lr", "1", "--name=x"], r"--name behind 'main\.py'"),
        (["tran", "--lr", "1"], r"'tran' is no setting.*HINT: .*behind a script or fit"),
        (["--instance-count", "2", "fit"], "--instance-count.*HINT: Did you mean --instances?"),
        (["--imgae", "x"], "--imgae.*HINT: Did you mean --image?"),
        (["--inputs", "x"], "--inputs.*HINT: Did you mean --channel?"),
        (["--channel", "training"], "'training' is no NAME=VALUE"),
        (["--objective", "a"], "nrecognized arguments: --objective"),
        (["--file", "none.yaml"], r"none\.yaml"),
    ],
)
def test_words_that_mean_nothing(words, message):
    with pytest.raises(LightningSMError, match=message):
        read("--spot", *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "parsing"),
        ("imgae: x", "Did you mean --image?"),
        ("tuning: {rangse: 1}", "rangse"),
        ("channels: a", "dict"),
        ("image: \udcff", "not UTF-8"),
    ],
)
def test_files_that_cannot_be_used(folder, text, message):
    (folder / "launch.yaml").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(LightningSMError, match=message):
        read(command="tune")


def test_a_script_and_its_own_option_of_the_same_name():
    settings = read("--spot", "src/main.py", "--lr", "1")[0]
    assert (settings.entry_point, settings.spot, settings.hyperparameters) == ("src/main.py", True, {"lr": 1})
    for words in (["--", "--name", "x"], ["main.py", "--", "--name", "x"]):
        assert read(*words)[0].hyperparameters == {"name": "x"}
    settings = read("--name", "fit", "main.py", "fit", "--config", "c.yaml")[0]
    assert (settings.name, settings.entry_point) == ("fit", "main.py")
    assert settings.hyperparameters == {"config": "c.yaml"}
