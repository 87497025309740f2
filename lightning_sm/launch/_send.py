"""Sends a request: uploads the source archive, then creates the training job, with boto3."""

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from lightning_sm.errors import LaunchError
from lightning_sm.launch._request import Account, JobRequest, Request
from lightning_sm.launch._settings import LaunchSettings

__all__ = ["SentJob", "account_of", "api_errors", "bucket_and_key", "clients", "is_throttled", "send"]

# The record of a save.
_RECORD = re.compile(r"/fit-\d+/step-[\d-]+\.json$")
_EXTRA = "pip install 'lightning-sm[launch]'"
_DENIED = ("AccessDenied", "AccessDeniedException", "403", "Forbidden", "UnauthorizedOperation")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
_UNKNOWN = ("InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_THROTTLED = ("Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown")


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


def clients(region: Optional[str]) -> Tuple[Any, str]:
    """Return a boto3 session and its region.

    Environment variables and files: those of boto3 (``AWS_PROFILE``, ``AWS_REGION``, ``~/.aws/config``, …).

    Args:
        region: The region; by default that of the AWS configuration.

    Raises:
        LaunchError: boto3 is missing, or there is no region.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise LaunchError("The package boto3 is missing, which sends the request.", hint=_EXTRA) from error
    try:
        session = boto3.Session(region_name=region)
    except BotoCoreError as error:
        raise LaunchError(f"AWS's configuration cannot be used: {error}.", hint="Check AWS_PROFILE.") from error
    if not session.region_name:
        raise LaunchError("There is no AWS region.", hint="Give --region, or set AWS_REGION.")
    return session, str(session.region_name)


def account_of(settings: LaunchSettings, session: Any) -> Account:
    """Return region and bucket; the default bucket's name needs one call of STS.

    Raises:
        LaunchError: The call failed.
    """
    if settings.bucket:
        return Account(session.region_name, settings.bucket.replace("s3://", "", 1).strip("/"))
    with api_errors("sts:GetCallerIdentity", hint="Give --bucket, which needs no such call."):
        number = session.client("sts").get_caller_identity()["Account"]
    return Account(session.region_name, f"sagemaker-{session.region_name}-{number}")


def send(request: Request, archive: Path, session: Any) -> SentJob:
    """Upload the source archive and create the training or tuning job.

    A name that is taken is refused before anything is uploaded.

    Checkpoints of another job that this one starts from are copied to this job's prefix, within S3.

    Args:
        request: The request.
        archive: The source archive.
        session: A boto3 session.

    Raises:
        LaunchError: A call of the API failed; then there is no job.
    """
    client = session.client("sagemaker")
    _refuse_taken_name(client, request)
    bucket, key = bucket_and_key(request.archive_uri)
    region = session.region_name
    if isinstance(request, JobRequest):
        _copy_checkpoints(request, session)
    with api_errors(f"s3:PutObject to {request.archive_uri}", hint=f"Check that the bucket {bucket} is in {region}."):
        session.client("s3").upload_file(str(archive), bucket, key)
    with api_errors(f"sagemaker:Create{request.kind} for {request.name}"):
        created = _method(client, f"Create{request.kind}")(**request.as_body())
    return SentJob(request.name, str(created[f"{request.kind}Arn"]), str(region), request.kind)


def _copy_checkpoints(request: JobRequest, session: Any) -> None:
    start = request.settings.from_checkpoint
    if start is None:
        return
    client = session.client("s3")
    bucket, prefix = bucket_and_key(f"{start.rstrip('/')}/")
    to_bucket, to_prefix = bucket_and_key(request.as_body()["CheckpointConfig"]["S3Uri"].rstrip("/"))
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


def bucket_and_key(uri: str) -> Tuple[str, str]:
    """Split an ``s3://`` address."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


def _method(client: Any, operation: str) -> Callable[..., Dict[str, Any]]:
    from botocore import xform_name

    method: Callable[..., Dict[str, Any]] = getattr(client, xform_name(operation))
    return method


def _refuse_taken_name(client: Any, request: Request) -> None:
    from botocore.exceptions import ClientError

    try:
        with api_errors(f"sagemaker:Describe{request.kind}", passes=_is_missing):
            found = _method(client, f"Describe{request.kind}")(**{f"{request.kind}Name": request.name})
    except ClientError:
        return
    what = "training job" if request.kind == "TrainingJob" else "tuning job"
    raise LaunchError(
        f"There is a {what} {request.name!r} already ({found[f'{request.kind}Status']}).",
        hint="Leave --name out, or give another name.",
    )


def _is_missing(error: Any) -> bool:
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

    try:
        yield
    except ClientError as error:
        if passes(error):
            raise
        advice = _advice(error, call) or hint or "AWS's message says why."
        raise LaunchError(f"{call} failed: {error}.", hint=advice) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise LaunchError(
            f"{call} failed: {error}.", hint="Set AWS_PROFILE, or log in with `aws sso login` or `aws configure`."
        ) from error
    except (BotoCoreError, Boto3Error) as error:
        cause = error.__context__ if isinstance(error.__context__, ClientError) else None
        known = _advice(cause, call) if cause is not None else None
        raise LaunchError(
            f"{call} failed: {error}.", hint=known or hint or "Check the network, the region and AWS_ENDPOINT_URL."
        ) from error


def is_throttled(error: Any) -> bool:
    """Whether an error of the service says that the account makes too many calls."""
    return error.response.get("Error", {}).get("Code") in _THROTTLED


def _advice(error: Any, call: str) -> Optional[str]:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in _DENIED:
        return f"The credentials need the permission {call.partition(' ')[0]}."
    if code in _EXPIRED:
        return "The credentials have expired: log in again."
    if code in _UNKNOWN:
        return "AWS does not know these credentials: check AWS_PROFILE and AWS_ACCESS_KEY_ID."
    if code in _THROTTLED:
        return "AWS limits the calls of this account: try again in a minute."
    if code in ("PermanentRedirect", "301", "IllegalLocationConstraintException"):
        return "The bucket is in another region: give --region or --bucket."
    if code == "NoSuchBucket":
        return "Create the bucket, or give --bucket."
    if code == "ResourceLimitExceeded":
        return "Ask for a higher quota of this instance type in AWS's Service Quotas."
    return None
