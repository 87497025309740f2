import pytest

from lightning_sm._duration import duration_of_option, read_duration
from lightning_sm.errors import OptionError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), (90, 90), (0.5, 0.5), ("90s", 90), (" 10m ", 600), ("1.5h", 5400), ("23h30m", 84600), ("1d", 86400)],
)
def test_a_duration_is_read(text, seconds):
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "soon", "10 parsecs", "-5s", "m10", "1h30", "30 1h", None])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="duration"):
        read_duration(text)


def test_an_option_is_named():
    assert duration_of_option("save_every", "1ms") == 0.001
    with pytest.raises(OptionError, match=r"sagemaker\.save_every: 'soon' is not a duration .* HINT: Write a number"):
        duration_of_option("save_every", "soon")
