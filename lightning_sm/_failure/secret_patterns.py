r"""Regular expressions of secrets, as data for ``failure_file``.

Patterns whose source is ``detect-secrets/…`` are the rules of that file of detect-secrets 1.5.0 (Yelp, Apache-2.0,
https://github.com/Yelp/detect-secrets), changed to match shorter secrets and to run in linear time. The others follow
the prefix and alphabet that the named vendor publishes.

Every pattern must run in linear time: it begins with a literal or a bounded repetition, and adjacent repetitions share
no character or are bounded.
"""

from dataclasses import dataclass
from typing import Tuple

__all__ = ["NAME", "PATTERNS", "SecretPattern"]


@dataclass(frozen=True)
class SecretPattern:
    """The format of one kind of secret.

    Args:
        name: The kind of secret.
        pattern: A regular expression. Its group ``secret``, or the whole match if there is none, is redacted.
        source: The rule or vendor that defines it.
        keywords: Lower-case words of which a text must contain one to be searched; empty to search every text.
    """

    name: str
    pattern: str
    source: str
    keywords: Tuple[str, ...] = ()


# Tokens of language models are not secrets: their counts, types and special tokens.
_TOKEN = (
    r"(?<!pad_)(?<!bos_)(?<!eos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!image_)(?<!start_)(?<!end_)(?<!max_)(?<!num_)"
    r"token(?!iz|s(?![a-z])|[ _-]?(?:type|ids?(?![a-z])|emb|len|dim|count|per|idx|index|class|level|drop|mask|size))"
)
# Matches names of hyperparameters, variables, options and fields that hold a secret.
NAME = (
    rf"(?:secret|{_TOKEN}|passw(?:or)?d|passphrase|credential|cookie(?!cutter|jar|_?polic)|(?<![a-z])auth(?![a-z])"
    r"|(?:api|access|private|signing|account|auth|encryption|master|service|client)[ _-]?key(?!s?_?(?:word|point)))"
)
_WORDS = ("secret", "token", "passw", "passphrase", "credential", "cookie", "auth", "key")
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
_OURS = "lightning_sm"

PATTERNS: Tuple[SecretPattern, ...] = tuple(
    SecretPattern(*row)
    for row in (
        # Key files, whole or the body alone, also with line breaks replaced by spaces or \n.
        (
            "private key block",
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"(?s:(?!-----END).)*(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
            "detect-secrets/private_key.py",
            ("private key",),
        ),
        ("putty key", r"(?s)PuTTY-User-Key-File-[23].*", "detect-secrets/private_key.py", ("putty-user-key-file",)),
        (
            "lines of base64",
            rf"(?<![A-Za-z0-9/+=]){_BASE64}{{60,76}}(?:(?:\\[rn]|\s){{1,4}}{_BASE64}{{60,76}})+"
            rf"(?:(?:\\[rn]|\s){{1,4}}{_BASE64}{{1,75}}(?![\w:]))?={{0,2}}(?:\s{{1,4}}=[A-Za-z0-9/+]{{4}}\b)?",
            _OURS,
        ),
        (
            "beginning of a private key in base64",
            rf"\b(?:MII[A-J]|MHcCAQ|MIGHAgEA|MC4CAQAwBQ|b3BlbnNzaC1rZXkt){_BASE64}{{16,}}={{0,2}}",
            _OURS,
            ("mii", "mhccaq", "mighagea", "mc4caqawbq", "b3blbnnzac1rzxkt"),
        ),
        # Users and passwords in URLs and addresses.
        (
            "user of a url",
            r"(?<=://)(?P<secret>[^\s/?#'\"<>]{1,400})(?=@)",
            "detect-secrets/basic_auth.py",
            ("://",),
        ),
        (
            "password with / or # in a url",
            # host:port is not user:password.
            r"(?<=://)(?!(?:[\w-]+\.[\w.-]+|localhost|algo-\d+|\[[\da-f:]+\]):\d{1,5}[/?#])"
            r"(?P<secret>[^\s/?#'\"<>:@]{0,100}:[^\s'\"<>@]{1,300})(?=@)",
            "detect-secrets/basic_auth.py",
            ("://",),
        ),
        (
            "user and password before a host",
            r"(?<![\w/:.@-])(?P<secret>[A-Za-z_][\w.-]{0,63}:[^\s/@:\"'()]{3,64})@(?!sha\d)[A-Za-z][\w-]*\.[\w.-]+",
            _OURS,
            ("@",),
        ),
        (
            "webhook",
            r"(?i)(?<=://)(?P<host>hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/|"
            r"[\w-]{1,60}\.webhook\.office\.com/)(?P<secret>[\w/@.-]+)",
            "detect-secrets/slack.py",
            ("hooks.slack.com", "webhook"),
        ),
        # Headers and requests.
        (
            "authorization",
            rf"(?i)authorization\\?[\"']?\s{{0,4}}[=:,]\s{{0,4}}\\?[\"']?{_SCHEME}\s{{1,4}}(?P<secret>[^\s\"'\\,;}}]+)",
            _OURS,
            ("authorization",),
        ),
        (
            "authorization of several parts",
            r"(?i)\b(?:digest|aws4-hmac-sha256)\s{1,4}(?P<secret>\w{1,40}=[^\r\n}]+)",
            _OURS,
            ("authorization",),
        ),
        (
            "authorization without a scheme",
            r"(?i)authorization\\?[\"']?\s{0,4}[=:]\s{0,4}\\?[\"']?(?P<secret>(?=\S{0,60}\d)[\w~+/=.-]{16,})",
            _OURS,
            ("authorization",),
        ),
        (
            "scheme of an authorization",
            r"(?i)\b(?:bearer|negotiate|ssws)\s{1,4}(?P<secret>(?=\S{0,60}[\d=_~+])[\w.~+/=-]{8,})",
            _OURS,
            ("bearer", "negotiate", "ssws"),
        ),
        (
            "user and password in base64",
            r"\b[Bb]asic\s{1,4}(?P<secret>(?=\S{0,60}[A-Z])(?=\S{0,60}[a-z])(?=\S{0,60}[\d=])[A-Za-z0-9+/]{8,}={0,2})(?![\w.])",
            "detect-secrets/basic_auth.py",
            ("basic",),
        ),
        (
            "cookie header",
            r"(?i)\b(?:set-)?cookie\\?[\"']?\s{0,4}:\s{0,4}\\?[\"']?(?P<secret>[\w.%-]{1,100}=[^\"'\\\r\n}]+)",
            _OURS,
            ("cookie",),
        ),
        (
            "signature in a query",
            r"(?i)(?:(?<![a-z])sig|signature)=(?P<secret>[\w%+/=.~-]{2,})",
            _OURS,
            ("sig=", "signature="),
        ),
        (
            "password of a connection string",
            r"(?i);\s{0,4}pwd=(?P<secret>[^;\s\"']+)",
            "detect-secrets/keyword.py",
            ("pwd=",),
        ),
        # Values next to a name that indicates a secret.
        ("quoted value of a name", rf"{_NAMED}{_QUOTED}", "detect-secrets/keyword.py", _WORDS),
        ("value of a name in quoted json", rf"{_NAMED}{_ESCAPED}", "detect-secrets/keyword.py", _WORDS),
        ("value of a name", rf"{_NAMED}{_BARE}", "detect-secrets/keyword.py", _WORDS),
        ("values of a name", rf"{_NAMED}[\[({{](?P<secret>[^\])}}\r\n]+)", "detect-secrets/keyword.py", _WORDS),
        ("quoted option", rf"{_OPTION}{_QUOTED}", _OURS, _WORDS),
        ("option", rf"{_OPTION}(?!-){_BARE}", _OURS, _WORDS),
        ("element", rf"(?i){NAME}[\w-]{{0,40}}>(?P<secret>[^<>\r\n]+)</", _OURS, _WORDS),
        (
            "quoted password",
            rf"(?i)(?:passw(?:or)?d|passphrase|(?:api|access|private)[ _-]key)\s{{1,4}}(?:is\s{{1,4}})?{_QUOTED}",
            _OURS,
            ("passw", "passphrase", "key"),
        ),
        (
            "netrc",
            r"(?i)\b(?:login|user|account|machine|default)\s{1,20}(?:\S{1,200}\s{1,20})?password\s{1,20}(?P<secret>\S+)",
            _OURS,
            ("password",),
        ),
        (
            "user and password of curl",
            r"(?<!\S)(?:-u|--user)[ =]{1,4}[\"']?(?P<secret>[^\s:\"']{1,100}:[^\s\"']+)",
            _OURS,
            ("-u",),
        ),
        (
            "basic authentication object",
            r"(?i)\b(?:http)?(?:basic|digest)auth\((?P<secret>[^)\r\n]+)",
            _OURS,
            ("auth(",),
        ),
        # Cloud providers.
        ("aws access key", r"\b(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{12,}\b", "detect-secrets/aws.py"),
        (
            "aws secret access key",
            rf"(?<![A-Za-z0-9/+=])(?=\S{{0,39}}[A-Z])(?=\S{{0,39}}[g-z])(?=\S{{0,39}}\d){_BASE64}{{40}}(?![A-Za-z0-9/+=])",
            "detect-secrets/aws.py",
        ),
        (
            "long base64",
            rf"(?<![A-Za-z0-9/+_=-])(?=[a-z0-9/+_-]{{0,99}}[A-Z])(?=[A-Za-z/+_-]{{0,99}}\d){_BASE64}{{100,}}={{0,2}}",
            _OURS,
        ),
        ("bedrock key", r"\b(?:ABSK|bedrock-api-key-)[A-Za-z0-9+/=_-]{32,}", "AWS", ("absk", "bedrock-api-key-")),
        (
            "azure storage key",
            r"(?i)\b(?:account|shared\w{0,20})key=(?P<secret>[^;\s\"'&]+)",
            "detect-secrets/azure_storage_key.py",
            ("key=",),
        ),
        ("azure client secret", r"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,34}", "Microsoft", ("q~",)),
        ("google api key", r"\bAIza[\w-]{30,}", "Google", ("aiza",)),
        ("google oauth token", r"\bya29\.[\w.-]{20,}", "Google", ("ya29.",)),
        ("google client secret", r"\bGOCSPX-[\w-]{20,}", "Google", ("gocspx-",)),
        ("google refresh token", r"(?<![\w/:])1//0[\w-]{24,}", "Google", ("1//0",)),
        ("alibaba access key", r"\bLTAI[A-Za-z0-9]{12,}", "Alibaba", ("ltai",)),
        ("digital ocean", r"\bdo[opr]_v1_[a-f0-9]{32,}", "DigitalOcean", ("_v1_",)),
        ("heroku", r"\bHRKU-[\w-]{20,}", "Heroku", ("hrku-",)),
        # Experiment trackers, model hubs and data platforms.
        ("wandb", r"\bwandb_v1_[\w-]{20,}", "Weights & Biases", ("wandb_v1_",)),
        # A digest has the same format; the words around it tell them apart.
        (
            "wandb or other key of 40 hexadecimal digits",
            r"(?<![\w/.@#+-])(?:local-)?[a-f0-9]{40}(?![\w/+=-]|\.\w)",
            "Weights & Biases",
        ),
        ("hugging face", r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}", "Hugging Face", ("hf_", "api_org_")),
        ("databricks", r"\b(?:dapi|dose|dkea)[a-f0-9]{32}(?:-\d)?\b", "Databricks", ("dapi", "dose", "dkea")),
        (
            "anthropic, openai, openrouter, stability",
            r"\bsk-(?=[\w-]{0,80}\d)[\w-]{16,}",
            "detect-secrets/openai.py",
            ("sk-",),
        ),
        (
            "groq, xai, perplexity, nvidia",
            r"\b(?:gsk_|xai-|pplx-|nvapi-)[\w-]{20,}",
            "the vendors",
            ("gsk_", "xai-", "pplx-", "nvapi-"),
        ),
        ("replicate, runpod", r"\b(?:r8|rpa)_[A-Za-z0-9]{30,}", "the vendors", ("r8_", "rpa_")),
        ("langsmith", r"\blsv2_(?:pt|sk)_[\w]{20,}", "LangChain", ("lsv2_",)),
        ("pinecone", r"\bpcsk_[\w]{20,}", "Pinecone", ("pcsk_",)),
        ("kaggle", r"\bKGAT_[A-Za-z0-9]{20,}", "Kaggle", ("kgat_",)),
        (
            "kaggle.json",
            r"\"username\"\s{0,4}:\s{0,4}\"[^\"]{1,100}\"\s{0,4},\s{0,4}\"key\"\s{0,4}:\s{0,4}\"(?P<secret>[^\"]+)",
            "Kaggle",
            ('"key"',),
        ),
        ("json web token", r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", "detect-secrets/jwt.py", ("eyj",)),
        ("json in base64", r"\beyJ[\w+/-]{40,}={0,2}", "neptune.ai, Grafana", ("eyj",)),
        # Code hosts and package registries.
        (
            "github",
            r"\b(?:gh[pousr]_[A-Za-z0-9_]{16,}|github_pat_\w{16,})",
            "detect-secrets/github_token.py",
            ("gh", "github_pat_"),
        ),
        (
            "gitlab",
            r"\b(?:gl(?:pat|dt|ft|soat|rt|imt|ptt|agent|oas|ffct)-[\w-]{16,}|glcbt-[\w-]{16,}|GR1348941[\w-]{16,})",
            "detect-secrets/gitlab_token.py",
            ("gl", "gr1348941"),
        ),
        ("bitbucket, jira", r"\bAT[ABCT](?:TT3|BB)[\w=-]{16,}", "Atlassian", ("attt3", "tatt3", "atbb", "tbb")),
        ("npm", r"\bnpm_[A-Za-z0-9]{20,}", "detect-secrets/npm.py", ("npm_",)),
        (
            "npmrc",
            r"(?i):_(?:auth(?:token)?|password)\s{0,4}=\s{0,4}\"?(?P<secret>[^\s\"]+)",
            "detect-secrets/npm.py",
            (":_",),
        ),
        ("pypi", r"\bpypi-AgE[\w-]{16,}", "detect-secrets/pypi_token.py", ("pypi-age",)),
        ("rubygems, docker hub", r"\b(?:rubygems_|dckr_(?:pat|oat)_)[\w-]{20,}", "the vendors", ("rubygems_", "dckr_")),
        (
            "artifactory",
            r"\b(?:AKCp?[A-Za-z0-9]{10,}|AP[0-9A-F](?=[A-Za-z0-9]{0,20}\d)[A-Za-z0-9]{20,}|cmVmd[A-Za-z0-9]{40,})",
            "detect-secrets/artifactory.py",
            ("akc", "ap", "cmvmd"),
        ),
        # Messaging and payments.
        ("slack", r"\bx(?:ox[a-z]|app)-[\w-]{10,}", "detect-secrets/slack.py", ("xox", "xapp-")),
        ("discord bot", r"\b(?=\S{0,60}\d)[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}", "detect-secrets/discord.py"),
        ("telegram bot", r"\b\d{8,10}:[\w-]{35}(?![\w-])", "detect-secrets/telegram_token.py", (":",)),
        ("twilio", r"\b(?:AC|SK)[a-f0-9]{32}\b", "detect-secrets/twilio.py", ("ac", "sk")),
        ("sendgrid", r"\bSG\.[\w-]{16,}\.[\w-]{16,}", "detect-secrets/sendgrid.py", ("sg.",)),
        ("mailchimp", r"\b[0-9a-f]{32}-us\d{1,2}\b", "detect-secrets/mailchimp.py", ("-us",)),
        ("mailgun", r"\bkey-[a-f0-9]{32}\b", "Mailgun", ("key-",)),
        (
            "stripe",
            r"\b(?:(?:[rsp]k|sess)_(?:live|test)_|whsec_)[A-Za-z0-9]{10,}",
            "detect-secrets/stripe.py",
            ("_live_", "_test_", "whsec_"),
        ),
        (
            "square",
            r"\b(?:sq0(?:csp|atp|idp)-[\w\\-]{22,}|EAAA[\w-]{50,})",
            "detect-secrets/square_oauth.py",
            ("sq0", "eaaa"),
        ),
        ("shopify", r"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}\b", "Shopify", ("shp",)),
        # Infrastructure and monitoring.
        (
            "vault, terraform",
            r"\b(?:hv[sbr]\.[\w-]{20,}|[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{40,})",
            "HashiCorp",
            ("hvs.", "hvb.", "hvr.", ".atlasv1."),
        ),
        ("doppler, pulumi", r"\b(?:dp\.[a-z]{2,6}\.[\w.-]{30,}|pul-[a-f0-9]{32,})", "the vendors", ("dp.", "pul-")),
        ("grafana", r"\bgl(?:sa|c)_[\w+/=-]{20,}", "Grafana", ("glsa_", "glc_")),
        (
            "new relic, sentry, postman",
            r"\b(?:NRAK-|sntrys_|sntryu_|PMAK-)[\w+/=-]{20,}",
            "the vendors",
            ("nrak-", "sntry", "pmak-"),
        ),
        (
            "linear, notion, figma",
            r"\b(?:lin_api_|ntn_|secret_|figd_)(?=[\w-]{0,60}\d)[\w-]{30,}",
            "the vendors",
            ("lin_api_", "ntn_", "secret_", "figd_"),
        ),
        (
            "planetscale, supabase, prefect",
            r"\b(?:pscale_\w{2,5}_|sbp_|pn[ub]_)[\w.-]{30,}",
            "the vendors",
            ("pscale_", "sbp_", "pnu_", "pnb_"),
        ),
        (
            "1password, age",
            r"\b(?:ops_eyJ[\w+/-]{40,}|AGE-SECRET-KEY-1[A-Z0-9]{40,})",
            "the vendors",
            ("ops_eyj", "age-secret-key-1"),
        ),
        ("openshift", r"\bsha256~[\w-]{43}", "Red Hat", ("sha256~",)),
    )
)
