"""Captures what SDK v3 sends: ``python -m tests.toolkits.capture_v3``, with ``sagemaker-train`` and its dependencies.

It calls ``ModelTrainer.train`` against moto on this machine, with telemetry off, and writes into ``captured_v3`` the
body of its CreateTrainingJob call and what the SDK generated into the channel ``sm_drivers``. The drivers are not
kept: the tests take them from the installed SDK, as ``lightning-sm rehearse --sdk v3`` does. Needs, in an environment
of its own, ``pip install sagemaker-train 'moto[server,s3,sagemaker,sts,iam]'`` (1 GB).
"""

import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path

__all__ = ["CAPTURED", "GENERATED"]

CAPTURED = Path(__file__).parent / "captured_v3"

#: What the SDK generates, beside the scripts that it copies.
GENERATED = ("distributed.json", "sm_train.sh", "sourcecode.json")

_NO_TELEMETRY = "SchemaVersion: '1.0'\nSageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n"


def _train(session):
    """Two hosts under torchrun, with everything that a user may give beside."""
    from sagemaker.core.helper.session_helper import Session
    from sagemaker.train import ModelTrainer
    from sagemaker.train.configs import CheckpointConfig, Compute, InputData, OutputDataConfig, SourceCode
    from sagemaker.train.distributed import Torchrun

    trainer = ModelTrainer(
        training_image="000000000000.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8",
        role="arn:aws:iam::000000000000:role/training",
        base_job_name="captured",
        # Without one it asks STS whose account this is, at an address of its own.
        sagemaker_session=Session(boto_session=session, default_bucket="staging"),
        source_code=SourceCode(source_dir="source", entry_script="train.py"),
        distributed=Torchrun(process_count_per_node=1),
        compute=Compute(instance_type="ml.m5.xlarge", instance_count=2),
        hyperparameters={"epochs": 2, "lr": 0.05, "note": "a b", "nothing": None, "mapping": {"deep": True}},
        environment={"GREETING": "hello"},
        input_data_config=[InputData(channel_name="training", data_source="data")],
        output_data_config=OutputDataConfig(s3_output_path="s3://results/out"),
        checkpoint_config=CheckpointConfig(s3_uri="s3://results/checkpoints", local_path="/opt/ml/checkpoints"),
    )
    trainer.train(wait=False, logs=False)


def main():
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    os.environ.update(
        AWS_ENDPOINT_URL="http://{}:{}".format(*server.get_host_and_port()),
        AWS_ACCESS_KEY_ID="none",
        AWS_SECRET_ACCESS_KEY="none",
        AWS_DEFAULT_REGION="us-east-1",
        SAGEMAKER_USER_CONFIG_OVERRIDE=os.path.abspath("no-telemetry.yaml"),
        # moto does not simulate policies.
        SAGEMAKER_VALIDATE_ROLE="false",
    )
    for name, text in (("no-telemetry.yaml", _NO_TELEMETRY), ("source/train.py", ""), ("data/words", "x")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    session, bodies = boto3.Session(), []
    session.events.register(
        "provide-client-params.sagemaker.CreateTrainingJob", lambda params, **_: bodies.append(params)
    )
    _train(session)
    (body,) = bodies
    CAPTURED.mkdir(exist_ok=True)
    version = importlib.metadata.version("sagemaker-train")
    (CAPTURED / "version.txt").write_text(f"{version}\n")
    (CAPTURED / "body.json").write_text(json.dumps(body, indent=1) + "\n")
    drivers = next(each for each in body["InputDataConfig"] if each["ChannelName"] == "sm_drivers")
    bucket, _, prefix = drivers["DataSource"]["S3DataSource"]["S3Uri"][len("s3://") :].partition("/")
    for name in GENERATED:
        session.client("s3").download_file(bucket, f"{prefix.rstrip('/')}/{name}", str(CAPTURED / name))
    print(f"{CAPTURED}: sagemaker-train {version}")
    server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.exit(main())
