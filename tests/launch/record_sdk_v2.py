"""Records what SageMaker's Python SDK v2 sends for training and tuning jobs: ``python tests/launch/record_sdk_v2.py``.

It runs in an environment of its own, with ``sagemaker<3``, and sends nothing: S3 is answered here, and the request is
kept instead of sent. ``jobs.json`` says what each job is, in the words of the estimator (``sdk``) and in those of
``lightning-sm launch`` (``launch``); of a tuning job also in those of the tuner (``tuner``) and of
``lightning-sm tune`` (``tuning``).
"""

import io
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def record(jobs, folder):
    """Return the requests of the jobs by their names.

    Args:
        jobs: The jobs.
        folder: A folder for what it writes.
    """
    # The SDK reports its use to AWS unless a config file says otherwise.
    config = Path(folder, "config.yaml")
    config.write_text("SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n")
    os.environ.update(
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
        AWS_DEFAULT_REGION="us-east-1",
        SAGEMAKER_USER_CONFIG_OVERRIDE=str(config),
        SAGEMAKER_ADMIN_CONFIG_OVERRIDE=str(config),
    )
    import boto3
    import sagemaker
    from botocore.awsrequest import AWSResponse
    from sagemaker.debugger import TensorBoardOutputConfig
    from sagemaker.inputs import FileSystemInput, TrainingInput
    from sagemaker.instance_group import InstanceGroup
    from sagemaker.pytorch import PyTorch
    from sagemaker.tuner import HyperparameterTuner
    from urllib3 import HTTPResponse

    boto = boto3.Session(region_name="us-east-1")
    boto.events.register(
        "before-send.s3",
        lambda request, **_: AWSResponse(request.url, 200, {"ETag": '"x"'}, HTTPResponse(io.BytesIO())),
    )
    source = Path(folder, "source")
    source.mkdir()
    (source / "train.py").write_text("print('trained')\n")
    # For the job without a network.
    (source / "requirements.txt").write_text("--no-index\n")
    kinds = {"TrainingInput": TrainingInput, "FileSystemInput": FileSystemInput}
    recorded = {}
    for name, job in jobs.items():
        sent = []
        client = boto.client("sagemaker")
        client.create_training_job = lambda sent=sent, **request: sent.append(request)
        client.create_hyper_parameter_tuning_job = lambda sent=sent, **request: sent.append(request)
        session = sagemaker.Session(boto_session=boto, sagemaker_client=client, default_bucket="bucket")
        session._create_s3_bucket_if_it_does_not_exist = lambda **_: None
        arguments = dict(job["sdk"])
        if "instance_groups" in arguments:
            arguments["instance_groups"] = [InstanceGroup(*each) for each in arguments["instance_groups"]]
        asked = arguments.get("distribution", {})
        for distribution in (asked, asked.get("smdistributed", {})):
            if "instance_groups" in distribution:
                by_name = {group.instance_group_name: group for group in arguments["instance_groups"]}
                distribution["instance_groups"] = [by_name[each] for each in distribution["instance_groups"]]
        if "tensorboard_output_config" in arguments:
            arguments["tensorboard_output_config"] = TensorBoardOutputConfig(arguments["tensorboard_output_config"])
        inputs = {
            channel: given if isinstance(given, str) else kinds[given[0]](**given[1])
            for channel, given in job.get("inputs", {"training": "s3://data/train"}).items()
        }
        estimator = PyTorch(
            entry_point="train.py",
            source_dir=str(source),
            role="arn:aws:iam::123456789012:role/Trainer",
            sagemaker_session=session,
            # Its hooks need smdebug in the container, and fail with the torch of today.
            debugger_hook_config=False,
            disable_profiler=True,
            **arguments,
        )
        if "tuner" in job:
            HyperparameterTuner(estimator, **tuner_arguments(job["tuner"])).fit(
                inputs, job_name=job["name"], wait=False
            )
        else:
            estimator.fit(inputs, job_name=job["name"], wait=False)
        recorded[name] = sent[0]
    return recorded


def tuner_arguments(given):
    """The arguments of a tuner, whose ranges and other objects stand in ``jobs.json`` as names with arguments."""
    from sagemaker import parameter, tuner

    found = dict(given)
    found["hyperparameter_ranges"] = {
        name: getattr(parameter, f"{kind}Parameter")(*arguments)
        for name, (kind, *arguments) in given["hyperparameter_ranges"].items()
    }
    if "warm_start_config" in given:
        kind, *parents = given["warm_start_config"]
        found["warm_start_config"] = tuner.WarmStartConfig(tuner.WarmStartTypes[kind], set(parents))
    if "strategy_config" in given:
        found["strategy_config"] = tuner.StrategyConfig(tuner.HyperbandStrategyConfig(**given["strategy_config"]))
    return found


if __name__ == "__main__":
    jobs = json.loads((HERE / "jobs.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        requests = record(jobs, folder)
    text = json.dumps(requests, indent=1, sort_keys=True) + "\n"
    if "--print" in sys.argv:
        print(text)
    else:
        (HERE / "recorded.json").write_text(text)
