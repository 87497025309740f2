"""``lightning-sm doctor``: its table, its JSON, its exit codes, and a project that it looks at."""

import json
import subprocess
import sys

import pytest

from lightning_sm import _doctor_command
from lightning_sm._doctor import Finding, examine

_TOKEN = "hf_" + "aB3dE5gH7jK9" * 3


def good(_):
    return ()


def slow(_):
    yield Finding("slow", "a line that is long " * 12, "Do something. " * 12)


def secret(_):
    yield Finding("secret", f"the token is {_TOKEN}", f"Use another than {_TOKEN}.", is_error=True)


def a_broken_check(_):
    yield Finding("half", "found before the error", "Nothing.")
    raise OSError(f"denied to {_TOKEN}")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command with these checks, and return its exit code and what it prints."""

    def with_checks(*checks, args=()):
        monkeypatch.setattr(_doctor_command, "CHECKS", checks)
        code = _doctor_command.main(list(args))
        return code, capsys.readouterr().out

    return with_checks


def test_a_check_that_raises_is_a_warning_and_hides_no_other(host):
    found = examine((a_broken_check, slow), host.machine)
    assert [each.check for each in found] == ["half", "a broken check", "slow"]
    assert found[1].text == "could not be examined: OSError: denied to ***"


def test_the_table_fits_a_log_masks_secrets_and_ends_with_errors(run):
    code, table = run(secret, good, slow)
    assert code == 1
    assert max(map(len, table.splitlines())) <= 110
    assert _TOKEN not in table
    assert table.count("***") == table.count("HINT:") == 2
    assert table.isascii()
    assert table.index("warning  slow") < table.index("error    secret") < table.index("ok       good")
    assert table.splitlines()[-1] == "1 warning, 1 error"


@pytest.mark.parametrize(
    ("checks", "args", "code"),
    [((good,), ["--strict"], 0), ((slow,), [], 0), ((slow,), ["--strict"], 1), ((secret,), [], 1)],
)
def test_the_exit_code_is_for_ci(run, checks, args, code):
    assert run(*checks, args=args)[0] == code


def test_the_json_holds_every_finding(run):
    content = json.loads(run(good, slow, secret, args=["--json"])[1])
    assert (content["schema"], content["exit_code"], content["checks"]) == (1, 1, ["good", "slow", "secret"])
    assert [(each["check"], each["status"]) for each in content["findings"]] == [
        ("slow", "warning"),
        ("secret", "error"),
    ]
    assert set(content["findings"][0]) == {"check", "status", "text", "hint"}
    assert _TOKEN not in str(content)


def test_it_takes_less_than_a_second_and_imports_nothing_heavy():
    heavy = "{'torch', 'pytorch_lightning', 'lightning', 'yaml', 'boto3', 'importlib.metadata'}"
    code = "import sys, time; from lightning_sm.__main__ import main; main(['doctor']); "
    code += f"print(*{heavy} & set(sys.modules)); print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    *_, imported, seconds = done.stdout.splitlines()
    assert imported == ""
    assert float(seconds) < 1


def test_a_project_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        _doctor_command.main(["--source-dir", str(tmp_path / "missing")])
    assert "HINT: " in capsys.readouterr().err


@pytest.mark.full
def test_options_behind_a_program_are_its_own(tmp_path, capsys):
    pytest.importorskip("boto3")
    (tmp_path / "train.py").write_text("import lightning_sm\n")
    project = ["--source-dir", str(tmp_path), "--env", f"HF_TOKEN={_TOKEN}"]
    assert _doctor_command.main([*project, "train.py", "--", "--strict", "1", "--json", "out"]) == 0
    assert "HF_TOKEN looks like a secret" in capsys.readouterr().out
    assert _doctor_command.main(["--strict", *project, "train.py"]) == 1
    with pytest.raises(SystemExit):
        _doctor_command.main([*project, "train.py", "--json", "out"])
    assert (
        "--json behind 'train.py' would be an argument of the program. HINT: Write it before" in capsys.readouterr().err
    )
