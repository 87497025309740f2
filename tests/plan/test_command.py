import xml.etree.ElementTree as ElementTree

import pytest

from lightning_sm.__main__ import main
from tests.plan import measured

ISSUE = ["--params", "25M", "--step-ms", "120", "--hosts", "1,2,4,8,16"]


def _rows(output):
    """The cells of the first table, a row for each number of hosts."""
    lines = output.split("\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def _plan(capsys, *words):
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_hours_and_dollars_follow_from_the_speed_up(capsys):
    words = ["--instance", "ml.g5.12xlarge", "--batch", "32", "--samples", "1e8", "--price", "7.09"]
    heads, *rows = _rows(_plan(capsys, *ISSUE, *words))
    assert heads[-2:] == ["hours", "dollars"]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16"]
    one, sixteen = rows[0], rows[-1]
    assert float(one[-2]) == pytest.approx(1e8 / 32 / 4 * 0.12 / 3600, rel=0.01)  # 4 GPUs
    assert float(sixteen[-2]) == pytest.approx(float(one[-2]) / float(sixteen[4]), rel=0.01)
    assert float(sixteen[-1]) > float(one[-1])  # communication costs dollars
    assert one[3] == "1,067"  # samples/s


def test_a_slow_network_names_bottleneck_and_options_with_warnings(capsys):
    output = _plan(capsys, *ISSUE, "--instance", "ml.g5.xlarge", "--steps", "1000")
    assert "The first bottleneck is bandwidth, from 2 hosts on." in output
    assert "Use gradient_compression=bf16" in output
    options = {line.split("  ")[0]: line for line in output.splitlines() if "=" in line}
    assert options["gradient_compression=bf16"].endswith("yes")
    assert "no: gradients are approximated" in options["gradient_compression=powersgd, powersgd_rank=4"]
    assert "no: weights are averaged each 16 steps only" in options["local_steps=16"]
    assert all("Gbit/s" in line for name, line in options.items() if "Use" not in name)


def test_a_fast_network_needs_no_option(capsys):
    output = _plan(capsys, "--params", "1M", "--step-ms", "500", "--instance", "p4d.24xlarge")
    assert "Up to 16 hosts, compute is the limit" in output
    assert "No option that learns the same gains 2 %." in output


def test_own_figures_replace_those_of_a_type(capsys):
    words = ["--params", str(measured.PARAMETERS), "--step-ms", "314", "--hosts", "4"]
    output = _plan(capsys, *words, "--bandwidth", "0.2", "--gpus", "0", "--latency-us", "50")
    assert float(_rows(output)[1][2]) == pytest.approx(6567, rel=0.01)
    accumulated = _plan(capsys, *words, "--bandwidth", "0.2", "--accumulate-grad-batches", "4")
    assert float(_rows(accumulated)[1][2]) < 6567 / 3
    assert "option" not in _plan(capsys, *ISSUE[:4], "--instance", "ml.g5.xlarge", "--hosts", "1")


def test_the_plot_is_a_picture_of_all_options(capsys, tmp_path):
    file = tmp_path / "out.svg"
    output = _plan(capsys, *ISSUE, "--instance", "ml.g5.4xlarge", "--plot", str(file))
    assert f"The plot is in {file}." in output
    root = ElementTree.parse(file).getroot()
    curves = [each.get("points").split() for each in root.iter("{http://www.w3.org/2000/svg}polyline")]
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"plain DDP", "gradient_compression=bf16", "local_steps=16", "batches/s", "16"} <= set(texts)
    assert [len(points) for points in curves] == [5] * 7
    plain, bf16 = (float(points[-1].split(",")[1]) for points in (curves[0], curves[2]))
    assert bf16 < plain  # higher in the picture
    numbers = [float(number) for points in curves for point in points for number in point.split(",")]
    assert 0 <= min(numbers) <= max(numbers) <= 860


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--params", "25M", "--instance", "ml.g5.xlarge"], "either --params and --step-ms, or --measure"),
        (["--measure", "--instance", "ml.g5.xlarge"], "either --params and --step-ms, or --measure"),
        ([*ISSUE, "--instance", "ml.g5.xlarge", "train.py"], "either --params and --step-ms, or --measure"),
        (ISSUE, "Neither --instance nor --bandwidth"),
        ([*ISSUE, "--instance", "ml.g5.13xlarge"], "Known are ml.g5."),
        ([*ISSUE, "--instance", "ml.g5.xlarge", "--samples", "9"], "--samples needs --batch"),
        ([*ISSUE[:4], "--instance", "ml.g5.xlarge", "--hosts", "1,x"], "--hosts 1,x is no list"),
        ([*ISSUE, "--instance", "ml.g5.xlarge", "--plot", "none/out.svg"], "No such file or directory: 'none/out.svg'"),
        (["--params", "1e400", *ISSUE[2:], "--instance", "ml.g5.xlarge"], "--params is more than 1e+18"),
        ([*ISSUE, "--instance", "ml.g5.xlarge", "--latency-us", "inf"], "--latency-us is more than 1e+18"),
        (["--params", "many", *ISSUE[2:], "--instance", "ml.g5.xlarge"], "--params many is no number"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words, problem, capsys):
    assert main(["plan", *words]) == 2
    text = capsys.readouterr().err
    assert problem in text
    assert "HINT: " in text
    assert len(text.splitlines()) == 1
