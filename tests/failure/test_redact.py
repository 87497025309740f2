import json
import random
import string
import time
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._failure import REDACTED, Redactor, is_secret_name, redact_patterns
from lightning_sm._failure.secret_patterns import PATTERNS, PREFIXES
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.job import TrainingJob

_ALNUM = string.ascii_letters + string.digits
_BASE64 = _ALNUM + "+/"
_HEX = "0123456789abcdef"


def some(length, letters=_ALNUM, seed=7):
    """Random letters, with one of each kind: made here so that nobody takes this file for a leak."""
    draw = random.Random(seed)
    kinds = [
        kind for kind in (string.ascii_lowercase, string.ascii_uppercase, string.digits) if set(kind) & set(letters)
    ]
    first = [draw.choice(sorted(set(kind) & set(letters))) for kind in kinds]
    return "".join(first + [draw.choice(letters) for _ in range(length - len(first))])[:length]


_KEY_40, _HEX_40, _HEX_32 = some(40, _BASE64.replace("/", "")), some(40, _HEX), some(32, _HEX)
_NAMED = "value of a name"

# Pattern, text, what must not be seen of it.
SHAPES = [
    ("private key", "-----BEGIN RSA PRIVATE KEY-----\nMIIE{0}\n-----END RSA PRIVATE KEY-----", some(20)),
    ("private key", "-----BEGIN OPENSSH PRIVATE KEY-----\\n{0}", some(30)),
    ("private key", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{0}\n-----END PGP PRIVATE KEY BLOCK-----", some(30)),
    ("user of a url", "postgres://me:{0}@db.host:5432/x", "hunter2"),
    ("user of a url", "git+https://{0}@github.com/me/it", some(20)),
    ("password with / or # in a url", "postgres://me:hun/{0}@db.host:5432/x", "ter2"),
    ("password with / or # in a url", "https://me:{0}#2@host/x", "hunter"),
    ("webhook", "https://hooks.slack.com/services/T0/B0/{0}", some(20)),
    ("authorization", "Authorization: Basic {0}", "dXNlcjpwYXNz"),
    ("authorization", "{{'Authorization': 'Token {0}'}}", "abcdefgh"),
    ("authorization", '("Authorization", "Bearer {0}")', "abcdefgh"),
    ("authorization", "Authorization: AWS4-HMAC-SHA256 Credential=A/b, Signature={0}", some(64, _HEX)),
    ("bearer", "authorization: {0}", some(32)),
    ("bearer", "Bearer {0}", "abc.def-123"),
    ("signature in a query", "https://x.blob.core.windows.net/c?sv=1&sig={0}%3D&se=2", some(20)),
    ("signature in a query", "https://b.s3.amazonaws.com/k?X-Amz-Signature={0}&X=1", some(64, _HEX)),
    ("password of a connection string", "Driver=x;UID=me;PWD={0};", "hunter2"),
    ("quoted value of a name", "password='hun ter, {0}', n=1", "2"),
    ("quoted value of a name", '{{"db_password": "hunter, {0}"}}', "two"),
    ("quoted value of a name", "password = 'it\\'s {0}'", "hunter"),
    ("value of a name in quoted json", '"{{\\"api_key\\": \\"hun {0}\\", \\"n\\": 1}}"', "ter2"),
    (_NAMED, "aws_secret_access_key={0}", "abc"),
    (_NAMED, "Incorrect API key provided: {0}.", "abcd"),
    (_NAMED, "--hf-token={0}", "abc"),
    ("option", "--hf-token {0}", "poolside"),
    (_NAMED, "X-Auth-Token: {0}", "abc"),
    (_NAMED, "x?X-Amz-Security-Token={0}&x=1", "abc%2Fdef"),
    (_NAMED, "AccountName=x;AccountKey={0}==;", some(80, _BASE64)),
    ("values of a name", "auth=('me', '{0}')", "hunter"),
    ("option", "train.py --password {0} --lr 1", "hunter2"),
    ("option", "train.py --logger.api_key {0}", "hunter2"),
    ("quoted option", "Command '['x', '--password', '{0}']' returned 1", "hunter 2"),
    ("aws access key", "{0}", "AKIA" + some(16, string.ascii_uppercase)),
    ("aws access key", "{0}", "ASIA" + some(16, string.ascii_uppercase)),
    ("aws secret access key", "{0}", _KEY_40),
    ("long base64", "{0}==", some(160, _BASE64)),
    ("json web token", "{0}", f"eyJ{some(20)}.{some(30)}.{some(30)}"),
    ("40 hexadecimal digits", "wandb: {0}", _HEX_40),
    ("40 hexadecimal digits", "{0}", _HEX_40),
    *(
        ("token with a prefix", "{0}", prefix + rest)
        for prefix, rest in (
            ("ABSK", some(60)),
            ("AIza", some(35)),
            ("ya29.", some(40)),
            ("GOCSPX-", some(28)),
            ("LTAI", some(20)),
            ("wandb_v1_", some(77)),
            ("hf_", some(34)),
            ("dapi", _HEX_32),
            ("sk-ant-api03-", some(93)),
            ("sk-", some(48)),
            ("gsk_", some(52)),
            ("nvapi-", some(64)),
            ("r8_", some(37)),
            ("lsv2_pt_", _HEX_32),
            ("pcsk_", some(60)),
            ("KGAT_", _HEX_32),
            ("ghp_", some(36)),
            ("github_pat_", some(82)),
            ("glpat-", some(20)),
            ("ATATT3", some(60)),
            ("npm_", some(36)),
            ("pypi-AgEIcHlwaS5vcmc", some(80)),
            ("dckr_pat_", some(27)),
            ("dop_v1_", some(64, _HEX)),
            ("xoxb-", some(24, string.digits)),
            ("SG.", some(22) + "." + some(43)),
            ("sk_" + "live_", some(24)),
            ("whsec_", some(32)),
            ("hvs.", some(90)),
            ("glsa_", some(41)),
        )
    ),
]

ORDINARY = [
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 14.76 GiB total capacity)",
    "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 512])",
    "max_tokens=512, tokenizer='bert-base-uncased', tokenize: true, num_tokens: 12",
    "pad_token_id=50256, eos_token='</s>', token_type_ids: None, token_dropout=0.1, max_token_length=77",
    "Token indices sequence length is longer than the specified maximum sequence length (600 > 512)",
    "KeyError: 'token'",
    "argument --token: expected one argument",
    "usage: train.py [-h] [--token TOKEN] [--api-key API_KEY] [--lr LR]",
    "train.py: error: the following arguments are required: --token, --lr",
    "TypeError: __init__() got an unexpected keyword argument 'auth_token'",
    "__init__(self, token: str = None, password: Optional[str] = None)",
    "use_auth_token=True, password=None, api_key: null",
    "basic configuration and bearer of news, the basic block BasicBlock2 and basic layers.0.conv1",
    "s3://bucket/prefix/file.pt at https://example.com:8080/path@v1?x=1 and http://algo-1:7777/a@b",
    "https://github.com/me/it@v1.2 and https://medium.com/@somebody/article and git@github.com:me/it.git",
    "public.ecr.aws/x/image:1.0@sha256:" + some(64, _HEX),
    "/opt/ml/input/data/training/images/class-a/0001.png",
    "/home/Me/Data/Sets/2024/Training/Cats/AA",
    "/home/Me/" + "Data/Sets/2024/Training/" * 6,
    "x" * 300,
    "-" * 100 + "\n" + "=" * 100,
    f"commit {_HEX_40} of main",
    f"models--bert-base-uncased/snapshots/{_HEX_40}/config.json",
    f"{_HEX_40} is a digest, sha256 {some(64, _HEX)}\n{some(64, _HEX, 1)}",
    f"pip install git+https://github.com/me/it@{_HEX_40}",
    f"md5 {_HEX_32}, id 123e4567-e89b-12d3-a456-426614174000",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEENS_6detail5ArrayIPcLi1EEEEEviT0_T1_"
    "_ZN2at6native29vectorized_elementwise_kernel",
    "arn:aws:sagemaker:eu-west-1:123456789012:training-job/pytorch-training-2026-11-22-03-31-18-123",
    "TinyModel.encoder.layers.11.attention.self.query.weight: size mismatch",
    "sk-learn-compatible-estimator-of-mine, hf_model_checkpoint_dir_name, npm_config_registry",
    "author: somebody, keys: ['a', 'b'], monkey=3, keypoints=[1, 2], num_keys: 4",
    "No matching signature found for forward(x)",
    "[rank0]: 2026-11-22 03:31:18,123:INFO:step 12:30@node",
    "UserWarning: The dataloader, train_dataloader, does not have many workers which may be a bottleneck.",
    "OSError: [Errno 28] No space left on device: '/opt/ml/checkpoints/.last.ckpt.tmp'",
]


@pytest.mark.parametrize(
    ("name", "text", "secret"), SHAPES, ids=[f"{index}-{row[0]}" for index, row in enumerate(SHAPES)]
)
def test_a_shape(name, text, secret):
    """Alone, in a message, in quotes, and in one line as the failure reason has it."""
    whole = text.format(secret)
    for around in (
        "{}",
        "OSError: refused, {} , he said",
        'ValueError("{}")' if '"' not in whole else "({})",
        "got {}\n",
    ):
        shown = redact_patterns(around.format(whole))
        assert REDACTED in shown
        for part in secret.split():
            assert part not in shown, shown
        assert secret not in redact_patterns(" ".join(around.format(whole).split()))
        assert redact_patterns(shown) == shown
    assert not shown.startswith(REDACTED)


@pytest.mark.parametrize("kind", PATTERNS)
def test_each_pattern_is_needed(kind, monkeypatch):
    """It masks one of its shapes by itself."""
    monkeypatch.setattr("lightning_sm._failure.redact.PATTERNS", {kind: PATTERNS[kind]})
    assert any(secret not in redact_patterns(text.format(secret)) for name, text, secret in SHAPES if name == kind)


@pytest.mark.parametrize("text", ORDINARY)
def test_what_is_no_secret_stays(text):
    assert redact_patterns(text) == text


_NASTY = {
    "base64": some(2000, _BASE64) * 8,
    "names": "token_" * 2700,
    "options": "--token-" * 2000,
    "quotes": "password='" * 1600,
    "escapes": "password=\\'" * 1500,
    "urls": "http://a:" * 1800,
    "begins": "-----BEGIN PRIVATE KEY-----" * 600,
    "headers": "authorization: bearer " * 750,
    "brackets": "token=[" * 2300,
    "spaces": ("token" + " " * 50) * 300,
    "prefixes": "".join(PREFIXES.values()) * 60,
    "prose": "the token of the author's key is not basic, " * 370,
    "digits": "a1" * 8000,
    "newlines": "\n" * 16000,
}


@pytest.mark.parametrize("kind", _NASTY)
def test_ten_times_the_text_takes_no_more_than_fifteen_times_as_long(kind):
    short, long = _NASTY[kind][:1500], _NASTY[kind][:15000]
    redact_patterns(short)
    # This thread's own time, and the best of several: other programs on the machine do not count.
    assert _seconds(long) <= 15 * _seconds(short) + 0.002


def _seconds(text):
    return min(timeit.repeat(lambda: redact_patterns(text), timer=time.thread_time, repeat=5, number=1))


def redacted(text, hyperparameters=None, **variables):
    return Redactor(TrainingJob(hyperparameters=Hyperparameters(hyperparameters or {})), variables)(text)


def test_hyperparameters_whose_names_sound_secret_nested_too():
    values = {
        "logger": {"api_key": "0123456789", "project": "cats"},
        "model.credentials": [{"user": "somebody"}, 987654],
        "use_token": True,
        "password": "abc",
        "lr": 0.001,
    }
    text = "cats 0123456789 somebody 987654 True abc 0.001"
    assert redacted(text, values) == "cats *** *** *** True abc 0.001"


def test_a_secret_however_it_is_quoted():
    secret = 'it\'s "two\nlines"'
    for spelt in (secret, repr(secret), json.dumps(secret), " ".join(secret.split())):
        assert "lines" not in redacted(f"<{spelt}>", {"token": secret})


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        (True, "token HF_TOKEN apiKey api-key db.password client_secret passwd auth AWS_ACCESS_KEY_ID credentials "
               "SSH_PRIVATE_KEY passphrase"),
        (False, "tokenizer max_tokens num_tokens key monkey lr tokenization author pad_token_id token_dropout "
                "max_token_length eos_token keypoints model.token_mixer TokenMixing token_pooling token-merging"),
    ],
)  # fmt: skip
def test_secret_names(expected, names):
    assert [name for name in names.split() if is_secret_name(name) is not expected] == []


_values = st.text(string.ascii_letters + string.digits + "/+=_-.!$%'\"\\ ", min_size=6).filter(
    lambda value: len(value.strip()) >= 6 and value.strip("*").lower() not in ("true", "false")
)


@given(before=st.text(), value=_values, after=st.text(), name=st.sampled_from(["my_token", "Password", "x.secret"]))
def test_no_value_of_such_a_name_is_ever_shown(before, value, after, name):
    shown = redacted(f"{before}{value.strip()}{after}", {name: value})
    assert value.strip() not in shown
    assert REDACTED in shown
    assert redacted(shown, {name: value}) == shown


@pytest.mark.parametrize("seen", range(1, 41, 3))
def test_half_of_a_secret_at_the_cut_is_not_shown(seen):
    before = "lorem ipsum " * 1000
    token = "ghp_" + string.ascii_letters[:36]
    shown = redacted(before[: 8192 - seen] + token + before)
    assert 7000 < len(shown) <= 8192
    assert "ghp_" not in shown


def test_a_long_text():
    assert redacted("got " + _ALNUM * 1000) == "got ***"
    assert redacted("got " + "hunter2 " * 100_000, {"password": "hunter2"}).startswith("got *** ***")
    began = time.thread_time()
    assert len(redacted("a.b.token+/" * 1_000_000)) <= 8192
    assert time.thread_time() - began < 1
