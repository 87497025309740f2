import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._config.arguments import nest
from lightning_sm._config.settings import as_config
from lightning_sm.errors import HyperparameterError


@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ({"a.b.c": 1, "a.b.d": 2, "e": None}, {"a": {"b": {"c": 1, "d": 2}}, "e": None}),
        ({"a.b": 2, "a": {"b": 1, "c": 3}}, {"a": {"b": 2, "c": 3}}),
        ({"model.lr": 1, "model": "m.M"}, {"model": {"class_path": "m.M", "init_args": {"lr": 1}}}),
        ({"model.lr": 1, "model.class_path": "m.M"}, {"model": {"class_path": "m.M", "init_args": {"lr": 1}}}),
        (
            {"model.init_args.lr": 1, "model.class_path": "m.M", "model.size": 2},
            {"model": {"class_path": "m.M", "init_args": {"lr": 1, "size": 2}}},
        ),
        ({"model.lr": 1, "model.init_args.size": 2}, {"model": {"init_args": {"lr": 1, "size": 2}}}),
        ({"model.lr": 1, "model": {"init_args": {"size": 2}}}, {"model": {"init_args": {"lr": 1, "size": 2}}}),
        (
            {"model.net.init_args.d": 1, "model.net.e": 2, "model.size": 3},
            {"model": {"net": {"init_args": {"d": 1, "e": 2}}, "size": 3}},
        ),
        (
            {"model.net.depth": 3, "model.net": "m.Net", "model": "m.M"},
            {
                "model": {
                    "class_path": "m.M",
                    "init_args": {"net": {"class_path": "m.Net", "init_args": {"depth": 3}}},
                }
            },
        ),
        ({"model.mapping": {"class_path": 1, "b": 2}}, {"model": {"mapping": {"class_path": 1, "b": 2}}}),
        ({}, {}),
    ],
)
def test_nest(flat, nested):
    before = repr(flat)
    assert nest(flat) == nested
    assert repr(flat) == before


@pytest.mark.parametrize("value", [1, None, [1], True])
def test_a_value_and_parts_of_it(value):
    with pytest.raises(HyperparameterError, match=r"'a\.b' is set, and 'a' as a whole is set to"):
        nest({"a": value, "a.b": 1})


def test_nesting_without_end():
    deep = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(HyperparameterError, match="levels deep"):
        nest({"a": deep})
    with pytest.raises(HyperparameterError, match="levels deep"):
        nest({".".join("a" * 2000): 1})


def test_values_are_copied():
    inner = {"b": [1]}
    nested = nest({"a": inner, "a.c": 2})
    nested["a"]["b"].append(2)
    assert inner == {"b": [1]}


@pytest.mark.parametrize(
    ("tree", "config"),
    [
        ({"class_path": "m.M", "lr": 1}, {"class_path": "m.M", "init_args": {"lr": 1}}),
        ({"class_path": "m.M", "dict_kwargs": {}}, {"class_path": "m.M", "dict_kwargs": {}, "init_args": {}}),
        ({"trainer": {"a": 1, "l": [1]}}, {"trainer": {"a": 1, "l": [1]}}),
        ({"mapping": {"class_path": 5, "b": 1}}, {"mapping": {"class_path": 5, "b": 1}}),
    ],
)
def test_as_config(tree, config):
    assert as_config(tree) == config


@given(st.dictionaries(st.text("ab.", max_size=6), st.integers() | st.text("xy", max_size=3)))
def test_what_is_nested_is_there_and_nothing_else(flat):
    try:
        nested = nest(flat)
    except HyperparameterError:
        return
    # A text that other keys go on from is the class whose arguments they are.
    classes = {
        key for key, value in flat.items() if isinstance(value, str) and any(k.startswith(f"{key}.") for k in flat)
    }
    expected = {f"{key}.class_path" if key in classes else key: value for key, value in flat.items()}
    assert dict(_leaves(nested)) == expected


def _leaves(node, *path):
    for name, value in node.items():
        inside = path if name == "init_args" else (*path, name)
        if isinstance(value, dict):
            yield from _leaves(value, *inside)
        else:
            yield ".".join(inside), value
