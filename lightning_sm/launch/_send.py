"""Sends a request: uploads the source archive, then creates the training job, with boto3."""

import json
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from lightning_sm.errors import LaunchError
from lightning_sm.launch._request import Account, Request
from lightning_sm.launch._settings import LaunchSettings, refuse_missing
from lightning_sm.launch._upload import bucket_and_key, upload_folder

__all__ = ["SentJob", "account_of", "api_errors", "clients", "is_missing", "is_transient"]
__all__ += ["make_default_bucket", "send", "session_for"]

# The record of a save.
_RECORD = re.compile(r"/fit-\d+/step-[\d-]+\.json$")
_EXTRA = "pip install 'lightning-sm[launch]'"
_DENIED = ("AccessDenied", "AccessDeniedException", "403", "Forbidden", "UnauthorizedOperation")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
_UNKNOWN = ("InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_THROTTLED = ("Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown")
_BROKEN = ("InternalFailure", "InternalError", "ServiceUnavailable", "ServiceUnavailableException")
_NETWORK = "Check the network, the region and AWS_ENDPOINT_URL."
# What AccessDenied names: for CreateTrainingJob it may be iam:PassRole.
_ACTION = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
_LONGEST = 400


@dataclass(frozen=True)
class SentJob:
    """A job that was created.

    Args:
        name: The name of the job.
        arn: Its ARN.
        region: Its region.
        kind: ``TrainingJob`` or ``HyperParameterTuningJob``.
    """

    name: str
    arn: str
    region: str
    kind: str = "TrainingJob"

    @property
    def console_url(self) -> str:
        """The page of the job in AWS's console."""
        page = "jobs" if self.kind == "TrainingJob" else "hyper-tuning-jobs"
        return f"https://{self.region}.console.aws.amazon.com/sagemaker/home?region={self.region}#/{page}/{self.name}"

    def show(self, *, as_json: bool) -> str:
        """Return the text that a command prints of the job."""
        if as_json:
            shown = {"name": self.name, "arn": self.arn, "region": self.region, "console": self.console_url}
            return json.dumps(shown, indent=2)
        what = "Training" if self.kind == "TrainingJob" else "Tuning"
        return f"{what} job {self.name} in {self.region}: {self.console_url}"


def session_for(settings: LaunchSettings) -> Any:
    """Return a boto3 session for a job.

    Raises:
        LaunchError: boto3 is missing, or settings are that every job needs, the region among them; all are named.
    """
    session = _session(settings.region)
    refuse_missing(settings, () if session.region_name else ("--region",))
    return session


def clients(region: Optional[str]) -> Any:
    """Return a boto3 session.

    Environment variables and files: those of boto3 (``AWS_PROFILE``, ``AWS_REGION``, ``~/.aws/config``, …).

    Args:
        region: The region; by default that of the AWS configuration.

    Raises:
        LaunchError: boto3 is missing, or there is no region.
    """
    session = _session(region)
    if not session.region_name:
        raise LaunchError("There is no AWS region.", hint="Give --region, or set AWS_REGION.")
    return session


def _session(region: Optional[str]) -> Any:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise LaunchError("The package boto3 is missing, which sends the request.", hint=_EXTRA) from error
    try:
        return boto3.Session(region_name=region)
    except BotoCoreError as error:
        raise LaunchError(f"AWS's configuration cannot be used: {error}.", hint="Check AWS_PROFILE.") from error


def account_of(settings: LaunchSettings, session: Any) -> Account:
    """Return region and bucket; the default bucket's name needs one call of STS.

    Raises:
        LaunchError: The call failed.
    """
    if settings.bucket:
        return Account(session.region_name, settings.bucket.replace("s3://", "", 1).strip("/"))
    with api_errors("sts:GetCallerIdentity", hint="Give --bucket, which needs no such call."):
        number = session.client("sts").get_caller_identity()["Account"]
    return Account(session.region_name, f"sagemaker-{session.region_name}-{number}", str(number))


def make_default_bucket(account: Account, session: Any) -> None:
    """Make the default bucket, private as S3 makes every bucket, if the account has none, as SageMaker's SDKs do.

    Raises:
        LaunchError: It cannot be made.
    """
    from botocore.exceptions import ClientError

    if account.number is None:
        return
    client, bucket = session.client("s3"), account.bucket
    try:
        client.head_bucket(Bucket=bucket)
        return
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
            return  # it is there, or the upload says what is wrong
    place = {"CreateBucketConfiguration": {"LocationConstraint": account.region}}
    with api_errors(f"s3:CreateBucket for {bucket}", hint="Give a bucket of yours: --bucket."):
        client.create_bucket(Bucket=bucket, **({} if account.region == "us-east-1" else place))
    print(f"Made the bucket {bucket}: private, the default one of SageMaker's SDKs, too.", file=sys.stderr)


def send(
    request: Request,
    archive: Optional[Path],
    session: Any,
    *,
    owner: Optional[str] = None,
    start: Optional[str] = None,
    data: Sequence[Tuple[str, str]] = (),
) -> SentJob:
    """Upload the source archive and create the training or tuning job.

    A name that is taken is refused before anything is uploaded.

    Args:
        request: The request.
        archive: The source archive; ``None`` if it is uploaded already.
        session: A boto3 session.
        owner: The account that must own the bucket of the archive, where its name can be guessed.
        start: Checkpoints of another job that this one starts from. They are copied to this job's prefix, within S3.
        data: Local folders of channels, and the addresses that they are uploaded to.

    Raises:
        LaunchError: A call of the API failed; then there is no job.
    """
    client = session.client("sagemaker")
    _refuse_taken_name(client, request)
    region = session.region_name
    if start is not None:
        _copy_checkpoints(start, request.as_body()["CheckpointConfig"]["S3Uri"], session)
    owned = {"ExpectedBucketOwner": owner} if owner else {}
    for folder, address in data:
        with api_errors(f"s3:PutObject to {address}"):
            upload_folder(Path(folder), address, session, owned)
    if archive is not None:
        bucket, key = bucket_and_key(request.archive_uri)
        with api_errors(
            f"s3:PutObject to {request.archive_uri}", hint=f"Check that the bucket {bucket} is in {region}."
        ):
            session.client("s3").upload_file(str(archive), bucket, key, ExtraArgs=owned)
    with api_errors(f"sagemaker:Create{request.kind} for {request.name}"):
        arn = str(_method(client, f"Create{request.kind}")(**request.as_body())[f"{request.kind}Arn"])
    return SentJob(request.name, arn, str(region), request.kind)


def _copy_checkpoints(start: str, to: str, session: Any) -> None:
    client = session.client("s3")
    bucket, prefix = bucket_and_key(f"{start.rstrip('/')}/")
    to_bucket, to_prefix = bucket_and_key(to.rstrip("/"))
    names: List[str] = []
    with api_errors(f"s3:ListBucket of {start}"):
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            names += [each["Key"][len(prefix) :] for each in page.get("Contents", ())]
    if not any(_RECORD.search(name) for name in names):
        raise LaunchError(
            f"--from-checkpoint {start} holds no save of a job (…/fit-0/step-N.json).",
            hint="Give the checkpoints of the other job, the S3Uri of its CheckpointConfig.",
        )
    for name in names:
        target = f"{to_prefix}/{name}"
        with api_errors(f"s3:CopyObject of s3://{bucket}/{prefix}{name} to s3://{to_bucket}/{target}"):
            client.copy({"Bucket": bucket, "Key": f"{prefix}{name}"}, to_bucket, target)


def _method(client: Any, operation: str) -> Callable[..., Dict[str, Any]]:
    from botocore import xform_name

    method: Callable[..., Dict[str, Any]] = getattr(client, xform_name(operation))
    return method


def _refuse_taken_name(client: Any, request: Request) -> None:
    from botocore.exceptions import ClientError

    try:
        with api_errors(f"sagemaker:Describe{request.kind}", passes=is_missing):
            found = _method(client, f"Describe{request.kind}")(**{f"{request.kind}Name": request.name})
            state = found[f"{request.kind}Status"]
    except ClientError:
        return
    what = "training job" if request.kind == "TrainingJob" else "tuning job"
    raise LaunchError(
        f"There is a {what} {request.name!r} already ({state}).",
        hint="Leave --name out, or give another name.",
    )


def is_missing(error: Any) -> bool:
    """Whether an error of the service says that there is no job of that name."""
    code, text = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
    return code in ("ValidationException", "ResourceNotFound") and "not" in text.lower()


@contextmanager
def api_errors(call: str, *, hint: str = "", passes: Callable[[Any], bool] = lambda _: False) -> Iterator[None]:
    """Raise one error that names the API call and what to do where AWS's SDK raises its own.

    Args:
        call: The call, as IAM names it, and what it is for.
        hint: What to do, where the error itself does not tell.
        passes: Which errors of the service are raised as they are.

    Raises:
        LaunchError: The call failed.
    """
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise LaunchError(
            f"{call} failed: {error}.", hint="Set AWS_PROFILE, or log in with `aws sso login` or `aws configure`."
        ) from error
    except (ResponseParserError, KeyError) as error:
        raise LaunchError(
            f"{call} failed: the answer is not AWS's ({_shortened(error)}).",
            hint="Check HTTPS_PROXY and AWS_ENDPOINT_URL.",
        ) from error
    except (ClientError, BotoCoreError, Boto3Error) as error:
        # boto3's transfers raise errors of their own for those of the service.
        refused = error if isinstance(error, ClientError) else error.__context__
        if not isinstance(refused, ClientError):
            raise LaunchError(f"{call} failed: {_shortened(error)}.", hint=_NETWORK) from error
        if passes(refused):
            raise
        advice = _advice(refused, call) or hint or "AWS's message says why."
        raise LaunchError(f"{call} failed: {_shortened(error)}.", hint=advice) from error


def _shortened(error: BaseException) -> str:
    """The message of an error in one line. A proxy answers with whole pages."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def is_transient(error: Any) -> bool:
    """Whether an error is one that another try may not have: too many calls, the network, the service itself."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    if isinstance(error, ClientError):
        return error.response.get("Error", {}).get("Code") in (*_THROTTLED, *_BROKEN)
    return isinstance(error, (ConnectionError, HTTPClientError))


def _advice(error: Any, call: str) -> Optional[str]:
    code, message = str(error.response.get("Error", {}).get("Code", "")), str(error)
    # An error of the service has a code.
    if code in ("", "Unknown") or "<html" in message.lower():
        return "The answer is a page and not AWS's: check HTTPS_PROXY and AWS_ENDPOINT_URL."
    if code in _DENIED:
        action = _ACTION.search(message)
        return f"The credentials need the permission {action[1] if action else call.partition(' ')[0]}."
    if code in _EXPIRED:
        return "The credentials have expired: log in again."
    if code in _UNKNOWN:
        return "AWS does not know these credentials: check AWS_PROFILE and AWS_ACCESS_KEY_ID."
    if code in _THROTTLED:
        return "AWS limits the calls of this account: try again in a minute."
    if code in ("PermanentRedirect", "301", "IllegalLocationConstraintException"):
        return "The bucket is in another region: give --region or --bucket."
    if code == "NoSuchBucket":
        return "Make it with `aws s3 mb`, name another as --bucket, or leave --bucket out: the default one is made."
    if code == "ResourceLimitExceeded":
        return "Ask for a higher quota of this instance type in AWS's Service Quotas."
    return None
