import importlib.util
import json
import subprocess
import sys

import pytest

from lightning_sm import Hyperparameters
from lightning_sm.errors import HyperparameterError

_VALUES = {
    "trainer.max_epochs": 5,
    "lr": 1e-05,
    "momentum": 0.9,
    "nesterov": True,
    "shuffle": False,
    "clip": None,
    "empty": "",
    "name": "resnet",
    "number_as_text": "5",
    "text_like_true": "true",
    "text_like_null": "null",
    "hash": "a#b",
    "words": "two words, and a 'quote'",
    "milestones": [1, 2, 3],
    "layers": ["a", "b"],
    "nested": {"b": {"c": 2}, "a": [1, None]},
    "no_items": [],
    "no_keys": {},
    "ünicode": "é ✓",
}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        # A scalar of a plain API call may be meant as text; the parameter's own type decides later.
        ("5", "5"),
        ("1.50", "1.50"),
        ("true", "true"),
        ("null", "null"),
        ("resnet", "resnet"),
        ("", ""),
        ("NaN", "NaN"),
        ('"quoted"', "quoted"),
        ("[1, 2]", [1, 2]),
        ('{"a": null}', {"a": None}),
        ("{broken", "{broken"),
    ],
)
def test_raw_strings_of_an_api_call(raw, value):
    read = Hyperparameters.from_file({"x": raw, "sagemaker_program": "train.py"}, "file").values["x"]
    assert (read, type(read)) == (value, type(value))


_V2 = {"sagemaker_program": '"train.py"', "_tuning_objective_metric": "val_acc"}


@pytest.mark.parametrize(
    ("added", "users"),
    [
        (_V2, None),
        ({**_V2, "sagemaker_program": "train.py"}, {"x": "5"}),
        ({"_tuning_objective_metric": "a b"}, {"x": "5"}),
        (_V2, {"optimizer": "adam", "x": "5"}),
    ],
)
def test_the_objective_that_the_service_adds_hides_no_types(added, users):
    encoded = users or {key: json.dumps(value) for key, value in _VALUES.items()}
    assert Hyperparameters.from_file({**encoded, **added}, "file").values == (users or _VALUES)


def test_reserved_names_are_kept_apart():
    reserved = dict.fromkeys(["sagemaker_program", "sagemaker_", "_tuning_objective_metric", "mp_parameters"], "x")
    users = dict.fromkeys(["lr", "sage_maker", "my_mp_parameters", "SAGEMAKER_PROGRAM", "trainer.sagemaker_x"], "x")
    read = Hyperparameters.from_file(dict.fromkeys([*reserved, *users], '"x"'), "file")
    assert (read.values, read.reserved) == (users, reserved)


@pytest.mark.parametrize(
    ("value", "toolkit", "driver"),
    [
        (5, "5", "5"),
        (1e-05, "1e-05", "1e-05"),
        (True, "True", "true"),
        (None, "", "null"),
        ("", "", ""),
        ("resnet", "resnet", "resnet"),
        ("1.50", "1.5", "1.50"),
        (["a", "b"], "['a', 'b']", '["a", "b"]'),
        ({"b": {"c": 2}, "a": 1}, "a=1,b={'c': 2}", '{"b": {"c": 2}, "a": 1}'),
    ],
)
def test_spellings_hold_the_toolkits_and_the_drivers(value, toolkit, driver):
    assert {toolkit, driver} <= set(Hyperparameters({"x": value}).spellings("x"))


_TOOLKIT = """
import json, sys
from sagemaker_training import mapping
print(json.dumps({k: mapping.to_cmd_args({k: v})[1] for k, v in json.load(sys.stdin).items()}))
"""


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("sagemaker_training") is None, reason="needs sagemaker-training, the extra `rehearse`"
)
def test_spellings_hold_what_the_real_toolkit_writes(tmp_path):
    # In a process of its own: the import makes folders in HOME outside a container.
    environ = {"HOME": str(tmp_path), "SAGEMAKER_BASE_DIR": str(tmp_path / "opt-ml"), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", _TOOLKIT], input=json.dumps(_VALUES), capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr
    hyperparameters = Hyperparameters(_VALUES)
    written = json.loads(done.stdout.splitlines()[-1])
    assert written.keys() == _VALUES.keys()
    assert [name for name in written if written[name] not in hyperparameters.spellings(name)] == []


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [
        (0.1, 1.0, 0.1), ("0.1", 1.0, 0.1), (1, 1.0, 1.0), ("1", 2, 1), (1.0, 2, 1), (True, False, True),
        ("True", False, True), ("false", True, False), ("x", "y", "x"), (5, "y", "5"), ("5", "y", "5"),
        ("[1, 2]", [], [1, 2]), ([1], (), (1,)), ({"a": 1}, {}, {"a": 1}), (None, 1, None), ("5", None, "5"),
    ],
)  # fmt: skip
def test_a_value_has_the_type_of_its_default(value, default, expected):
    found = Hyperparameters({"x": value}).get("x", default)
    assert (found, type(found)) == (expected, type(expected))
    assert Hyperparameters().get("x", default) == default


@pytest.mark.parametrize(
    ("value", "default"),
    [("fast", 1.0), ("1.5", 1), (1.5, 1), (True, 1), (1, True), ("yes", True), ("{", {}), ("1", [])],
)
def test_a_value_of_another_type_is_an_error(value, default):
    with pytest.raises(HyperparameterError, match=r"The hyperparameter 'x' is .* HINT: Correct the hyperparameter"):
        Hyperparameters({"x": value}).get("x", default)


def test_a_value_by_its_name():
    hyperparameters = Hyperparameters({"lr": 0.1}, {"sagemaker_program": "train.py"})
    assert hyperparameters["lr"] == 0.1
    assert "lr" in hyperparameters
    assert "sagemaker_program" not in hyperparameters
    with pytest.raises(HyperparameterError, match=r"The job has no hyperparameter 'rate'. It has: lr. HINT: "):
        hyperparameters["rate"]


@pytest.mark.parametrize("key", ["it's", 'a"b', "#", "a\nb", "é", ""])
def test_a_key_that_hydra_cannot_read_is_named(key):
    with pytest.raises(HyperparameterError, match=r"A hyperparameter holds the key .* HINT: "):
        Hyperparameters({"x": [{key: 1}]}).as_hydra()


def test_hydra_reads_text_of_plain_api_calls_as_on_its_command_line():
    """They do not tell text from numbers. With types: ``tests/examples/test_hydra.py``."""
    untyped = Hyperparameters.from_file({"tag": "5", "name": "two words"}, "hyperparameters.json")
    assert untyped.as_hydra() == ["tag=5", "name='two words'"]
