import pickle

import pytest

from lightning_sm import errors

_CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("cls", _CLASSES)
def test_message_ends_with_the_hint(cls):
    error = cls("This is wrong.", hint="Do that.")
    assert str(error) == "This is wrong. HINT: Do that."
    assert (error.problem, error.hint) == ("This is wrong.", "Do that.")


@pytest.mark.parametrize("cls", _CLASSES)
def test_message_without_a_hint(cls):
    assert str(cls("This is wrong.")) == "This is wrong."


@pytest.mark.parametrize("problem", ["/a\nb is broken.", "/a\r\nb is broken.", "/a\u2028b is broken."])
def test_message_is_one_line(problem):
    assert str(errors.JobConfigError(problem, hint="Do\nthat.")) == "/a b is broken. HINT: Do that."


@pytest.mark.parametrize("cls", _CLASSES)
def test_one_base_class_catches_all(cls):
    assert issubclass(cls, errors.LightningSMError)


@pytest.mark.parametrize("cls", _CLASSES)
def test_survives_the_way_between_processes(cls):
    error = pickle.loads(pickle.dumps(cls("This is wrong.", hint="Do that.")))
    assert (type(error), str(error), error.hint) == (cls, "This is wrong. HINT: Do that.", "Do that.")


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.JobConfigError, ValueError),
        (errors.TopologyError, ValueError),
        (errors.HyperparameterError, ValueError),
        (errors.OutputError, OSError),
        (errors.SMDDPUnavailableError, RuntimeError),
    ],
)
def test_is_also_the_builtin_that_callers_expect(cls, builtin):
    assert issubclass(cls, builtin)
