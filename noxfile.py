"""Everything that is run on this project: ``nox --list``, ``nox -s lint``, ``nox -s tests -- -k words``.

Each session makes a virtual environment of its own. With ``--no-venv`` all use the one that is active, into which the
package was installed with its extras ``examples`` and ``test``; so does ``.ci/run``, which installs torch once.
"""

import os
import re
import subprocess
import sys

import nox

nox.needs_version = ">=2024.3.2"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]
os.environ.update(SAGEMAKER_PYTHON_SDK_TELEMETRY="false", PIP_DISABLE_PIP_VERSION_CHECK="1")

_FORMATTED = ("lightning_sm", "tests", "tools", "examples", "benchmarks", "noxfile.py")
# What failed at first and was run again is added to the file that this variable names.
_FAILED_FIRST = "LIGHTNING_SM_FAILED_FIRST"
# Set by ``.ci/run``, which has one machine for everything: leave out tests marked ``extended`` and most runs of the
# campaign.
_SHORT = bool(os.environ.get("LIGHTNING_SM_SHORT"))


def _install(session: nox.Session, *words: str) -> None:
    session.run("python", "-m", "pip", "install", "-q", *words)


def _extra(name: str) -> "list[str]":
    """What an extra of the package requires; the package itself stays as it is installed."""
    extras: dict[str, list[str]] = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
    return extras[name]


def _prepare(session: nox.Session) -> None:
    """Install the package with what its tests need, unless the active environment is used, which has it."""
    if not isinstance(session.virtualenv, nox.virtualenv.PassthroughEnv):
        _install(session, "-e", ".[examples,test]")


def _install_s3fs(session: nox.Session) -> None:
    """Install s3fs before what requires boto3, too.

    Its aiobotocore takes a few releases of botocore only, which pip finds here at once, and not among all versions of
    all that is installed later.
    """
    _install(session, *_extra("s3fs"), "boto3")


def _lines_of(session: nox.Session, *command: str, **variables: str) -> "tuple[bool, list[str]]":
    """Run a command whose output is shown as it comes; return whether it was successful, and the lines."""
    path = os.pathsep.join([*(session.bin_paths or ()), os.environ["PATH"]])
    environ = {**os.environ, **{name: value for name, value in session.env.items() if value}, "PATH": path, **variables}
    with subprocess.Popen(
        command, env=environ, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        lines = []
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line.rstrip("\n"))
    return process.returncode == 0, lines


def _note_failed(session: nox.Session, lines: "list[str]") -> None:
    for line in lines:
        session.warn(f"Failed first, and is run again: {line}")
    if os.environ.get(_FAILED_FIRST):
        with open(os.environ[_FAILED_FIRST], "a", encoding="utf-8") as file:
            file.writelines(f"{session.name}: {line}\n" for line in lines)


def _run_marked(session: nox.Session, mark: str) -> None:
    """Run the tests with a mark, and once more those that failed.

    Jobs of several hosts share this machine's cores, so what misses its bounded time there gets a second run alone.
    With ``CI`` set, pytest does not shorten the reasons.
    """
    mark = f"({mark}) and not extended" if _SHORT else mark
    command = ("python", "-m", "pytest", "-m", mark, "-rsfE", *session.posargs)
    passed, lines = _lines_of(session, *command, CI="true")
    if not passed:
        _note_failed(session, [line for line in lines if re.match("(FAILED|ERROR) ", line)])
        session.run("python", "-m", "pytest", "-m", mark, "-rs", "--last-failed", "--last-failed-no-failures", "none")


def _play_faults(session: nox.Session, *words: str) -> None:
    passed, lines = _lines_of(session, "python", "-m", "tools.faults", *words, "--again")
    _note_failed(session, [line for line in lines if line.startswith("FAILED first: ")])
    if not passed:
        session.error("The campaign failed.")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that take seconds."""
    _prepare(session)
    session.run("python", "-m", "pytest", "-n", "2", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, spelling and who imports whom."""
    _prepare(session)
    _install(session, *_extra("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", *_FORMATTED)
    session.run("mypy")
    # Scripts that import their neighbours by bare names, as users write them; each folder is a program of its own.
    # What they import from tests/ is checked above, with the settings of tests.
    options = ("--config-file=", "--check-untyped-defs", "--ignore-missing-imports", "--follow-imports=silent")
    for scripts in (
        "examples/cifar10",
        "examples/fabric",
        "examples/groups",
        "examples/hydra",
        "examples/kfold",
        "examples/transformer",
        "benchmarks",
        "noxfile.py",
    ):
        session.run("mypy", *options, scripts)
    session.run("codespell")
    session.run("lint-imports")


@nox.session
def jobs(session: nox.Session) -> None:
    """Kill, stop and restart whole jobs of several processes, and start processes in each way."""
    _prepare(session)
    # Tests of the package itself need what builds it, and SageMaker's SDK v2 in an environment of its own.
    _install(session, *_extra("release"))
    sdk = session.cache_dir.resolve() / "sdk2"
    session.run("python", "-m", "venv", str(sdk))
    session.run(str(sdk / "bin" / "python"), "-m", "pip", "install", "-q", "sagemaker<3", external=True)
    session.env["LIGHTNING_SM_SDK_V2_PYTHON"] = str(sdk / "bin" / "python")
    _run_marked(session, "jobs")


@nox.session
def slow(session: nox.Session) -> None:
    """Run the tests that take more than five seconds each."""
    _prepare(session)
    _run_marked(session, "slow and not jobs")


@nox.session
def rehearsals(session: nox.Session) -> None:
    """Play jobs with SageMaker's toolkits, Open MPI over ssh and SDK v3's drivers."""
    _prepare(session)
    # gcc and Python's headers build the toolkit's extension.
    _install(session, *_extra("rehearse"), *_extra("launch"), "moto[server,s3]")
    # SDK v3's drivers are scripts in a wheel; its dependencies are not needed.
    _install(session, "--no-deps", "sagemaker-train")
    _run_marked(session, "rehearsal")


@nox.session
def services(session: nox.Session) -> None:
    """Talk to real local servers: S3, MLflow."""
    _prepare(session)
    _install_s3fs(session)
    extras = (requirement for name in ("mlflow", "s3", "launch") for requirement in _extra(name))
    _install(session, *extras, "mlflow", "wandb", "moto[server,s3]")
    _run_marked(session, "services")


@nox.session
def sharded(session: nox.Session) -> None:
    """Train with FSDP, FSDP2 and DeepSpeed in several processes."""
    _prepare(session)
    _install_s3fs(session)
    # DeepSpeed is a source distribution, which compiles nothing while it is installed.
    _install(session, "deepspeed", "moto[server,s3]", "s3torchconnector[dcp]", "safetensors")
    _run_marked(session, "sharded")
    strategies = ("fsdp2", "deepspeed_3") if _SHORT else ("fsdp", "fsdp2", "deepspeed_2", "deepspeed_3")
    # Each strategy and set-up is first run once without interruption, so one set-up only.
    _play_faults(session, "--strategies", *strategies, "--runs", "2", "--setup", "validation_within_epochs")


@nox.session
def faults(session: nox.Session) -> None:
    """Interrupt jobs and damage their files at random."""
    _prepare(session)
    _play_faults(session, *(session.posargs or ["--runs", "16" if _SHORT else "40", "--seed", "1", "--jobs", "2"]))


@nox.session
def exports(session: nox.Session) -> None:
    """Serve exported models with SageMaker's inference toolkits."""
    _prepare(session)
    _install(session, *_extra("export"), "sagemaker-inference", "sagemaker-pytorch-inference")
    session.run("python", "-m", "pytest", "-rs", "tests/export", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Show on one GPU all that one can, in 15 minutes at most, and the same on the CPU; print a table."""
    _prepare(session)
    _install(session, "deepspeed", *_extra("export"))
    session.run("python", "-m", "pytest", "-m", "gpu", "--session-timeout", "900", "tests/gpu", *session.posargs)


@nox.session
def xla(session: nox.Session) -> None:
    """Train by torch_xla on its CPU, in an environment of its own: the newest torch_xla needs an older torch."""
    _install(session, "torch==2.9.0", "torch_xla==2.9.0", "-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "", "tests/processes/test_xla.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, and check the tables that are made from the code."""
    _prepare(session)
    _install(session, *_extra("docs"))
    session.run("python", "-m", "tools.docs", "--check")
    session.run("mkdocs", "build", "--strict")
    session.run("python", "-m", "pytest", "tests/docs")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what the package costs, in pairs with Lightning alone."""
    _prepare(session)
    for name in session.posargs or ("import_time", "cli_time", "step_time", "job_step_time", "async_save"):
        session.run("python", f"benchmarks/{name}.py")


@nox.session(venv_backend="none")
def rows(session: nox.Session) -> None:
    """Run the tests of each level on its rows of Lightning, or on rows that are named."""
    session.run(sys.executable, "-m", "tools.matrix", *(session.posargs or ["--all", "--again"]))
