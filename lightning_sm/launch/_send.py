"""Sends a request: uploads the source archive, then creates the training job, with boto3."""

import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from lightning_sm.errors import LaunchError
from lightning_sm.launch._request import Account, JobRequest
from lightning_sm.launch._upload import bucket_and_key, objects_below, upload_folder

__all__ = ["account_of", "api_errors", "call", "describe", "send", "session_in"]

# The record of a save.
_RECORD = re.compile(r"/fit-\d+/step-[\d-]+\.json$")
_THROTTLED = ("Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown")
_ADVICE = {
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "RequestExpired"), "The credentials have expired: log in again."
    ),
    **dict.fromkeys(
        ("InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
        "AWS does not know these credentials: check AWS_PROFILE and AWS_ACCESS_KEY_ID.",
    ),
    **dict.fromkeys(
        ("AccessDenied", "AccessDeniedException", "403", "Forbidden", "UnauthorizedOperation"),
        "The credentials need the permission that is named here.",
    ),
    **dict.fromkeys(_THROTTLED, "AWS limits the calls of this account: try again in a minute."),
    **dict.fromkeys(
        ("PermanentRedirect", "301", "IllegalLocationConstraintException"),
        "The bucket is in another region: give --region or --bucket.",
    ),
    "NoSuchBucket": "Make it with `aws s3 mb`, or leave --bucket out: the default one is made.",
    "ResourceLimitExceeded": "Ask for a higher quota of this instance type in AWS's Service Quotas.",
}
_LONGEST = 400


def session_in(region: Optional[str]) -> Any:
    """Return a boto3 session, which may have no region.

    Environment variables and files: those of boto3 (``AWS_PROFILE``, ``AWS_DEFAULT_REGION``, ``~/.aws/config``, …), and
    ``AWS_REGION`` above them, which AWS's other SDKs and its CLI read.

    Args:
        region: The region; by default that of the AWS configuration.

    Raises:
        LaunchError: boto3 is missing, or the AWS configuration cannot be used.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise LaunchError("The package boto3 is missing, which sends requests.", hint="pip install boto3") from error
    try:
        return boto3.Session(region_name=region or os.environ.get("AWS_REGION"))
    except BotoCoreError as error:
        raise LaunchError(f"AWS's configuration cannot be used: {error}.", hint="Check AWS_PROFILE.") from error


def account_of(bucket: Optional[str], session: Any) -> Account:
    """Return region and bucket; the default bucket's name needs one call of STS.

    Raises:
        LaunchError: The call failed.
    """
    if bucket:
        return Account(session.region_name, bucket.replace("s3://", "", 1).strip("/"))
    with api_errors("sts:GetCallerIdentity", hint="Give --bucket, which needs no such call."):
        number = session.client("sts").get_caller_identity()["Account"]
    return Account(session.region_name, f"sagemaker-{session.region_name}-{number}")


def _owner_of_default(bucket: str, session: Any) -> Optional[str]:
    """Return the account if the bucket is its default one, else ``None``.

    If there is none yet, it is made: private as S3 makes every bucket, as SageMaker's SDKs do.

    Raises:
        LaunchError: It cannot be made.
    """
    from botocore.exceptions import ClientError

    region = session.region_name
    if not bucket.startswith(f"sagemaker-{region}-") or bucket != account_of(None, session).bucket:
        return None
    owner = bucket.rpartition("-")[2]
    place = {"CreateBucketConfiguration": {"LocationConstraint": region}}
    with api_errors(f"s3:CreateBucket for {bucket}", hint="Give a bucket of yours: --bucket."):
        client = session.client("s3")
        try:
            client.head_bucket(Bucket=bucket)
            return owner
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
                return owner  # it is there, or the upload says what is wrong
        client.create_bucket(Bucket=bucket, **({} if region == "us-east-1" else place))
    print(f"Made the bucket {bucket}: private, the default one of SageMaker's SDKs, too.", file=sys.stderr)
    return owner


def send(
    request: JobRequest,
    archive: Optional[Path],
    session: Any,
    *,
    start: Optional[str] = None,
    data: Sequence[Tuple[str, str]] = (),
) -> Dict[str, str]:
    """Upload the source archive and create the training or tuning job.

    A name that is taken is refused before anything is uploaded.

    Args:
        request: The request.
        archive: The source archive; ``None`` if it is uploaded already.
        session: A boto3 session.
        start: Checkpoints of another job that this one starts from. They are copied to this job's prefix, within S3.
        data: Local folders of channels, and the addresses that they are uploaded to.

    Returns:
        Its name, ARN and region, and the address of its page in AWS's console.

    Raises:
        LaunchError: A call of the API failed; then there is no job.
    """
    region = session.region_name
    taken = describe(session, request.kind, request.name)
    if taken is not None:
        raise LaunchError(
            f"There is a job {request.name!r} already ({taken['Status']}).", hint="Give another one with --name."
        )
    bucket, key = bucket_and_key(request.archive_uri)
    # Others could have made a bucket whose name can be guessed.
    owner = _owner_of_default(bucket, session)
    owned = {"ExpectedBucketOwner": owner} if owner else {}
    if start is not None:
        place = request.as_body().get("CheckpointConfig", {}).get("S3Uri")
        if place is None:
            raise LaunchError(
                "The job of --from-checkpoint has no place for checkpoints.", hint="Leave --checkpoints out."
            )
        _copy_checkpoints(start, place, session)
    for folder, address in data:
        with api_errors(f"s3:PutObject to {address}"):
            upload_folder(Path(folder), address, session, owned)
    if archive is not None:
        with api_errors(
            f"s3:PutObject to {request.archive_uri}", hint=f"Check that the bucket {bucket} is in {region}."
        ):
            session.client("s3").upload_file(str(archive), bucket, key, ExtraArgs=owned)
    with api_errors(f"sagemaker:Create{request.kind} for {request.name}"):
        arn = str(call(session.client("sagemaker"), f"Create{request.kind}")(**request.as_body())[f"{request.kind}Arn"])
    page = "jobs" if request.kind == "TrainingJob" else "hyper-tuning-jobs"
    console = f"https://{region}.console.aws.amazon.com/sagemaker/home?region={region}#/{page}/{request.name}"
    return {"name": request.name, "arn": arn, "region": region, "console": console}


def _copy_checkpoints(start: str, to: str, session: Any) -> None:
    client = session.client("s3")
    bucket, prefix = bucket_and_key(f"{start.rstrip('/')}/")
    to_bucket, to_prefix = bucket_and_key(to.rstrip("/"))
    with api_errors(f"s3:ListBucket of {start}"):
        names = [key[len(prefix) :] for key, _ in objects_below(client, bucket, prefix)]
    if not any(_RECORD.search(name) for name in names):
        raise LaunchError(
            f"--from-checkpoint {start} holds no save of a job (…/fit-0/step-N.json).",
            hint="Give the checkpoints of the other job, the S3Uri of its CheckpointConfig.",
        )
    for name in names:
        target = f"{to_prefix}/{name}"
        with api_errors(f"s3:CopyObject of s3://{bucket}/{prefix}{name} to s3://{to_bucket}/{target}"):
            client.copy({"Bucket": bucket, "Key": f"{prefix}{name}"}, to_bucket, target)


def call(client: Any, operation: str) -> Callable[..., Dict[str, Any]]:
    """Return a client's method by the name of the API's operation, such as ``CreateTrainingJob``."""
    from botocore import xform_name

    method: Callable[..., Dict[str, Any]] = getattr(client, xform_name(operation))
    return method


def describe(session: Any, kind: str, name: str) -> Optional[Dict[str, Any]]:
    """Return what the service says of a job, with its state as ``Status``; ``None`` if there is none of that name.

    Args:
        session: A boto3 session.
        kind: ``TrainingJob`` or ``HyperParameterTuningJob``.
        name: The name of the job.

    Raises:
        LaunchError: The call failed.
    """
    from botocore.exceptions import ClientError

    with api_errors(f"sagemaker:Describe{kind} for {name}"):
        try:
            found = call(session.client("sagemaker"), f"Describe{kind}")(**{f"{kind}Name": name})
        except ClientError as error:
            code, text = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
            if code == "ResourceNotFound" or (code == "ValidationException" and "not" in text.lower()):
                return None
            raise
        return {**found, "Status": found[f"{kind}Status"]}


@contextmanager
def api_errors(what: str, *, hint: str = "") -> Iterator[None]:
    """Raise one error that names the API call and what to do where AWS's SDK raises its own.

    Args:
        what: The call, as IAM names it, and what it is for.
        hint: What to do, where the error itself does not tell.

    Raises:
        LaunchError: The call failed.
    """
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
    )
    from botocore.parsers import ResponseParserError

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise LaunchError(
            f"{what} failed: {error}.", hint="Set AWS_PROFILE, or log in with `aws sso login` or `aws configure`."
        ) from error
    except (ResponseParserError, KeyError) as error:
        raise LaunchError(
            f"{what} failed: the answer is not AWS's ({_shortened(error)}).",
            hint="Check HTTPS_PROXY and AWS_ENDPOINT_URL.",
        ) from error
    except (ClientError, BotoCoreError, Boto3Error, ValueError) as error:
        # boto3's transfers raise errors of their own for those of the service.
        refused = error if isinstance(error, ClientError) else error.__context__
        if isinstance(refused, ClientError):
            advice = _advice(refused) or hint or "AWS's message says why."
        elif isinstance(error, ParamValidationError):
            advice = "Correct what is named here; nothing was asked of AWS."
        else:
            advice = "Check the network, the region (--region, AWS_REGION) and AWS_ENDPOINT_URL."
        raise LaunchError(f"{what} failed: {_shortened(error)}.", hint=advice) from error


def _shortened(error: BaseException) -> str:
    """The message of an error in one line. A proxy answers with whole pages."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _advice(error: Any) -> Optional[str]:
    code = str(error.response.get("Error", {}).get("Code", ""))
    # An error of the service has a code.
    if code in ("", "Unknown") or "<html" in str(error).lower():
        return "The answer is a page and not AWS's: check HTTPS_PROXY and AWS_ENDPOINT_URL."
    return _ADVICE.get(code)
