import signal

import pytest

from lightning_sm._lightning import installed_namespaces
from lightning_sm._observe.harmless import harmless
from lightning_sm._observe.metrics import plain_number
from tests.observe.test_metrics import fit, monitor


class Observer:
    def __init__(self, fail):
        self.failed, self.fail = set(), fail

    @harmless("lines")
    def write(self):
        self.fail()


class Alarm:
    def on_alarm(self, *_):
        raise TimeoutError("no result")

    __call__ = on_alarm


def no_result(number, frame):
    raise TimeoutError("no result")


HANDLERS = pytest.mark.parametrize(
    "alarm", [no_result, Alarm().on_alarm, Alarm()], ids=["function", "method", "object"], indirect=True
)


@pytest.fixture
def alarm(request):
    """Raises the signal, whose handler raises an error."""
    before = signal.signal(signal.SIGALRM, getattr(request, "param", no_result))
    yield lambda *_: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


@HANDLERS
def test_what_a_signal_handler_raises_reaches_the_program(alarm):
    observer = Observer(alarm)
    with pytest.raises(TimeoutError):
        observer.write()
    # An error of its own is still none of the program's.
    observer.fail = lambda: 1 / 0
    observer.write()
    assert observer.failed == {"lines"}


def test_also_while_a_number_is_read(alarm, monkeypatch):
    with pytest.raises(TimeoutError):
        plain_number(type("Slow", (), {"item": alarm})())
    connector = installed_namespaces()[-1].module("trainer.connectors.logger_connector.logger_connector")
    monkeypatch.setattr(connector, "convert_tensors_to_scalars", alarm)
    with pytest.raises(TimeoutError):
        fit(monitor())
