"""Prints the CreateTrainingJob request of SDK v3 for settings: ``python tests/launch/record_sdk_v3.py < JOB``.

JOB is JSON with ``settings``, ``command`` and ``stage``. It runs in an environment of its own, with ``sagemaker-train``
and its dependencies and ``moto[server,s3,sagemaker]``, and sends nothing beyond this machine.
"""

import json
import os
import sys
import tempfile
from pathlib import Path


def record(job):
    """The request of a ``ModelTrainer`` that is made with what ``lightning_sm.launch`` gives."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    folder = tempfile.mkdtemp()
    config = Path(folder, "config.yaml")
    config.write_text("SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n")
    os.environ.update(
        AWS_ENDPOINT_URL="http://{}:{}".format(*server.get_host_and_port()),
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
        AWS_DEFAULT_REGION="us-east-1",
        SAGEMAKER_USER_CONFIG_OVERRIDE=str(config),
        SAGEMAKER_ADMIN_CONFIG_OVERRIDE=str(config),
        # moto does not simulate policies.
        SAGEMAKER_VALIDATE_ROLE="false",
    )
    from sagemaker.core.helper.session_helper import Session
    from sagemaker.train import ModelTrainer

    from lightning_sm.launch import Account, model_trainer_calls, model_trainer_kwargs

    session, bodies = boto3.Session(), []
    session.client("s3").create_bucket(Bucket="bucket")
    session.events.register(
        "provide-client-params.sagemaker.CreateTrainingJob", lambda params, **_: bodies.append(params)
    )
    kwargs = model_trainer_kwargs(
        job["settings"], job["command"], account=Account("us-east-1", "bucket"), stage=job.get("stage")
    )
    trainer = ModelTrainer(sagemaker_session=Session(boto_session=session, default_bucket="bucket"), **kwargs)
    for method, argument in model_trainer_calls(job["settings"], job["command"]).items():
        getattr(trainer, method)(argument)
    trainer.train(wait=False, logs=False)
    server.stop()
    return bodies[0]


if __name__ == "__main__":
    body = record(json.load(sys.stdin))
    print("\nREQUEST " + json.dumps(body, default=str))
