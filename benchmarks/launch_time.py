"""What ``lightning-sm launch --dry-run`` takes, over ``import boto3``, which it needs.

Run ``python benchmarks/launch_time.py [--pairs N]``. Credentials are not read and the bucket is named, so that nothing
is asked of AWS. Compared are the time until it returns and the CPU time."""

import os
import sys

from _pairs import compare, cpu_seconds, parser, wall_seconds

_SCRIPT = os.path.abspath(__file__)
_WORDS = (
    "--image", "pytorch-2.8-gpu", "--instance-type", "ml.g5.xlarge", "--role", "arn:aws:iam::123456789012:role/Role",
    "--bucket", "bucket", "--region", "us-east-1", "--channel", "training=s3://bucket/data", "--dry-run", "--no-check",
    "fit", "--config", "config.yaml", "--trainer.max_epochs", "5",
)  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        from lightning_sm.__main__ import main

        with open("train.py", "w", encoding="utf-8"):
            status = main(["launch", *_WORDS])
        assert "torch" not in sys.modules
        sys.exit(status)
    given = parser(__doc__).parse_args()
    theirs = [sys.executable, "-c", "import boto3"]
    for measure, unit in ((wall_seconds, "s"), (cpu_seconds, "s of CPU time")):
        ours = [sys.executable, _SCRIPT, "worker"]
        compare(ours, theirs, measure=measure, unit=unit, pairs=given.pairs, default=21, seconds=145)
