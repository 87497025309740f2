r"""Regular expressions of secrets, as data for ``redact``.

Patterns with a comment ``detect-secrets/…`` are the rules of that file of detect-secrets 1.5.0 (Yelp, Apache-2.0,
https://github.com/Yelp/detect-secrets), changed to match shorter secrets and to run in linear time. The others follow
the prefix that the named vendor publishes.

Every pattern must run in linear time: it begins with a literal or a bounded repetition, and adjacent repetitions share
no character or are bounded.
"""

from typing import Dict

__all__ = ["NAME", "PATTERNS", "PREFIXES"]

# Tokens of models are not secrets: their counts, types and special tokens, and what is done with them.
_TOKEN = (
    r"(?<!pad_)(?<!bos_)(?<!eos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!image_)(?<!start_)(?<!end_)(?<!max_)(?<!num_)"
    r"token(?!iz|s(?![a-z])|[ _-]?(?:type|ids?(?![a-z])|emb|len|dim|count|per|idx|index|class|level|drop|mask|size)"
    r"|[_-]?(?:mix(?:er|ing|up)|pool|merg[ei]))"
)
# Matches names of hyperparameters, variables, options and fields that hold a secret.
NAME = (
    rf"(?:secret|{_TOKEN}|passw(?:or)?d|passphrase|credential|cookie(?!cutter|jar|_?polic)|(?<![a-z])auth(?![a-z])"
    r"|(?:api|access|private|signing|account|auth|encryption|master|service|client)[ _-]?key(?!s?_?(?:word|point)))"
)
# Words that follow such a name without being its value: constants of Python and JSON, types, words of error messages.
_NO_VALUE = (
    r"(?!(?:none|null|true|false|str|int|float|bool|bytes|any|dict|list|optional|union|expected|invalid|required|missing"
    r"|field|must|not|no|is|are|was|has|cannot|ignored|unknown|and|or)(?:[\[\s,.;:)}\]|]|$))"
)
_BARE = rf"{_NO_VALUE}(?P<secret>[^\s\"'`,;&()\[\]{{}}<>]+)"
# A quoted value may contain spaces and commas: it extends to the closing quote or to the end of the line.
_QUOTED = r"(?:br?|rb?|f|u)?(?P<quote>[\"'`])(?P<secret>(?:\\[^\r\n]|(?!(?P=quote))[^\\\r\n])+)"
_ESCAPED = r"\\(?P<quote>[\"'])(?P<secret>(?:(?!\\(?P=quote))[^\r\n])+)"
_IS = r"(?:\s{1,4}provided)?\\?[\"'`]?\]?\s{0,4}(?:=>|:=|={1,2}|:)\s{0,4}"
_NAMED = rf"(?i){NAME}[\w-]{{0,40}}{_IS}"
_OPTION = rf"(?i)(?<![\w-])--?[\w.-]{{0,60}}?{NAME}[\w-]{{0,40}}(?:\s{{1,8}}|[\"']\s{{0,4}},\s{{0,4}})"
_SCHEME = r"(?:basic|bearer|token|digest|apikey|negotiate|ssws|aws4-hmac-sha256)"
_BASE64 = r"[A-Za-z0-9/+]"

#: Prefixes of tokens, as regular expressions, by vendor.
PREFIXES = {
    "AWS": "ABSK|bedrock-api-key-",
    "Alibaba": "LTAI",
    "Anthropic, OpenAI, OpenRouter": "sk-",
    "Atlassian": "ATATT3",
    "Databricks": "dapi",
    "DigitalOcean": "dop_v1_",
    "Docker Hub": r"dckr_(?:pat|oat)_",
    "GitHub": r"gh[pousr]_|github_pat_",
    "GitLab": r"gl(?:pat|dt|rt|ptt|cbt)-",
    "Google": r"AIza|ya29\.|GOCSPX-",
    "Grafana": "glsa_|glc_",
    "Groq, Perplexity, xAI": "gsk_|pplx-|xai-",
    "HashiCorp": r"hv[sbr]\.",
    "Hugging Face": "hf_|api_org_",
    "Kaggle": "KGAT_",
    "LangChain": "lsv2_",
    "NVIDIA": "nvapi-",
    "Pinecone": "pcsk_",
    "PyPI, npm": "pypi-|npm_",
    "Replicate": "r8_",
    "SendGrid": r"SG\.",
    "Slack": r"xox[a-z]-|xapp-",
    "Stripe": r"[rsp]k_(?:live|test)_|whsec_",
    "Weights & Biases": "wandb_v1_",
}

#: By the kind of secret. The group ``secret``, or the whole match if there is none, is redacted.
PATTERNS: Dict[str, str] = {
    # Also with line breaks replaced by spaces or \n, and without an end.
    # detect-secrets/private_key.py
    "private key": (
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?s:(?!-----END).)*(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
    ),
    # detect-secrets/basic_auth.py
    "user of a url": r"(?<=://)(?P<secret>[^\s/?#'\"<>]{1,400})(?=@)",
    # detect-secrets/basic_auth.py
    # host:port is not user:password.
    "password with / or # in a url": (
        r"(?<=://)(?!(?:[\w-]+\.[\w.-]+|localhost|algo-\d+|\[[\da-f:]+\]):\d{1,5}[/?#])"
        r"(?P<secret>[^\s/?#'\"<>:@]{0,100}:[^\s'\"<>@]{1,300})(?=@)"
    ),
    # detect-secrets/slack.py
    "webhook": (
        r"(?i)(?<=://)(?P<host>hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/|"
        r"[\w-]{1,60}\.webhook\.office\.com/)(?P<secret>[\w/@.-]+)"
    ),
    # RFC 9110
    "authorization": (
        rf"(?i)authorization\\?[\"']?\s{{0,4}}[=:,]\s{{0,4}}\\?[\"']?{_SCHEME}\s{{1,4}}(?P<secret>[^\"'\\\r\n}}]+)"
    ),
    # RFC 6750
    "bearer": r"(?i)\b(?:bearer|authorization:)\s{1,4}(?P<secret>(?=\S{0,60}[\d=_~+])[\w.~+/=-]{8,})",
    # AWS, Microsoft: presigned URLs
    "signature in a query": r"(?i)(?:(?<![a-z])sig|signature)=(?P<secret>[\w%+/=.~-]{2,})",
    # detect-secrets/keyword.py
    "password of a connection string": r"(?i);\s{0,4}pwd=(?P<secret>[^;\s\"']+)",
    # Values next to a name that indicates a secret: detect-secrets/keyword.py
    "quoted value of a name": rf"{_NAMED}{_QUOTED}",
    "value of a name in quoted json": rf"{_NAMED}{_ESCAPED}",
    "value of a name": rf"{_NAMED}{_BARE}",
    "values of a name": rf"{_NAMED}[\[({{](?P<secret>[^\])}}\r\n]+)",
    "quoted option": rf"{_OPTION}{_QUOTED}",
    "option": rf"{_OPTION}(?!-){_BARE}",
    # Formats of tokens: detect-secrets/aws.py
    "aws access key": r"\b(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{12,}\b",
    "aws secret access key": (
        rf"(?<![A-Za-z0-9/+=])(?=\S{{0,39}}[A-Z])(?=\S{{0,39}}[g-z])(?=\S{{0,39}}\d){_BASE64}{{40}}(?![A-Za-z0-9/+=])"
    ),
    # AWS: session tokens; bodies of key files
    "long base64": (
        rf"(?<![A-Za-z0-9/+_=-])(?=[a-z0-9/+_-]{{0,99}}[A-Z])(?=[A-Za-z/+_-]{{0,99}}\d){_BASE64}{{60,}}={{0,2}}"
    ),
    # detect-secrets/jwt.py
    "json web token": r"\beyJ[\w+/=.-]{16,}",
    # detect-secrets/github_token.py, …; the vendors of PREFIXES
    "token with a prefix": rf"(?<![A-Za-z0-9])(?:{'|'.join(PREFIXES.values())})(?=[\w+/=.-]{{0,80}}\d)[\w+/=.-]{{16,}}",
    # Weights & Biases
    "40 hexadecimal digits": r"(?<![\w/.@#+-])(?:local-)?[a-f0-9]{40}(?![\w/+=-]|\.\w)",
}
