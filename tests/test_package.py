"""What ``python -m build`` makes of this folder, and that SageMaker's SDK v2 takes what the documentation tells it."""

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import lightning_sm

_ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.full

_MISSING = [name for name in ("build", "hatchling", "twine") if find_spec(name) is None]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the source distribution, of which the wheel is made."""
    if _MISSING:
        pytest.skip(f"{', '.join(_MISSING)} is not installed")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(_ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def _own_files(folder):
    return {
        str(path.relative_to(_ROOT))
        for path in (_ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {name.partition(".dist-info/")[2]: archive.read(name).decode() for name in archive.namelist()}
    metadata = email.message_from_string(about["METADATA"])
    assert names == {*_own_files("lightning_sm"), "lightning_sm_entry.py"}
    assert {"lightning_sm/py.typed", "lightning_sm/_sagemaker/entrypoint.sh"} <= names
    assert about.keys() == {"", "METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE", "RECORD"}
    assert wheel.name == f"lightning_sm-{lightning_sm.__version__}-py3-none-any.whl"
    assert (metadata["Name"], metadata["Version"]) == ("lightning-sm", lightning_sm.__version__)
    assert metadata["Requires-Python"] == ">=3.8"
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    # An image's own build of torch is never named, so that pip does not replace it.
    assert sorted(re.split(r"[^\w-]", line)[0] for line in needed) == ["jsonargparse", "pytorch-lightning"]
    others = [line for line in metadata.get_all("Requires-Dist") if "examples" not in line and "'test'" not in line]
    assert not any(line.startswith("torch") for line in others)
    assert metadata.get_payload().startswith("# lightning-sm")
    assert "lightning-sm = lightning_sm.__main__:main" in about["entry_points.txt"]


def test_the_source_distribution(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert _own_files("lightning_sm") <= names
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "tests/conftest.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".ci", ".git/", "shared"))]


def test_what_an_index_would_say(built):
    files = [str(path) for path in built.iterdir()]
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_works_where_nothing_else_is(wheel, tmp_path):
    """Its console script too, as in ``requirements.txt`` beside a script: ``./lightning_sm-…-py3-none-any.whl``."""
    source = tmp_path / "source"
    source.mkdir()
    (source / wheel.name).write_bytes(wheel.read_bytes())
    (source / "requirements.txt").write_text(f"./{wheel.name}\n")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "to"),
    ]
    subprocess.run([*install, "-r", "requirements.txt"], cwd=source, check=True)
    code = "import sys, lightning_sm.__main__ as entry; print(entry.__file__); entry.main(sys.argv[1:])"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "to")}
    for words, shown in ((["--version"], lightning_sm.__version__), (["entrypoint"], "ContainerEntrypoint")):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith(str(tmp_path / "to"))
        assert shown in done.stdout


def test_the_documented_line_makes_the_wheel_that_the_page_names(built, tmp_path):
    (sources,) = built.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path)
    (clone,) = tmp_path.iterdir()
    text = (_ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^python (-m pip wheel .*?)(?:  +#.*)?$", text, re.MULTILINE)
    subprocess.run([sys.executable, *line.split(), "--no-build-isolation"], cwd=clone, check=True, capture_output=True)
    (named,) = set(re.findall(r"^\./(lightning_sm-[\w.-]+\.whl)$", text, re.MULTILINE))
    assert (clone / "examples" / "cifar10" / named).is_file()


# Distribution, and the newest version and the instance type with which SDK v2 (2.257) takes it.
_ROWS = [
    (None, "2.8.0", "py312", "ml.g5.12xlarge"),
    ({"torch_distributed": {"enabled": True}}, "2.8.0", "py312", "ml.g5.12xlarge"),
    ({"pytorchddp": {"enabled": True}}, "2.2.0", "py310", "ml.p4d.24xlarge"),
    ({"smdistributed": {"dataparallel": {"enabled": True}}}, "2.2.0", "py310", "ml.p4d.24xlarge"),
    ({"mpi": {"enabled": True, "processes_per_host": 8}}, "2.8.0", "py312", "ml.g5.12xlarge"),
]
_ESTIMATORS = """
import json, logging, sys
logging.disable(logging.CRITICAL)
import boto3, sagemaker
from sagemaker.pytorch import PyTorch

session = sagemaker.Session(boto3.Session("x", "x", region_name="us-east-1"), default_bucket="b")
told = []
for distribution, version, python, instance in json.load(sys.stdin):
    try:
        estimator = PyTorch(
            entry_point="train.py", source_dir="s3://b/source.tar.gz", role="arn:aws:iam::123456789012:role/r",
            instance_type=instance, instance_count=2, framework_version=version, py_version=python,
            distribution=distribution, sagemaker_session=session, disable_profiler=True, debugger_hook_config=False,
            hyperparameters={"config": "config.yaml", "trainer.max_epochs": 20},
        )
        estimator.hyperparameters()
        told.append(estimator.training_image_uri())
    except Exception as error:
        told.append(f"{type(error).__name__}: {error}")
json.dump(told, sys.stdout)
"""


def _ask_sdk(rows):
    """What SDK v2 says to these estimators: an image, or an error."""
    python = os.environ.get("LIGHTNING_SM_SDK_V2_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import sagemaker.pytorch"], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip("SageMaker's SDK v2 is not installed here, nor in the Python that LIGHTNING_SM_SDK_V2_PYTHON names")
    environ = {**os.environ, "SAGEMAKER_PYTHON_SDK_TELEMETRY": "false", "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", _ESTIMATORS], input=json.dumps(rows), env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_sdk_takes_each_distribution_in_its_version():
    told = _ask_sdk(_ROWS)
    for (_, version, python, _), image in zip(_ROWS, told):
        assert f"pytorch-training:{version}-gpu-{python}" in image, told
    refused = _ask_sdk([(distribution, "2.8.0", "py312", instance) for distribution, _, _, instance in _ROWS])
    # A version with which all of them work would need no column in docs/usage.md.
    assert ["is not supported" in each for each in refused] == [False, False, True, True, False]


def test_the_documentation_names_these_versions():
    page = (_ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    table = page.partition("## SageMaker Python SDK v2")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(lines) == len(_ROWS)
    for line, (distribution, version, python, _) in zip(lines, _ROWS):
        assert f"`{version}`" in line
        assert f"`{python}`" in line
        assert distribution is None or json.dumps(distribution).replace("true", "True") in line
