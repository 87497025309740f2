import copy
import pickle

import pytest

from lightning_sm import errors
from lightning_sm._failure import redact_patterns

_CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("cls", _CLASSES)
def test_message_ends_with_the_hint_also_in_another_process(cls):
    error = cls("This is wrong.", hint="Do that.")
    assert str(error) == f"This is wrong. HINT: Do that. ({error.link})"
    assert (error.problem, error.hint) == ("This is wrong.", "Do that.")
    assert str(cls("This is wrong.")) == f"This is wrong. HINT: See {error.link}"
    # A redaction would break it.
    assert redact_patterns(error.link) == error.link
    assert len(error.link) < 128
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # on the way between processes
        assert (type(other), str(other), other.hint) == (cls, str(error), "Do that.")


@pytest.mark.parametrize("problem", ["/a\nb is broken.", "/a\r\nb is broken.", "/a\u2028b is broken."])
def test_message_is_one_line(problem):
    text = str(errors.JobConfigError(problem, hint="Do\nthat."))
    assert text.startswith("/a b is broken. HINT: Do that. (https://")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.JobConfigError, ValueError),
        (errors.TopologyError, ValueError),
        (errors.HyperparameterError, ValueError),
        (errors.OutputError, OSError),
        (errors.SMDDPUnavailableError, RuntimeError),
        (errors.StrategyUnavailableError, RuntimeError),
    ],
)
def test_is_also_the_builtin_that_callers_expect(cls, builtin):
    assert issubclass(cls, builtin)


@pytest.mark.parametrize("hint", [None, "Do that."])
def test_an_error_that_quotes_another_one_has_one_address(hint):
    error = errors.CheckpointError(f"It failed ({errors.TopologyError('No host.', hint=hint)}).", hint="Try again.")
    assert str(error).count("https://") == 1
    assert str(error).endswith("HINT: Try again. (" + error.link + ")")
    assert error.problem == ("It failed (No host.)." if hint is None else "It failed (No host. HINT: Do that.).")
