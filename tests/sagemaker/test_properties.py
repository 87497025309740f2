"""Whatever stands in the files and variables, only our own errors come out, each in one line."""

import json
import os
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lightning_sm import Hyperparameters, SageMakerEnvironment, Topology, TrainingJob
from lightning_sm.errors import LightningSMError
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.opt_ml import OptMl, group

_quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
_FILES = ("resourceconfig.json", "hyperparameters.json", "inputdataconfig.json", "checkpointconfig.json")

_words = st.sampled_from(
    ["algo-1", "algo-2", "algo-10", "gpu", "g", "", "5", "true", "null", "[1]", '{"a":', "a\nb", "\ud800"]
)
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | _words | st.text(max_size=20)
_json = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words, inner, max_size=4))
_keys = st.sampled_from(
    ["current_host", "hosts", "instance_groups", "current_group_name", "current_instance_type", "LocalPath"]
    + ["training", "sagemaker_distribution_instance_groups", "TrainingInputMode", "lr", "network_interface_name"]
)
_objects = st.dictionaries(_keys, _json, max_size=6)
_contents = st.one_of(
    st.binary(max_size=60),
    _json.map(lambda value: json.dumps(value).encode()),
    _objects.map(lambda v: json.dumps(v).encode()),
)

_names = st.sampled_from(
    sorted({*torchrun(0, 1, 0, 1, 0, nodes=1), *mpirun(0, 1, 0, 1)})
    + ["SM_HOSTS", "SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_INSTANCE_TYPE", "SM_HPS", "SM_CHANNELS"]
    + ["SM_FRAMEWORK_PARAMS", "SM_NUM_GPUS", "SM_NETWORK_INTERFACE_NAME", "SM_MASTER_ADDR", "SM_MASTER_PORT"]
    + ["SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR", "SM_OUTPUT_DIR", "SM_INPUT_DIR", "SM_CHANNEL_TRAINING", "NODE_RANK"]
)
# What the operating system can hold in a variable.
_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
_values = st.one_of(
    st.integers(-2, 10).map(str),
    _text,
    _json.map(json.dumps),
    st.sampled_from(["algo-1", '["algo-1","algo-2"]', " ", ""]),
)
_environs = st.dictionaries(_names, _values, max_size=10)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return OptMl(tmp_path_factory.mktemp("properties") / "opt-ml")


def _only_our_errors(function, *args):
    message = "none"
    try:
        function(*args)
    except LightningSMError as error:
        message = str(error)
    assert len(message.splitlines()) == 1, message


def _environment():
    environment = SageMakerEnvironment(resolve_timeout=0)
    environment.validate_settings(1, environment.topology.num_nodes)
    return environment.main_port, environment.node_rank(), environment.local_rank(), environment.world_size()


def _everything(environ):

    _only_our_errors(TrainingJob.resolve, environ)
    _only_our_errors(lambda: str(Topology.resolve(environ, hostname="algo-1")))
    with mock.patch.dict(os.environ, environ):
        _only_our_errors(_environment)


@pytest.mark.parametrize("name", _FILES)
@given(content=_contents)
@_quick
def test_any_file(tree, name, content):
    tree.host("algo-1", "algo-1", "algo-2").write(name, content)
    try:
        _everything(tree.environ())
    finally:
        (tree.config / name).unlink()


@given(hosts=_objects, hyperparameters=_objects)
@_quick
def test_objects_of_the_right_keys(tree, hosts, hyperparameters):
    given_groups = [group("g", "algo-1", "algo-2")]
    content = {"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], "instance_groups": given_groups}
    tree.write("resourceconfig.json", {**content, **hosts})
    tree.write("hyperparameters.json", hyperparameters)
    _everything(tree.environ())


@pytest.mark.parametrize("launcher", [{}, torchrun(1, 2, 0, 1, 1), mpirun(1, 2, 1, 2)])
@given(environ=_environs)
@example({"LOCAL_RANK": ""})
@example({"LOCAL_RANK": " "})
@example({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_OUTPUT_DATA_DIR": "a\nb"})
@_quick
def test_any_variables_over_a_launchers(launcher, environ):
    _everything({**launcher, **environ})


@given(values=st.dictionaries(st.text(max_size=10), _json, max_size=5))
@_quick
def test_every_value_that_sdk_v2_encodes_comes_back(values):
    encoded = {name: json.dumps(value) for name, value in values.items()}
    read = Hyperparameters.from_file(encoded, "file")
    # NaN is not equal to itself; its text is.
    assert repr(sorted({**read.values, **read.reserved}.items())) == repr(sorted(values.items()))
