import json
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._failure.failure_file import REDACTED, Redactor, is_secret_name
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.job import TrainingJob

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
def test_names(name, expected):
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
