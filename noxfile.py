"""Everything that is run on this project: ``nox --list``, ``nox -s lint``, ``nox -s tests -- -k words``.

Each session makes a virtual environment of its own. With ``--no-venv`` all use the one that is active, into which the
package was installed with its extra ``test``.
"""

import os
from pathlib import Path

import nox

nox.needs_version = ">=2024.3.2"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]
os.environ.update(SAGEMAKER_PYTHON_SDK_TELEMETRY="false", PIP_DISABLE_PIP_VERSION_CHECK="1")

# The site-packages folder of an environment that has the package with its extra ``test``, as ``.ci/run`` sets it: the
# sessions import torch from there and install only what they add.
_SITE = os.environ.get("LIGHTNING_SM_SITE")
# Tests that rehearse jobs, or compare with SageMaker's SDKs. SageMaker's toolkit requires scipy, and where that is
# installed, torchmetrics imports it in each process of every other test.
_REHEARSALS = (
    "tests/doctor/test_rehearsed.py",
    "tests/examples/test_groups.py",
    "tests/launch",
    "tests/observe/test_metrics_of_jobs.py",
    "tests/rehearse",
    "tests/sagemaker/test_hyperparameters.py",
    "tests/sharded/test_rehearsed.py",
    "tests/test_package.py",
    "tests/toolkits",
    "tests/tools/test_acceptance.py",
)
# What trains on a GPU as on CPUs, with two ranks as two hosts.
_ON_GPU = (
    "tests/resume/test_setups.py", "tests/observe/test_same_training.py", "tests/fits/test_programs.py",
    "tests/processes/test_resume.py", "tests/processes/test_communication.py", "tests/processes/test_failures.py",
    "tests/sharded/test_resuming.py", "tests/sharded/test_saving.py", "tests/sharded/test_export.py",
)  # fmt: skip
_FORMATTED = ("lightning_sm", "tests", "tools", "examples", "benchmarks", "noxfile.py")


def _install(session: nox.Session, *words: str) -> None:
    session.run("python", "-m", "pip", "install", "-q", *words)


def _extra(name: str) -> "list[str]":
    """What an extra of the package requires; the package itself stays as it is installed."""
    extras: dict[str, list[str]] = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
    return extras[name]


def _prepare(session: nox.Session) -> None:
    """Install the package with what its tests need, unless the active environment is used, which has it."""
    if isinstance(session.virtualenv, nox.virtualenv.PassthroughEnv):
        return
    if _SITE is None:
        _install(session, "-e", ".[test]")
        return
    own = session.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", silent=True)
    Path(str(own).strip(), "site.pth").write_text(f"import site; site.addsitedir({_SITE!r})\n", encoding="utf-8")


def _test(session: nox.Session, *words: str) -> None:
    """Run tests; those that fail run once more when all others have, as real processes share a machine's cores."""
    # A folder of its own for what has failed, as sessions run side by side.
    command = ("python", "-m", "pytest", "-o", f"cache_dir={session.cache_dir.resolve() / session.name}", *words)
    try:
        session.run(*command)
    except nox.command.CommandFailed:
        # Where no test failed, the run has left processes behind, and this fails, too.
        session.run(*command, "--last-failed", "--last-failed-no-failures", "none")


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
    session.run("python", "-m", "mypy")
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
        session.run("python", "-m", "mypy", *options, scripts)
    session.run("codespell")
    session.run("lint-imports")


@nox.session
def full(session: nox.Session) -> None:
    """Run the tests that take longer, without rehearsals: jobs, sharded strategies, real servers."""
    _prepare(session)
    extras = (each for name in ("s3fs", "s3", "launch") for each in _extra(name))
    _install(session, *extras, "deepspeed", "moto[server,s3]", "s3torchconnector[dcp]", "safetensors", "wandb", "rich")
    ignored = (f"--ignore={path}" for path in ("tests/gpu", *_REHEARSALS))
    _test(session, "-m", "full", "-rfEs", *ignored, *session.posargs)


@nox.session
def rehearsals(session: nox.Session) -> None:
    """Run the tests that need SageMaker's toolkits or SDKs."""
    _prepare(session)
    extras = (each for name in ("s3fs", "s3", "launch", "rehearse", "release") for each in _extra(name))
    _install(session, *extras, "deepspeed", "moto[server,s3]")
    # SDK v3's drivers are scripts in a wheel, whose dependencies are not needed; SDK v2 has an environment of its own.
    _install(session, "--no-deps", "sagemaker-train")
    sdk = session.cache_dir.resolve() / "sdk2"
    session.run("python", "-m", "venv", str(sdk))
    session.run(str(sdk / "bin" / "python"), "-m", "pip", "install", "-q", "sagemaker<3", external=True)
    session.env["LIGHTNING_SM_SDK_V2_PYTHON"] = str(sdk / "bin" / "python")
    _test(session, "-m", "full", "-rfEs", *(session.posargs or _REHEARSALS))


@nox.session
def faults(session: nox.Session) -> None:
    """Interrupt jobs and damage their files at random."""
    _prepare(session)
    words = session.posargs or ["--runs", "16", "--seed", "1", "--jobs", "2"]
    session.run("python", "-m", "tools.faults", *words, "--again")
    if not session.posargs:
        _install(session, "deepspeed")
        sharded = ("--strategies", "fsdp2", "deepspeed_3", "--runs", "2", "--setup", "validation_within_epochs")
        session.run("python", "-m", "tools.faults", *sharded, "--again")


@nox.session
def examples(session: nox.Session) -> None:
    """Run the example that needs torchvision and matplotlib, which all other tests do without."""
    _prepare(session)
    _install(session, *_extra("examples"))
    words = session.posargs or ("tests/examples", "-k", "cifar10 or quickstart")
    _test(session, "-m", "", "-rfEs", *words)


@nox.session
def mlflow(session: nox.Session) -> None:
    """Log to a real MLflow server, whose requirements would make each other test import more."""
    _prepare(session)
    _install(session, *_extra("mlflow"), "mlflow", "boto3")
    _test(session, "-m", "", "-rfEs", "tests/observe", "-k", "mlflow", *session.posargs)


@nox.session
@nox.parametrize(
    "library",
    ("pytorch-forecasting", "u8darts[torch]", "neuralforecast", "chemprop", "scvi-tools", "nequip", "litdata", "monai"),
)
def libraries(session: nox.Session, library: str) -> None:
    """Interrupt programs of libraries that train by Lightning; each has requirements of its own."""
    _prepare(session)
    _install(session, library)
    session.run("python", "-m", "pytest", "-m", "full", "-rf", "tests/libraries", *session.posargs)


@nox.session
def exports(session: nox.Session) -> None:
    """Serve exported models with SageMaker's inference toolkits."""
    _prepare(session)
    _install(session, *_extra("export"), "sagemaker-inference", "sagemaker-pytorch-inference")
    _test(session, "-rfEs", "tests/export", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Show on one GPU all that one can, and the same on the CPU, with its figures. Two ranks share the GPU."""
    _prepare(session)
    _install(session, "deepspeed", *_extra("export"))
    session.run(
        "python", "-m", "pytest", "-m", "full", "-rP", "--session-timeout", "900", "tests/gpu", *session.posargs
    )
    if session.run("python", "-c", "import torch; print(torch.cuda.is_available())", silent=True).strip() != "True":
        return
    on_gpu = {"TESTS_ACCELERATOR": "gpu", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    options = ("-m", "", "-n", "4", "--dist", "loadfile", "-k", "not one_host")
    session.run("python", "-m", "pytest", *options, *_ON_GPU, env=on_gpu)


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


@nox.session
def rows(session: nox.Session) -> None:
    """Run the tests of each level on its rows of Lightning, or on rows that are named."""
    _install(session, "uv")
    session.run("python", "-m", "tools.matrix", *(session.posargs or ["--all"]))
