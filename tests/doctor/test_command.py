import json
import re
import subprocess
import sys
import threading

import pytest

from lightning_sm import _doctor
from lightning_sm._doctor import Finding, Machine, Status, command
from lightning_sm._doctor.finding import run_checks
from lightning_sm._sagemaker.job import TrainingJob
from tests.helpers.opt_ml import OptMl

_TOKEN = "hf_" + "aB3dE5gH7jK9" * 3


def good(_):
    yield Finding("good", Status.OK, "fine")


def slow(_):
    yield Finding("slow", Status.WARNING, "a line that is long " * 12, "Do something. " * 12)


def secret(_):
    yield Finding("secret", Status.ERROR, f"the token is {_TOKEN}", f"Use another than {_TOKEN}.")


def broken(_):
    raise ZeroDivisionError("by zero")


def late(_):
    yield Finding("half", Status.OK, "found before the error")
    raise OSError(f"denied to {_TOKEN}")


@pytest.fixture
def machine():
    return Machine({}, TrainingJob())


def test_a_check_that_raises_is_a_warning_and_hides_no_other(machine):
    found = command.examine({"One": (broken, good), "Two": (late,)}, machine)
    assert [(each.check, each.status) for each in found["One"]] == [("broken", Status.WARNING), ("good", Status.OK)]
    assert found["One"][0].text == "could not be examined: ZeroDivisionError: by zero"
    assert [each.check for each in found["Two"]] == ["late"]
    assert _TOKEN not in str(found)


def test_a_check_that_hangs_is_a_warning(machine):
    release = threading.Event()

    def hangs(_):
        release.wait(60)
        yield Finding("hangs", Status.OK, "")

    found = run_checks({"One": (hangs, good)}, machine, timeout=0.2)
    release.set()
    assert found["One"][0].status == Status.WARNING
    assert "no answer" in found["One"][0].text
    assert found["One"][1].status == Status.OK


def test_the_table_fits_a_log_and_masks_secrets(machine):
    table = command.as_table(command.examine({"One": (good, slow), "Two": (secret,), "Three": ()}, machine), "title")
    assert max(map(len, table.splitlines())) <= 110
    assert _TOKEN not in table
    assert table.count("***") == 2
    assert table.count("HINT:") == 2
    assert "Three" not in table
    assert table.isascii()
    assert "\x1b" not in table
    assert table.splitlines()[-1] == "1 ok, 1 warning, 1 error"


@pytest.mark.parametrize(
    ("checks", "strict", "code"),
    [((good,), True, 0), ((good, slow), False, 0), ((slow,), True, 1), ((good, secret), False, 1), ((), True, 0)],
)
def test_the_exit_code_is_for_ci(machine, checks, strict, code):
    assert command.exit_code(command.examine({"One": checks}, machine), strict=strict) == code


def test_the_json_holds_every_finding(machine):
    findings = command.examine({"One": (good, slow), "Two": (secret,)}, machine)
    content = json.loads(command.as_json(findings, machine))
    assert content["schema"] == 1
    assert content["counts"] == {"ok": 1, "warning": 1, "error": 1}
    assert content["exit_code"] == 1
    assert [each["section"] for each in content["findings"]] == ["One", "One", "Two"]
    assert set(content["findings"][0]) == {"section", "check", "status", "text", "hint"}
    assert _TOKEN not in str(content)


def test_a_folder_without_a_job_is_wrong_usage(tmp_path, capsys):
    with pytest.raises(SystemExit) as exited:
        _doctor.main(["--config-dir", str(tmp_path)])
    assert exited.value.code == 2
    assert "resourceconfig.json" in capsys.readouterr().err


@pytest.mark.parametrize("below", ["", "input/config", "opt/ml/input/config"])
def test_a_saved_folder_is_found_at_any_of_its_levels(tmp_path, below, capsys):
    (tmp_path / "opt").mkdir()
    saved = OptMl(tmp_path / "opt" / "ml").host("algo-2", "algo-1", "algo-2").config
    given = {"": saved, "input/config": saved.parents[1], "opt/ml/input/config": tmp_path}[below]
    assert _doctor.main(["--config-dir", str(given), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["host"] == "algo-2"


def test_a_broken_file_is_an_error_and_no_traceback(tmp_path, capsys):
    saved = OptMl(tmp_path / "ml").write("resourceconfig.json", "{")
    assert _doctor.main(["--config-dir", str(saved.config)]) == 1
    assert "error" in capsys.readouterr().out


def test_the_command_imports_neither_torch_nor_lightning():
    modules = "{'torch', 'pytorch_lightning', 'lightning', 'yaml'}"
    code = f"import sys; from lightning_sm import _doctor; print(*{modules} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == ""


def test_each_check_says_what_it_examines():
    checks = [check for section in _doctor.SECTIONS.values() for check in section]
    assert len(checks) == len(set(checks))
    lines = {check.__name__: (check.__doc__ or "").partition("\n")[0] for check in checks}
    missing = [name for name, line in lines.items() if not re.fullmatch(r"[A-Z`].*\.", line)]
    assert missing == []
