import pytest

from lightning_sm._duration import read_duration


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
