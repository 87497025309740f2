"""Metric definitions from names and from models, compared with what these models log."""

import re
from pathlib import Path

import pytest

from lightning_sm import metric_definitions
from lightning_sm._lightning import NAMESPACES
from lightning_sm._metrics.lines import metric_lines
from lightning_sm._metrics.source_names import STEP_HOOKS, logged_names
from lightning_sm.errors import MetricDefinitionError
from tests.helpers.tiny import loader
from tests.lightning.test_metric_hook import make_trainer, observing
from tests.metrics.models import EXACT, UNREADABLE, model_class
from tests.projects.container import log_lines

NAMESPACE_LIST = [namespace for namespace in NAMESPACES if namespace.is_installed]


@pytest.fixture(params=NAMESPACE_LIST, ids=lambda namespace: namespace.name)
def pl(request):
    return request.param.module()


def logged(pl, model):
    """What a model really logs."""
    observed = []
    trainer = make_trainer(pl, [observing(pl, observed)], False, max_epochs=1, log_every_n_steps=1)
    trainer.fit(model, loader(), loader())
    trainer.test(model, loader(), verbose=False)
    return {name for metrics, _ in observed for name in metrics if name != "epoch"}


@pytest.mark.parametrize("name", EXACT)
def test_the_source_says_what_is_logged(pl, name):
    model = model_class(pl, name)()
    found = logged_names(model)
    assert found.unknown == ()
    assert set(found.names) == logged(pl, model)
    assert logged_names(type(model)) == found


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_reported_and_never_guessed(pl, name):
    model = model_class(pl, name)()
    found = logged_names(model)
    assert found.unknown
    assert set(found.names) <= logged(pl, model)
    place, line, code = found.unknown[0].split(":", 2)
    assert place == __file__.replace("test_definitions", "models")
    assert "self.log" in Path(place).read_text().splitlines()[int(line) - 1]
    assert "self.log" in code or "call of log" in code


def test_a_warning_names_the_place(pl):
    with log_lines() as lines:
        names = [each["Name"] for each in metric_definitions(model_class(pl, "Computed"), first=["loss_0"])]
    assert names == ["loss_0", "val_loss", "test_loss"]
    (line,) = lines
    assert re.search(r"cannot be read from the source: \S*models\.py:\d+: ", line)
    assert "HINT: Give their names in first=" in line


def test_the_hooks_that_log_steps_are_lightnings(pl):
    validator = pl.trainer.connectors.logger_connector.fx_validator
    cls = getattr(validator, "_FxValidator", None) or validator.FxValidator
    by_step = {name for name, rule in cls.functions.items() if rule and rule["default_on_step"]}
    assert by_step <= set(STEP_HOOKS)
    assert not [name for name in STEP_HOOKS if cls.functions.get(name) and name not in by_step]


def test_from_names_exactly():
    assert [each["Name"] for each in metric_definitions(["b", "a", "b"])] == ["b", "a"]
    assert [each["Name"] for each in metric_definitions("val_loss")] == ["val_loss"]
    assert [each["Name"] for each in metric_definitions(iter(["a", "b"]), first="b")] == ["b", "a"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "No metric was found to define."),
        ([""], "'' is not the name of a metric."),
        ([3], "3 is not the name of a metric."),
        (["größe"], "The metric 'größe' is not of printable ASCII characters."),
        (["a\nb"], r"The metric 'a\\nb' is not of printable ASCII characters."),
        (
            [f"m{index}" for index in range(41)],
            "There are 41 metrics, and SageMaker takes at most 40 definitions: m0, ",
        ),
        (["x" * 256], "has a name of 256 and a regular expression of "),
        (["[" * 250], "has a name of 250 and a regular expression of 5"),
    ],
)
def test_what_sagemaker_does_not_take(names, problem):
    with pytest.raises(MetricDefinitionError, match=problem.replace("(", r"\(")) as caught:
        metric_definitions(names)
    assert caught.value.hint


def test_a_class_without_metrics():
    class Nothing:
        pass

    with pytest.raises(MetricDefinitionError, match="No metric was found"):
        metric_definitions(Nothing)


def test_a_model_without_source(pl):
    space = {"pl": pl, "__name__": "typed_in"}
    exec("class Typed(pl.LightningModule):\n    def training_step(self, b, i): self.log('x', 1.0)\n", space)
    found = logged_names(space["Typed"])
    assert found.names == ()
    assert found.unknown
    assert found.unknown[0].startswith("typed_in.Typed: the source cannot be read (")


def test_forty_definitions_find_each_its_own():
    names = [f"metric{index}" for index in range(40)]
    definitions = metric_definitions(names)
    (line,) = metric_lines({name: index / 4 for index, name in enumerate(names)}, 1, 2).lines
    found = {each["Name"]: float(re.search(each["Regex"], line).group(1)) for each in definitions}
    assert found == {name: index / 4 for index, name in enumerate(names)}


@pytest.mark.services
def test_what_the_service_accepts():
    botocore = pytest.importorskip("botocore.session")
    validate = pytest.importorskip("botocore.validate")
    shape = botocore.get_session().get_service_model("sagemaker").shape_for("MetricDefinitionList")
    report = validate.ParamValidator().validate(metric_definitions(["a b", "train/loss", "[x]"]), shape)
    assert not report.has_errors(), report.generate_report()
