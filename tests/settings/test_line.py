import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.job import Channel, TrainingJob
from lightning_sm._settings.line import JobLine, config_text
from lightning_sm.errors import HyperparameterError, LightningSMError

SUBCOMMANDS = {"fit": None, "validate": None, "test": None, "predict": None}


def job(values=None, channels=(), **more):
    channels = {name: Channel(name, path) for name, path in dict(channels).items()}
    return TrainingJob(in_container=True, hyperparameters=Hyperparameters(values or {}), channels=channels, **more)


def read(words=(), values=None, subcommands=SUBCOMMANDS, **more):
    return JobLine.read(list(words), job(values, **more), subcommands)


def typed_args(line):
    """The typed words."""
    return tuple(word for part in line.typed for word in part.args)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml", "c.yml"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "hyperparameter", "expected"),
    [
        ([], None, "fit"),
        ([], "test", "test"),
        (["validate"], "test", "validate"),
        (["--trainer.max_epochs", "1", "predict"], None, "predict"),
        (["--trainer.fast_dev_run", "fit", "test"], None, "test"),
        (["--trainer.fast_dev_run=true", "test"], None, "test"),
    ],
)
def test_subcommand(words, hyperparameter, expected):
    arguments = read(words, {} if hyperparameter is None else {"subcommand": hyperparameter})
    assert arguments.subcommand == expected
    assert not [part for part in arguments.typed if expected in part.args]
    assert "subcommand" not in arguments.named


VALUES = {
    "model.size": 5,
    "model.lr": 1e-05,
    "model.flag": True,
    "model.none": None,
    "model.empty": "",
    "model.list": ["a", 1, None],
    "model.dict": {"b": {"c": 2}, "a": 1},
    "model.text": "a: b # c",
    "model.unicode": "é😀",
    "model.number": "5",
    "k": 1,
}


@pytest.mark.parametrize("spelling", [0, 1, -1])
def test_words_that_a_launcher_wrote_are_left_out(spelling):
    hyperparameters = Hyperparameters(VALUES)
    words = []
    for name in sorted(VALUES):
        words += [f"-{name}" if len(name) == 1 else f"--{name}", hyperparameters.spellings(name)[spelling]]
    arguments = read([*words, "--model.lr", "3"], VALUES)
    assert typed_args(arguments) == ("--model.lr", "3")
    assert arguments.named == VALUES


@pytest.mark.parametrize(
    "words",
    [
        ["--mp_parameters", "partitions=2,ddp=True"],
        ["--_tuning_objective_metric", "val_loss"],
        ["--sagemaker_program", "train.py"],
        ["--sagemaker_program=train.py"],
        ["--default_user_module_name", "train"],
    ],
)
def test_reserved_names_are_left_out(words):
    assert typed_args(read([*words, "--model.lr", "1"])) == ("--model.lr", "1")
    assert typed_args(read(["--model.lr", "1", words[0]])) == ("--model.lr", "1")


@pytest.mark.parametrize("name", ["fit.model.lr", "model.lr"])
def test_the_subcommand_may_stand_before_a_name(name):
    assert read([], {name: 1}).named == {"model.lr": 1}


@pytest.mark.parametrize(
    ("hyperparameter", "words", "expected"),
    [
        ("a.yaml", [], ["a.yaml"]),
        (["a.yaml", "b.yaml"], [], ["a.yaml", "b.yaml"]),
        (None, ["--config", "a.yaml", "--config=b.yaml"], ["a.yaml", "b.yaml"]),
        ("a.yaml", ["-c", "b.yaml", "-c=c.yml"], ["a.yaml", "b.yaml", "c.yml"]),
        ("a.yaml", ["--config", "a.yaml"], ["a.yaml"]),
        (["a.yaml", "b.yaml"], ["--config", "['a.yaml', 'b.yaml']"], ["a.yaml", "b.yaml"]),
        (["a.yaml", "b.yaml"], ["--config", '["a.yaml", "b.yaml"]'], ["a.yaml", "b.yaml"]),
        (None, [], []),
    ],
)
def test_configs(folder, hyperparameter, words, expected):
    values = {"config": hyperparameter, "model.lr": 1}
    arguments = read([*words, "--trainer.devices", "1"], values)
    parts = arguments.parts()
    assert [part.path for part in parts] == [*expected, None, None]
    assert [part.args for part in parts[-2:]] == [("--model.lr=1",), ("--trainer.devices", "1")]


def test_a_config_in_a_channel(folder):
    (folder / "data" / "sub").mkdir(parents=True)
    (folder / "data" / "sub" / "x.yaml").write_text("{}")
    channels = {"settings": str(folder / "data"), "one": str(folder / "data" / "sub" / "x.yaml")}
    arguments = read([], {"config": ["settings/sub/x.yaml", "one", "a.yaml"]}, channels=channels)
    assert [part.path for part in arguments.files] == [channels["one"], channels["one"], "a.yaml"]


@pytest.mark.parametrize(
    ("words", "values", "message"),
    [
        ([], {"config": "missing.yaml"}, r"'missing\.yaml' is neither .*missing\.yaml.*holds a\.yaml, b\.yaml, c\.yml"),
        ([], {"config": "settings/x.yaml"}, r"neither .* nor .*nowhere.x\.yaml.* HINT: "),
        ([], {"config": "s3://bucket/a.yaml"}, "not on this host.* HINT: Bring it in a channel"),
        ([], {"config": ""}, "The config file ''"),
        ([], {"config": "a\x00.yaml"}, "The config file"),
        ([], {"config": 5}, "The hyperparameter 'config' is 5"),
        ([], {"config": [5]}, r"The hyperparameter 'config' is \[5\]"),
        ([], {"config": {"a": 1}}, "Give one path, or a list of paths"),
        (["--config"], {}, "--config names no config file"),
        *(
            ([], {"subcommand": name}, "HINT: Use one of fit, predict, test, validate")
            for name in ("train", 5, ["fit"], {"fit": 1}, True)
        ),
    ],
)
def test_configs_and_subcommands_that_are_not_there(folder, words, values, message):
    with pytest.raises(HyperparameterError, match=message):
        read(words, values, channels={"settings": os.path.join(str(folder), "nowhere")})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model.lr=0.5"], 0.5),
        (["--model.lr", "-1"], -1),
        (["--model.lr", ""], None),
        (["--model.lr", "[1, a]"], [1, "a"]),
        (["--model.lr", '!!int ""'], '!!int ""'),
        (["--model.lr", "{a"], "{a"),
        (["--flag", "--model.init_args.lr", "1"], 1),
        (["--config", "{model: {init_args: {lr: 1}}}"], 1),
        (["--", "--model.lr"], None),
        (["word", "-x", "1"], None),
    ],
)
def test_what_words_set(words, expected):
    values = {key: value for part in read(words).typed for key, value in part.values.items()}
    assert values.get("model.lr") == expected


def test_a_section_counts_and_files_that_are_named_are_read(folder):
    (folder / "a.yaml").write_text("fit: {model: model.yaml, trainer: {logger: b.yaml}}\ntest: {model: {lr: 2}}")
    (folder / "model.yaml").write_text("class_path: m.M\ninit_args: {lr: 1}")
    (folder / "b.yaml").write_text("- class_path: CSVLogger")
    (folder / "c.yml").write_text("data: {annotations: model.yaml, other: broken.yaml}\n5: {6: 7}")
    sectioned, plain = read(["--config", "a.yaml", "--config", "c.yml"]).typed
    assert sectioned.values == {
        "model.class_path": "m.M", "model.lr": 1, "trainer.logger": [{"class_path": "CSVLogger"}],
    }  # fmt: skip
    assert plain.values == {"data.annotations": "model.yaml", "data.other": "broken.yaml", "5.6": 7}


@pytest.mark.parametrize("text", ["- 1", "text", "", "a: [", "a: !!int ''", "\x00", "fit: &a {b: *a}"])
def test_a_broken_file_sets_nothing_here(folder, text):
    (folder / "a.yaml").write_text(text)
    (part,) = read(["--config", "a.yaml"]).typed
    assert part.args == ("--config=a.yaml",)


def test_what_cannot_be_in_a_config(tmp_path):
    assert config_text({"a": tmp_path, "b": "1e-3"}) == f'a: "{tmp_path}"\nb: "1e-3"\n'
    with pytest.raises(HyperparameterError, match=r"<object object .* cannot be in a config. HINT: "):
        config_text({"a": object()})


_WORDS = st.text("-=.abc", max_size=8) | st.sampled_from(
    ["--config", "-c", "fit", "test", "--mp_parameters", "--model.lr", "a.yaml", "--model.lr=1"]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.text("abc.", max_size=6) | st.sampled_from(["config", "subcommand", "model", "model.lr", "fit.model"])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(_WORDS, max_size=6), st.dictionaries(_NAMES, _VALUES, max_size=4))
def test_only_our_own_errors_escape(folder, words, values):
    try:
        arguments = read(words, values)
    except LightningSMError:
        return
    assert arguments.subcommand in SUBCOMMANDS
    assert all(isinstance(word, str) for part in arguments.parts() for word in part.args)
