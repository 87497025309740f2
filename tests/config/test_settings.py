import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._config.settings import Layer, Provenance
from lightning_sm.errors import HyperparameterError, LightningSMError
from tests.config.given import settings_of


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="a.yaml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write_file


def test_later_sources_win_and_are_remembered(write):
    first = write("trainer: {max_epochs: 1, devices: 1, num_nodes: 1, precision: 16, min_epochs: 1}\nseed: 0")
    second = write("trainer: {max_epochs: 2, devices: 2, num_nodes: 2}", "b.yaml")
    settings = settings_of(
        [first, second],
        {"trainer": {"devices": 3, "num_nodes": 3}},
        ["--trainer.num_nodes", "4"],
        defaults={"trainer.min_epochs": 0, "trainer.logger": False},
    )
    expected = {
        "trainer.logger": (False, "the project's default"),
        "trainer.min_epochs": (1, "a.yaml"),
        "trainer.precision": (16, "a.yaml"),
        "trainer.max_epochs": (2, "b.yaml"),
        "trainer.devices": (3, "a hyperparameter"),
        "trainer.num_nodes": (4, "the command line"),
        "seed": (0, "a.yaml"),
    }
    assert {key: (settings.get(key), str(settings.provenance_of(key))) for key in expected} == expected
    assert {key for key in expected if settings.is_explicit(key)} == {"trainer.devices", "trainer.num_nodes"}
    assert settings.get("trainer.callbacks") is None
    assert settings.provenance_of("trainer.callbacks") is None


def test_a_subcommands_section_counts_and_other_sections_do_not(write):
    path = write("fit: {model: {lr: 1}}\ntest: {model: {lr: 2}}\n")
    assert settings_of([path], subcommand="fit").get("model.lr") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model.lr=0.5"], 0.5),
        (["--model.lr", "0.5"], 0.5),
        (["--model.lr", "-1"], -1),
        (["--model.lr", ""], None),
        (["--model.lr", "[1, a]"], [1, "a"]),
        (["--model.lr", '!!int ""'], '!!int ""'),
        (["--model.lr", "!!bool x"], "!!bool x"),
        (["--model.lr", "{a"], "{a"),
        (["--flag", "--model.lr", "1"], 1),
        (["--", "--model.lr"], None),
        (["--model.lr"], None),
        (["word", "-x", "1"], None),
    ],
)
def test_words(words, expected):
    assert settings_of(typed=words).get("model.lr") == expected


def test_init_args_are_the_classs_own_keys(write):
    path = write("model: {class_path: m.M, init_args: {lr: 1, size: 1}}")
    settings = settings_of([path], {"model": {"lr": 2}}, ["--model.init_args.size=2"])
    assert settings.get("model") == {"class_path": "m.M", "lr": 2, "size": 2}
    assert settings.provenance_of("model.size") == Provenance(Layer.COMMAND_LINE)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"data": "m.D"}, {"data": {"batch": 1}}, {"class_path": "m.D", "batch": 1}),
        ({"data": {"class_path": "m.D", "batch": 1}}, {"data": "m.D"}, {"class_path": "m.D", "batch": 1}),
        ({"data": {"class_path": "m.D", "batch": 1}}, {"data": "D"}, {"class_path": "D", "batch": 1}),
        ({"data": {"class_path": "m.D", "batch": 1}}, {"data": "m.E"}, "m.E"),
        (
            {"data": {"class_path": "m.D", "init_args": {"batch": 1}}},
            {"data": {"init_args": {"other": 2}, "class_path": "m.E"}},
            {"class_path": "m.E", "other": 2},
        ),
        ({"data": {"class_path": "m.D"}}, {"data": {}}, {"class_path": "m.D"}),
        ({"data": {}}, {"data": {"class_path": "m.D"}}, {"class_path": "m.D"}),
        ({"data": {"class_path": "m.D"}}, {"data": None}, None),
    ],
)
def test_a_class_keeps_its_arguments_until_another_takes_its_place(write, first, second, expected):
    import yaml

    settings = settings_of([write(yaml.safe_dump(first)), write(yaml.safe_dump(second), "b.yaml")])
    assert settings.get("data") == expected


def test_a_class_set_by_its_name_leaves_its_arguments_open():
    settings = settings_of(typed=["--data", "m.D"])
    assert settings.is_explicit("data")
    assert not settings.is_explicit("data.data_dir")
    assert settings_of(hyperparameters={"data": None}).is_explicit("data.data_dir")


def test_a_group_that_sets_nothing_decides_nothing():
    settings = settings_of(hyperparameters={"trainer": {}}, given={"trainer": {}})
    assert not settings.is_explicit("trainer.default_root_dir")


def test_included_files(write, tmp_path):
    write("class_path: m.M\ninit_args: {lr: 1}", "model.yaml")
    write("- class_path: CSVLogger", "loggers.yaml")
    path = write("model: model.yaml\ntrainer: {logger: loggers.yaml}")
    settings = settings_of([path])
    assert settings.get("model.lr") == 1
    assert settings.get("trainer.logger") == [{"class_path": "CSVLogger"}]


def test_a_parameter_that_names_a_yaml_or_json_file_is_no_include(write):
    write("[1, 2]", "annotations.json")
    write("{broken", "broken.yaml")
    path = write("data: {annotations: annotations.json, other: broken.yaml}")
    assert settings_of([path]).get("data") == {"annotations": "annotations.json", "other": "broken.yaml"}


@pytest.mark.parametrize(
    "text", ["- 1", "text", "", "a: [", "a: !!int ''", "\x00", "a: &a {b: *a}", "fit: &a {b: *a}", "? [1]\n: 2"]
)
def test_broken_config_files(write, text):
    with pytest.raises(HyperparameterError, match=r"nested more than|cannot be read|holds no settings"):
        settings_of([write(text)], subcommand="fit")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"])
def test_missing_and_undecodable_config_files(tmp_path, content):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HyperparameterError, match="cannot be read"):
        settings_of([str(path)])


def test_keys_that_are_no_strings(write):
    settings = settings_of([write("fit: {1: 2, model: {3: 4}}\n5: 6")], subcommand="fit")
    assert {key: str(source) for key, source in settings.provenance.items()} == dict.fromkeys(
        ["1", "model.3", "5"], "a.yaml"
    )


_NAMES = st.text("abc._+-", max_size=8) | st.sampled_from(["class_path", "init_args", "model", "trainer.logger"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_NAMES, _JSON, max_size=4), st.lists(_NAMES.map("--".__add__) | st.text(max_size=8), max_size=6))
def test_only_our_own_errors_escape(values, words):
    try:
        settings = settings_of((), values, words, "fit", defaults=values, given=values)
    except LightningSMError:
        return
    for key in settings.provenance:
        settings.get(key)
        settings.is_explicit(key)
