"""What a field receives in a job is what the same words give it on a laptop, whoever sends them."""

import json
from typing import Any, Dict, List, Optional, Union

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonargparse import ActionConfigFile, ArgumentParser  # type: ignore[attr-defined]

from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings.line import JobLine
from lightning_sm._settings.run import RunParser
from lightning_sm.errors import HyperparameterError
from tests.settings.given import context_of

REFUSED = "refused"


class Model:
    def __init__(
        self,
        text: str = "a",
        maybe: Optional[str] = "a",
        size: int = 1,
        lr: float = 1.0,
        flag: bool = False,
        maybe_size: Optional[int] = 1,
        either: Union[int, str] = 1,
        numbers: Optional[List[int]] = None,
        texts: Optional[List[str]] = None,
        mapping: Optional[Dict[str, int]] = None,
        anything: Any = 1,
    ):
        pass


FIELDS = [
    "text", "maybe", "size", "lr", "flag", "maybe_size", "either", "numbers", "texts", "mapping", "anything",
]  # fmt: skip
# YAML's forms of null, booleans, numbers, dates, lists, mappings, comments, quotes, tags, aliases and blocks.
FORMS = [
    *("null", "~", "Null", "true", "True", "no", "off", "y", "010", "0o17", "0x10", "0b1", "1_000", "12:30", "1.10"),
    *("1.", ".5", "+5", "-1", "1e-3", "1e5", ".inf", "-.inf", ".nan", "NaN", "Infinity", "2024-01-01", "[a]", "[1,2]"),
    *(
        "[]",
        "[1",
        "{a:1}",
        "{}",
        "{a",
        "-",
        "?",
        ":",
        "|",
        ">",
        "#",
        "#c",
        "&",
        "&x",
        "*x",
        "!",
        "!x",
        "%",
        "@x",
        "`x`",
    ),
    *('"q"', "'q'", "<<", "=", "é", "😀", "", " ", "a b", "a: b", "{a: 1}", "[1, 2]", "- a", "? a", "a:", "# c"),
    *("`x`", "a # c", "null ", "a\nb", "2024-01-01 12:30:00"),
]
TEXTS = st.sampled_from(FORMS) | st.text(max_size=6) | st.text("0123456789.:-+_exn[]{}~#'\", a", max_size=6)


def parser_of(is_named):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action=ActionConfigFile)
    (parser.add_subclass_arguments if is_named else parser.add_class_arguments)(Model, "model")
    return parser


def received(config, name):
    value = config["model"]
    value = value.get("init_args", value)[name]
    return repr(value.as_dict() if hasattr(value, "as_dict") else value)


def on_a_laptop(name, text, is_named=False):
    words = [f"--model={__name__}.Model"] if is_named else []
    try:
        return received(parser_of(is_named).parse_args([*words, f"--model.{name}={text}"]), name)
    except Exception:  # of argparse, jsonargparse or PyYAML
        return REFUSED


def in_a_job(name, is_named, hyperparameters=None, words=()):
    content = {"sagemaker_program": "train.py", **(hyperparameters or {})}
    if is_named:
        words = [f"--model={__name__}.Model", *words] if words else words
        content["model"] = json.dumps(f"{__name__}.Model")
    job = TrainingJob(in_container=True, hyperparameters=Hyperparameters.from_file(content, "hyperparameters.json"))
    line = JobLine.read(words, job, ())
    classes = {"data": (None, False), "model": (Model, is_named)}
    parser = parser_of(is_named)
    try:
        return received(RunParser(context_of(), parser, parser, line, classes).parse(), name)
    except HyperparameterError:
        return REFUSED


@pytest.mark.parametrize("is_named", [False, True])
@given(st.sampled_from(FIELDS), TEXTS)
@settings(max_examples=25, deadline=None)
def test_text_that_sdk_v3_and_plain_calls_send_is_the_word(is_named, name, text):
    if not text.startswith('"'):  # which is the string of JSON that SDK v2 sends
        assert in_a_job(name, is_named, {f"model.{name}": text}) == on_a_laptop(name, text)


@pytest.mark.parametrize("is_named", [False, True])
@given(st.sampled_from(FIELDS), TEXTS)
@settings(max_examples=25, deadline=None)
@example("maybe", "null")
@example("maybe", "# c")
def test_a_string_of_sdk_v2_is_the_word_and_stays_text_where_the_field_takes_text(is_named, name, text):
    expected = repr(text) if name in ("text", "maybe") else on_a_laptop(name, text)
    assert in_a_job(name, is_named, {f"model.{name}": json.dumps(text)}) == expected


@pytest.mark.parametrize("is_named", [False, True])
@given(st.sampled_from(FIELDS), TEXTS)
@settings(max_examples=25, deadline=None)
def test_a_typed_word_is_the_word(is_named, name, text):
    assert in_a_job(name, is_named, words=[f"--model.{name}={text}"]) == on_a_laptop(name, text, is_named)
