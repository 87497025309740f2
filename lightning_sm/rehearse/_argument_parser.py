"""The options of ``lightning-sm rehearse``."""

import argparse

from lightning_sm.rehearse._request import Distribution, Isolation, Sdk

__all__ = ["argument_parser"]

_EXAMPLE = """example:
  lightning-sm rehearse --hosts 2 --processes 2 --distribution torch_distributed \\
      --channel training=./data --source-dir . train.py --trainer.max_epochs 2

exit status: 0 the job completed, 1 it failed, 2 it could not be rehearsed as requested, 124 it ran into --timeout,
130 it was interrupted, 143 it was stopped (--stop-after, --stop-at)."""


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser. It checks choices and numbers; the rest is checked when the request is created."""
    parser = argparse.ArgumentParser(
        prog="lightning-sm rehearse",
        usage="lightning-sm rehearse [options] ENTRY_POINT [fit] [--name value ...]\n"
        "       lightning-sm rehearse [options] --request BODY.json",
        description="Run a SageMaker training job on this machine with SageMaker's real container software: the "
        "training toolkits,\ntorchrun, Open MPI over ssh, SDK v3's drivers. It needs neither Docker nor AWS.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("entry_point", nargs="?", metavar="ENTRY_POINT", help="program in --source-dir: .py or .sh")
    parser.add_argument(
        "trailing",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="the program's own words, as for `lightning-sm launch`",
    )

    job = parser.add_argument_group("the job, as given to an estimator")
    job.add_argument("--hosts", type=int, metavar="N", help="instance_count (default 1)")
    job.add_argument(
        "--processes", type=int, metavar="P", help="processes per host (default: GPUs, else 1, as SageMaker counts)"
    )
    job.add_argument(
        "--distribution", choices=[each.value for each in Distribution], help="the launcher (default none)"
    )
    job.add_argument(
        "--sdk",
        choices=[each.value for each in Sdk],
        help="v2: the training toolkit (default); v3: ModelTrainer's drivers",
    )
    job.add_argument("--instance-type", metavar="TYPE", help="what the files say (default ml.m5.xlarge)")
    job.add_argument(
        "--instance-groups",
        metavar="NAME=N[:TYPE],...",
        help="heterogeneous cluster. N is a number of hosts, or names in order: workers=algo-3+algo-1:ml.m5.large",
    )
    job.add_argument("--distribution-groups", metavar="NAME,...", help="the groups that the distribution is for")
    job.add_argument("--mpi-options", metavar="TEXT", help="custom_mpi_options of the distribution")
    job.add_argument("--source-dir", metavar="DIR", help="folder with the program (default: the current one)")
    job.add_argument("--hyperparameters", metavar="FILE.json", help="object of names and values; trailing options win")
    job.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="input channel from a local folder; repeatable",
    )
    job.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable (a PATH goes in front); repeatable",
    )
    job.add_argument(
        "--entrypoint",
        metavar="FILE.json",
        help="container entry point, as `lightning-sm entrypoint` prints it (default: train)",
    )
    job.add_argument("--job-name", metavar="NAME", help="training job name")
    job.add_argument(
        "--request", metavar="BODY.json", help="run this CreateTrainingJob body instead of the options above"
    )

    files = parser.add_argument_group("files")
    files.add_argument(
        "--allow-file",
        action="append",
        default=[],
        metavar="FILE",
        help="pack this file of --source-dir although it is large or looks like a secret; repeatable",
    )
    files.add_argument(
        "--no-requirements",
        action="store_true",
        help="do not install requirements.txt (by default it goes into a Python environment of the rehearsal's own)",
    )
    files.add_argument(
        "--checkpoint-dir", metavar="DIR", help="read and written in place of CheckpointConfig's S3 prefix"
    )
    files.add_argument("--output-dir", metavar="DIR", help="collect model.tar.gz, output.tar.gz and checkpoints here")
    files.add_argument(
        "--upload",
        action="store_true",
        help="with --request: write results and checkpoints to the body's places in S3 (default: a local folder)",
    )
    files.add_argument("--keep", action="store_true", help="keep the rehearsal's own folder and print its path")
    files.add_argument(
        "--local-mode-files", action="store_true", help="write the files of SDK v2's local mode: no groups"
    )

    network = parser.add_argument_group("isolation and network")
    network.add_argument(
        "--isolation",
        choices=["auto", *(each.value for each in Isolation)],
        default="auto",
        help="loopback: no rights needed, hosts are 127.0.0.K, only none and torch_distributed; userns: rootless Linux "
        "namespaces; netns: namespaces as root, needed for mpi, pytorchddp, smdistributed (default: the best one here)",
    )
    network.add_argument("--bandwidth", metavar="RATE", help="of each namespaced host, such as 1gbit (kernel's tbf)")
    network.add_argument(
        "--latency", metavar="TIME", help="one way, between namespaced hosts, such as 1ms (kernel's netem)"
    )
    network.add_argument("--names-after", metavar="TIME", help="namespaced hosts resolve each other's names this late")

    ending = parser.add_argument_group("interruptions and limits")
    ending.add_argument(
        "--spot-interrupt-after", metavar="TIME", help="end all hosts then, once, and start the job again"
    )
    ending.add_argument(
        "--stop-after", metavar="TIME", help="stop the job then, as StopTrainingJob does: SIGTERM to process 1"
    )
    ending.add_argument("--stop-at", metavar="TEXT", help="stop the job when a line of its log contains this text")
    ending.add_argument(
        "--stop-grace", metavar="TIME", default="120s", help="time from that to SIGKILL (default 120s, as on SageMaker)"
    )
    ending.add_argument(
        "--abort-after",
        metavar="TIME",
        default="10s",
        help="end the others this long after a host failed (default 10s)",
    )
    ending.add_argument("--timeout", metavar="TIME", default="30m", help="end the rehearsal then (default 30m)")

    parser.add_argument("--json", action="store_true", help="print the summary as JSON; log lines go to stderr")
    return parser
