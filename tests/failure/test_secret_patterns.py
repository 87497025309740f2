import random
import string
import subprocess
import sys
import time

import pytest

from lightning_sm._failure.failure_file import REDACTED, redact_patterns
from lightning_sm._failure.secret_patterns import PATTERNS

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


def lines(count, width=64):
    return [some(width, _BASE64, seed) for seed in range(count)]


_BODY = lines(3)
_KEY_40, _HEX_40, _HEX_32 = some(40, _BASE64.replace("/", "")), some(40, _HEX), some(32, _HEX)

# Pattern, text, what must not be seen of it.
SHAPES = [
    ("private key block", "-----BEGIN RSA PRIVATE KEY-----\nMIIE{0}\n-----END RSA PRIVATE KEY-----", some(20)),
    ("private key block", "-----BEGIN OPENSSH PRIVATE KEY-----\\n{0}", some(30)),
    (
        "private key block",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{0}\n-----END PGP PRIVATE KEY BLOCK-----",
        some(30),
    ),
    ("putty key", "PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 1\n{0}", some(30)),
    ("lines of base64", "\n".join(["{0}", *_BODY[1:], "ab=="]), _BODY[0]),
    ("lines of base64", "\\n".join([_BODY[0], "{0}", "abc="]), _BODY[1]),
    ("lines of base64", " ".join([_BODY[0], _BODY[1], "{0}==", "=aB3x"]), some(20)),
    ("beginning of a private key in base64", "{0}", "MIIE" + some(40, _BASE64)),
    ("beginning of a private key in base64", "{0}", "b3BlbnNzaC1rZXkt" + some(40)),
    ("user of a url", "postgres://me:{0}@db.host:5432/x", "hunter2"),
    ("user of a url", "git+https://{0}@github.com/me/it", some(20)),
    ("password with / or # in a url", "postgres://me:hun/{0}@db.host:5432/x", "ter2"),
    ("password with / or # in a url", "https://me:{0}#2@host/x", "hunter"),
    ("password with / or # in a url", "amqp://me:12/{0}@host/x", "hunter"),
    ("user and password before a host", "connect to me:{0}@db.host:5432", "hunter2"),
    ("webhook", "https://hooks.slack.com/services/T0/B0/{0}", some(20)),
    ("webhook", "https://discord.com/api/webhooks/1/{0}", some(40)),
    ("authorization", "Authorization: Basic {0}", "dXNlcjpwYXNz"),
    ("authorization", "{{'Authorization': 'Token {0}'}}", "abcdefgh"),
    ("authorization", '("Authorization", "Bearer {0}")', "abcdefgh"),
    ("authorization of several parts", "Authorization: AWS4-HMAC-SHA256 Credential=A/b, Signature={0}", some(64, _HEX)),
    ("authorization without a scheme", "authorization: {0}", some(32)),
    ("scheme of an authorization", "Bearer {0}", "abc.def-123"),
    ("user and password in base64", "Basic {0}", "dXNlcjpwdw=="),
    ("cookie header", "Cookie: a=1; session={0}", some(10)),
    ("cookie header", "'Set-Cookie': 'sid={0}; Path=/'", some(10)),
    ("signature in a query", "https://x.blob.core.windows.net/c?sv=1&sig={0}%3D&se=2", some(20)),
    ("signature in a query", "https://b.s3.amazonaws.com/k?X-Amz-Signature={0}&X=1", some(64, _HEX)),
    ("password of a connection string", "Driver=x;UID=me;PWD={0};", "hunter2"),
    ("quoted value of a name", "password='hun ter, {0}', n=1", "2"),
    ("quoted value of a name", '{{"db_password": "hunter, {0}"}}', "two"),
    ("quoted value of a name", "password = 'it\\'s {0}'", "hunter"),
    ("quoted value of a name", "secret=b'{0}'", "ab cd"),
    ("value of a name in quoted json", '"{{\\"api_key\\": \\"hun {0}\\", \\"n\\": 1}}"', "ter2"),
    ("value of a name", "aws_secret_access_key={0}", "abc"),
    ("value of a name", "Incorrect API key provided: {0}.", "abcd"),
    ("value of a name", "--hf-token={0}", "abc"),
    ("value of a name", "X-Auth-Token: {0}", "abc"),
    ("value of a name", "x?X-Amz-Security-Token={0}&x=1", "abc%2Fdef"),
    ("value of a name", "azure_openai_api_key: {0}", _HEX_32),
    ("values of a name", "auth=({0}, pw)", "somebody"),
    ("values of a name", "auth=('me', '{0}')", "hunter"),
    ("values of a name", "cookies={{'session': '{0}'}}", "hunter"),
    ("option", "train.py --password {0} --lr 1", "hunter2"),
    ("option", "train.py --logger.api_key {0}", "hunter2"),
    ("quoted option", "Command '['x', '--password', '{0}']' returned 1", "hunter 2"),
    ("element", "<password>{0}</password>", "hunter 2"),
    ("quoted password", "invalid password '{0}'", "hunter 2"),
    ("netrc", "machine api.wandb.ai login user password {0}", "hunter2"),
    ("netrc", "login me\n  password {0}", "hunter2"),
    ("user and password of curl", "curl -u me:{0} https://host", "hunter2"),
    ("basic authentication object", "HTTPBasicAuth('me', '{0}')", "hunter2"),
    ("aws access key", "{0}", "AKIA" + some(16, string.ascii_uppercase)),
    ("aws secret access key", "{0}", _KEY_40),
    ("long base64", "{0}==", some(160, _BASE64)),
    ("bedrock key", "{0}", "ABSK" + some(60)),
    ("azure storage key", "AccountName=x;AccountKey={0}==;", some(80, _BASE64)),
    ("azure storage key", "Endpoint=sb://x/;SharedAccessKey={0}=", some(43, _BASE64)),
    ("azure client secret", "{0}", some(3) + "8Q~" + some(34)),
    ("google api key", "{0}", "AIza" + some(35)),
    ("google oauth token", "{0}", "ya29." + some(40)),
    ("google client secret", "{0}", "GOCSPX-" + some(28)),
    ("google refresh token", "{0}", "1//0" + some(40)),
    ("alibaba access key", "{0}", "LTAI" + some(20)),
    ("digital ocean", "{0}", "dop_v1_" + some(64, _HEX)),
    ("heroku", "{0}", "HRKU-" + some(60)),
    ("wandb", "{0}", "wandb_v1_" + some(77)),
    ("wandb or other key of 40 hexadecimal digits", "wandb: {0}", _HEX_40),
    ("wandb or other key of 40 hexadecimal digits", "{0}", _HEX_40),
    ("hugging face", "{0}", "hf_" + some(34, string.ascii_letters)),
    ("databricks", "{0}", "dapi" + _HEX_32),
    ("anthropic, openai, openrouter, stability", "{0}", "sk-ant-api03-" + some(93)),
    ("anthropic, openai, openrouter, stability", "{0}", "sk-" + some(48)),
    ("groq, xai, perplexity, nvidia", "{0}", "nvapi-" + some(64)),
    ("replicate, runpod", "{0}", "r8_" + some(37)),
    ("langsmith", "{0}", "lsv2_pt_" + some(32, _HEX)),
    ("pinecone", "{0}", "pcsk_" + some(60)),
    ("kaggle", "{0}", "KGAT_" + _HEX_32),
    ("kaggle.json", '{{"username":"me","key":"{0}"}}', _HEX_32),
    ("json web token", "{0}", f"eyJ{some(20)}.{some(30)}.{some(30)}"),
    ("json in base64", "{0}", "eyJ" + some(80)),
    ("github", "{0}", "ghp_" + some(36)),
    ("github", "{0}", "github_pat_" + some(82)),
    ("gitlab", "{0}", "glpat-" + some(20)),
    ("bitbucket, jira", "{0}", "ATATT3" + some(60)),
    ("npm", "{0}", "npm_" + some(36)),
    ("npmrc", "//registry.npmjs.org/:_authToken={0}", "0123-abc"),
    ("pypi", "{0}", "pypi-AgEIcHlwaS5vcmc" + some(80)),
    ("rubygems, docker hub", "{0}", "dckr_pat_" + some(27)),
    ("artifactory", "{0}", "AKCp" + some(69)),
    ("slack", "{0}", "xoxb-" + some(24, string.digits)),
    ("slack", "{0}", "xapp-1-" + some(40)),
    ("discord bot", "{0}", f"M{some(24)}.{some(6)}.{some(27)}"),
    ("telegram bot", "{0}", f"{some(9, string.digits)}:{some(35)}"),
    ("twilio", "{0}", "SK" + _HEX_32),
    ("sendgrid", "{0}", f"SG.{some(22)}.{some(43)}"),
    ("mailchimp", "{0}", f"{_HEX_32}-us12"),
    ("mailgun", "{0}", "key-" + _HEX_32),
    ("stripe", "{0}", "sk_" + "live_" + some(24)),
    ("stripe", "{0}", "whsec_" + some(32)),
    ("square", "{0}", "sq0csp-" + some(43)),
    ("shopify", "{0}", "shpat_" + _HEX_32),
    ("vault, terraform", "{0}", "hvs." + some(90)),
    ("vault, terraform", "{0}", f"{some(14)}.atlasv1.{some(60)}"),
    ("doppler, pulumi", "{0}", "dp.pt." + some(43)),
    ("grafana", "{0}", "glsa_" + some(41)),
    ("new relic, sentry, postman", "{0}", "NRAK-" + some(27)),
    ("linear, notion, figma", "{0}", "lin_api_" + some(40)),
    ("planetscale, supabase, prefect", "{0}", "sbp_" + some(40, _HEX)),
    ("1password, age", "{0}", "AGE-SECRET-KEY-1" + some(58, string.ascii_uppercase)),
    ("openshift", "{0}", "sha256~" + some(43)),
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


def test_there_are_enough_and_each_pattern_has_its_own():
    assert len(SHAPES) >= 64
    assert {name for name, _, _ in SHAPES} == {pattern.name for pattern in PATTERNS}
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS)


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
    # What masks it is this pattern, and not another one that happens to fit.
    pattern = next(pattern for pattern in PATTERNS if pattern.name == name)
    assert not pattern.keywords or any(keyword in whole.lower() for keyword in pattern.keywords)


@pytest.mark.parametrize("pattern", PATTERNS, ids=[pattern.name for pattern in PATTERNS])
def test_each_pattern_is_needed(pattern, monkeypatch):
    """It masks one of its shapes by itself."""
    monkeypatch.setattr("lightning_sm._failure.failure_file.PATTERNS", (pattern,))
    assert any(
        secret not in redact_patterns(text.format(secret)) for name, text, secret in SHAPES if name == pattern.name
    )


@pytest.mark.parametrize("text", ORDINARY)
def test_what_is_no_secret_stays(text):
    assert redact_patterns(text) == text


_NASTY = {
    "base64": some(2000, _BASE64) * 8,
    "dotted": "a.b." * 4000,
    "names": "token_" * 2700,
    "options": "--token-" * 2000,
    "quotes": "password='" * 1600,
    "escapes": "password=\\'" * 1500,
    "urls": "http://a:" * 1800,
    "begins": "-----BEGIN PRIVATE KEY-----" * 600,
    "headers": "authorization: bearer " * 750,
    "addresses": "a:bc@" * 3200,
    "brackets": "token=[" * 2300,
    "spaces": ("token" + " " * 50) * 300,
    "prose": "the token of the author's key is not basic, " * 370,
    "elements": "token>a" * 2300,
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
    taken = []
    for _ in range(5):
        began = time.thread_time()
        redact_patterns(text)
        taken.append(time.thread_time() - began)
    return min(taken)


def test_nothing_is_compiled_before_there_is_a_reason():
    code = (
        "import re; compiled = []; whole = re.compile\n"
        "re.compile = lambda pattern, *flags: compiled.append(pattern) or whole(pattern, *flags)\n"
        "import lightning_sm._failure.report\n"
        "from lightning_sm._failure.secret_patterns import PATTERNS\n"
        "assert not {pattern.pattern for pattern in PATTERNS} & set(compiled)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
