import signal

import pytest

from lightning_sm._observe.harmless import harmless


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


@pytest.mark.parametrize("handler", [no_result, Alarm().on_alarm, Alarm()], ids=["function", "method", "object"])
def test_what_a_signal_handler_raises_reaches_the_program(handler):
    before = signal.signal(signal.SIGALRM, handler)
    observer = Observer(lambda: signal.raise_signal(signal.SIGALRM))
    try:
        with pytest.raises(TimeoutError):
            observer.write()
        # An error of its own is still none of the program's.
        observer.fail = lambda: 1 / 0
        observer.write()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert observer.failed == {"lines"}
