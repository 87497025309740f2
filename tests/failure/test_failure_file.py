import json
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._failure.failure_file import (
    REDACTED,
    Redactor,
    count_oom_kills,
    is_secret_name,
    with_oom_kills,
    withdraw_failure,
    write_failure,
)
from lightning_sm._failure.reason import FailureReason
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.job import TrainingJob
from tests.helpers.failure_file import reason
from tests.projects.container import log_lines


def test_the_first_reason_stays(job):
    write_failure(job, "first")
    write_failure(job, "second")
    assert reason(job) == "first"


def test_sagemaker_shows_1024_characters(job):
    write_failure(job, "é" * 2000)
    assert reason(job) == "é" * 1024


def test_nothing_outside_a_container(tmp_path):
    write_failure(TrainingJob(), "reason")
    withdraw_failure(TrainingJob(), "reason")
    assert not list(tmp_path.iterdir())


def test_a_secret_at_the_cut_is_masked_whole(tmp_path):
    job = TrainingJob(
        in_container=True,
        failure_file=str(tmp_path / "failure"),
        hyperparameters=Hyperparameters({"model": {"hub_token": "0123456789"}}),
    )
    write_failure(job, "x" * 1020 + "0123456789")
    assert reason(job) == "x" * 1020 + "***"


def test_what_no_encoding_has(job):
    write_failure(job, "a\udcffb")
    assert reason(job) == "a\\udcffb"


def test_what_is_escaped_is_cut_too(job):
    write_failure(job, "\udcff" * 1000)
    assert reason(job) == ("\\udcff" * 1000)[:1024]


def test_a_reason_can_be_taken_back(job):
    write_failure(job, "Rank 1 was killed; 2 oom kills")
    withdraw_failure(job, "KeyError")
    assert reason(job)
    withdraw_failure(job, "Rank 1 was killed")
    with pytest.raises(FileNotFoundError):
        reason(job)
    withdraw_failure(job, "Rank 1 was killed")


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    job = TrainingJob(in_container=True, failure_file=str(tmp_path / "file" / "failure"))
    with log_lines() as lines:
        write_failure(job, "reason")
    assert "could not be written" in lines[0]


def test_both_versions_of_control_groups(tmp_path):
    assert count_oom_kills(str(tmp_path)) is None
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert count_oom_kills(str(tmp_path)) == 2
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert count_oom_kills(str(tmp_path)) == 3


def test_a_file_that_says_something_else(tmp_path):
    (tmp_path / "memory.events").write_bytes(b"\xff oom 4\noom_kill\n")
    assert count_oom_kills(str(tmp_path)) is None


def test_the_loss_of_a_rank_names_the_oom_kills_of_its_own_host(monkeypatch):
    monkeypatch.setattr("lightning_sm._failure.failure_file.count_oom_kills", lambda: 2)
    loss = FailureReason("Rank 1 on algo-2 was killed", 1, "algo-2", is_loss=True)
    assert str(with_oom_kills(loss, "algo-2")).endswith("; OOM kills in this container (cgroup oom_kill): 2")
    assert with_oom_kills(loss, "algo-1") == loss
    error = FailureReason("KeyError: 'x'", 1, "algo-2")
    assert with_oom_kills(error, "algo-2") == error


# As AWS documents them, of nobody's account.
_KEY_ID, _KEY = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
_SESSION = "IQoJb3JpZ2luX2VjEBYaDH" * 8


def redacted(text, hyperparameters=None, **variables):
    return Redactor(TrainingJob(hyperparameters=Hyperparameters(hyperparameters or {})), variables)(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"denied for {_KEY_ID}.", "denied for ***."),
        (f"denied for ASIA{_KEY_ID[4:]}", "denied for ***"),
        (f"key {_KEY}, he said", "key ***, he said"),
        (f"{_SESSION}==", "***"),
        ("aws_secret_access_key=abc", "aws_secret_access_key=***"),
        ("{'SecretAccessKey': 'abc', 'n': 1}", "{'SecretAccessKey': '***', 'n': 1}"),
        ('{"password": "p w", "n": 1}', '{"password": "***", "n": 1}'),
        ("api_key: abc", "api_key: ***"),
        ("--hf-token=abc --lr=1", "--hf-token=*** --lr=1"),
        ("connect to postgres://me:pass@db.host:5432/x", "connect to postgres://***@db.host:5432/x"),
        ("https://x-access-token@github.com/me/it", "https://***@github.com/me/it"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("https://b.s3.amazonaws.com/k?X-Amz-Signature=0f&X=1", "https://b.s3.amazonaws.com/k?X-Amz-Signature=***&X=1"),
        ("hf_abcdefghijklmnopqrst no access", "*** no access"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln bad", "*** bad"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----!", "***!"),
    ],
)
def test_by_form(text, shown):
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709 is a digest",
        "max_tokens=512, tokenizer='bert-base-uncased', tokenize: true",
        "basic configuration and bearer of news",
        "s3://bucket/prefix/file.pt at https://example.com:8080/path?x=1",
        "/opt/ml/input/data/training/images/class-a/0001.png",
        "x" * 300,
    ],
)
def test_what_is_no_secret_stays(text):
    assert redacted(text) == text


def test_hyperparameters_that_sound_secret_nested_too():
    values = {
        "logger": {"api_key": "0123456789", "project": "cats"},
        "model.credentials": [{"user": "somebody"}, 987654],
        "use_token": True,
        "password": "abc",
        "lr": 0.001,
    }
    text = "cats 0123456789 somebody 987654 True abc 0.001"
    assert redacted(text, values) == "cats *** *** *** True abc 0.001"


def test_variables_that_sound_secret():
    variables = {"WANDB_API_KEY": "0123456789abcdef", "HF_TOKEN": "auto", "HOME": "/home/me", "AWS_SESSION_TOKEN": ""}
    assert redacted("0123456789abcdef auto /home/me", **variables) == "*** auto /home/me"


def test_a_secret_however_it_is_quoted():
    secret = 'it\'s "two\nlines"'
    for spelt in (secret, repr(secret), json.dumps(secret), " ".join(secret.split())):
        assert "lines" not in redacted(f"<{spelt}>", {"token": secret})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(
            (name, True)
            for name in ("token", "HF_TOKEN", "apiKey", "api-key", "db.password", "client_secret", "passwd", "auth")
        ),
        *((name, True) for name in ("AWS_ACCESS_KEY_ID", "credentials", "SSH_PRIVATE_KEY", "passphrase")),
        *(
            (name, False)
            for name in ("tokenizer", "max_tokens", "num_tokens", "key", "monkey", "lr", "tokenization", "author")
        ),
        *((name, False) for name in ("pad_token_id", "token_dropout", "max_token_length", "eos_token", "keypoints")),
    ],
)
def test_secret_names(name, expected):
    assert is_secret_name(name) is expected


_values = st.text(string.ascii_letters + string.digits + "/+=_-.!$%'\"\\ ", min_size=6).filter(
    lambda value: len(value.strip()) >= 6 and value.strip("*").lower() not in ("true", "false")
)


@given(before=st.text(), value=_values, after=st.text(), name=st.sampled_from(["my_token", "Password", "x.secret"]))
def test_no_value_of_such_a_name_is_ever_shown(before, value, after, name):
    shown = redacted(f"{before}{value.strip()}{after}", {name: value})
    assert value.strip() not in shown
    assert REDACTED in shown


@pytest.mark.parametrize("seen", range(1, 41, 3))
def test_half_of_a_secret_at_the_cut_is_not_shown(seen):
    before = "lorem ipsum " * 1000
    token = "ghp_" + string.ascii_letters[:36]
    shown = redacted(before[: 8192 - seen] + token + before)
    assert 7000 < len(shown) <= 8192
    assert "ghp_" not in shown


def test_a_long_text_whose_secrets_make_it_short():
    assert redacted("got " + (string.ascii_letters + string.digits) * 1000) == "got ***"
    assert redacted("got " + "hunter2 " * 100_000, {"password": "hunter2"}).startswith("got *** ***")


def test_no_text_takes_long():
    began = time.thread_time()
    assert len(redacted("a.b.token+/" * 1_000_000)) <= 8192
    assert time.thread_time() - began < 1


@given(st.text(), _values)
def test_redacting_twice_changes_nothing(text, value):
    once = redacted(f"{text}{value}", {"token": value})
    assert redacted(once, {"token": value}) == once
