import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._doctor import Machine, Status, container_checks, software_checks
from lightning_sm._doctor.host import Package, find_package, packages, torch_build
from lightning_sm._lightning.levels import VERIFIED
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from tests.doctor.packages import AWS_IMAGE, install, site

OK, WARNING, ERROR = Status.OK, Status.WARNING, Status.ERROR


@pytest.fixture
def image(tmp_path):
    """A machine with an AWS image, and what a test adds to it."""

    class Image:
        root = tmp_path

        def __init__(self):
            self.environ = {"SM_DLC_TORCH_VERSION": "2.8.0+cu129"}
            self.job = {"in_container": True, "base_dir": str(tmp_path / "ml")}
            self.more = {}
            for package in AWS_IMAGE:
                install(tmp_path, *package)

        def file(self, path, text=""):
            file = tmp_path / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

        def remove(self, name):
            for folder in site(tmp_path).glob(f"{name.replace('-', '_')}-*.dist-info"):
                (folder / "METADATA").unlink()
                folder.rmdir()

        def replace(self, name, *package):
            self.remove(name)
            install(tmp_path, name, *package)

        @property
        def machine(self):
            return Machine(self.environ, TrainingJob(**self.job), root=tmp_path, **self.more)

        def findings(self, module=software_checks):
            return [each for check in module.CHECKS for each in check(self.machine)]

        def wrong(self, module=software_checks):
            return [(each.check, each.status) for each in self.findings(module) if each.status != OK]

    return Image()


def test_an_image_of_aws_is_fine(image):
    image.file("ml/code/requirements.txt", "lightning-sm\npytorch-lightning==2.5.5\n-r more.txt\n# torch\n")
    assert image.wrong() == []
    assert {each.check for each in image.findings()} >= {"Python", "Lightning", "torch", "requirements.txt"}


def test_every_tested_pair_is_fine(image):
    for lightning, torch in VERIFIED:
        found = software_checks._tested("lightning", _package(lightning), ".".join(map(str, torch)))
        assert found.status == OK, found


def _package(version):
    return Package("lightning", ".".join(map(str, version)), (), None)


@pytest.mark.parametrize(
    ("lightning", "torch", "status"),
    [
        ("2.6.6", "2.10.0+cu130", OK),  # between what 2.5 and 2.6 are tested with: AWS's images
        ("2.4.0", "2.3.1+cu121", OK),
        ("2.2.5", "2.3.0", OK),
        ("2.6.6", "2.16.0", WARNING),
        ("2.7.0", "2.15.0", WARNING),
        ("2.7.0", "2.16.0", WARNING),
        ("1.5.10", "2.0.1", WARNING),
        ("1.4.9", "1.10.0", WARNING),
        ("3.0", "not a version", WARNING),
    ],
)
def test_pairs_between_tested_ones_are_fine(lightning, torch, status):
    found = software_checks._tested("lightning", _package(tuple(lightning.split("."))), torch)
    assert (found.status, bool(found.hint)) == (status, status != OK)


def test_trap_34_a_python_that_is_not_tested(image):
    (found,) = software_checks._python(image.machine, (3, 14, 0))
    assert found.status == WARNING
    assert "3.14.0" in found.text
    (found,) = software_checks._python(image.machine, (3, 13, 0))
    assert found.status == OK


def test_no_lightning(image):
    image.remove("pytorch-lightning")
    assert image.wrong() == [("Lightning", ERROR)]


def test_namespaces_of_different_versions(image):
    install(image.root, "lightning", "2.4.0")
    assert ("Lightning", WARNING) in image.wrong()


@pytest.mark.parametrize("name", ["lightning", "pytorch-lightning"])
def test_compromised_release(image, name):
    image.replace("pytorch-lightning", "2.5.5")
    image.remove(name)
    install(image.root, name, "2.6.3")
    assert ("versions", ERROR) in image.wrong()


def test_lightning_that_needs_an_older_setuptools(image):
    image.replace("pytorch-lightning", "2.0.9")
    image.replace("setuptools", "81.0.0")
    assert ("versions", ERROR) in image.wrong()


def test_torch_of_the_image_was_replaced(image):
    image.replace("torch", "2.15.0+cu132")
    found = [each for each in image.findings() if each.check == "torch" and each.status == WARNING]
    assert "2.8.0+cu129 was replaced by 2.15.0+cu132" in found[0].text
    # What was built for the image's torch no longer fits.
    assert {("torchvision", ERROR), ("torchaudio", ERROR)} <= set(image.wrong())


def test_torchvision_for_another_patch_release_of_torch(image):
    image.replace("torchvision", "0.23.0", "torch==2.8.1")
    assert image.wrong() == [("torchvision", WARNING)]
    image.replace("torchvision", "0.22.0", "torch==2.7.1")
    assert image.wrong() == [("torchvision", ERROR)]
    image.replace("torchvision", "0.29.2", "torch>=2.14.0")
    assert image.wrong() == [("torchvision", ERROR)]
    image.replace("torchvision", "0.29.2", "torch")
    assert image.wrong() == []


def test_torch_without_cuda_on_a_gpu(image):
    del image.environ["SM_DLC_TORCH_VERSION"]
    image.replace("torch", "2.8.0+cpu")
    assert ("torch", ERROR) not in image.wrong()
    image.file("/dev/nvidia0")
    assert ("torch", ERROR) in image.wrong()


def test_no_torch(image):
    image.remove("torch")
    assert ("torch", ERROR) in image.wrong()


def test_torchmetrics_that_is_too_old(image):
    image.replace("torchmetrics", "0.6.0")
    (found,) = [each for each in image.findings() if each.check == "pytorch-lightning"]
    assert found.status == WARNING
    assert found.text == "pytorch-lightning 2.5.5 requires torchmetrics >0.7.0, and 0.6.0 is installed."


def test_library_that_would_replace_torch(image):
    install(image.root, "litdata", "0.2.76", "torchvision", "lightning-utilities; extra == 'extras'")
    assert image.wrong() == []
    image.remove("torchvision")
    (found,) = [each for each in image.findings() if each.check == "packages for torch"]
    assert found.text == "litdata requires torchvision, which is not installed: pip would install another torch."
    install(image.root, "streams", "1.0", "torch>=99")
    (found,) = [each for each in image.findings() if each.check == "packages for torch"]
    assert "streams requires torch >=99, and 2.8.0+cu129 is installed" in found.text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("torch==2.8.0", None),
        ("torch", "may replace the image's torch 2.8.0+cu129"),
        ("torch>=2.9", "may replace the image's torch"),
        ("Torch[opt] >= 2.0  # mine", None),
        ("torchvision", "torchvision names no version"),
        ("torchvision==0.23.0", None),
        ("litdata", "litdata requires torchvision"),
        ("lightning", "lightning names no version"),
        ("pytorch_lightning", "pytorch-lightning names no version"),
        ("lightning>=2.5,<2.6", None),
        ("git+https://github.com/a/b", None),
        ("numpy; python_version < '3'", None),
        ("torch; python_version < '3'", None),
        ("--extra-index-url https://token@host", None),
    ],
)
def test_requirements_file(image, line, text):
    image.file("ml/code/requirements.txt", f"six\n{line}\n")
    found = [each for each in image.findings() if each.check == "requirements.txt"]
    assert [each.status for each in found] == [WARNING if text else OK]
    assert text is None or text in found[0].text


def test_other_folders_with_requirements(image):
    image.file("elsewhere/requirements.txt", "lightning")
    assert image.wrong() == []
    image.environ["SM_MODULE_DIR"] = str(image.root / "elsewhere")
    assert image.wrong() == [("requirements.txt", WARNING)]
    image.environ["SM_MODULE_DIR"] = "s3://bucket/sourcedir.tar.gz"
    assert image.wrong() == []
    image.file("ml/input/data/code/requirements.txt", "lightning")
    assert image.wrong() == [("requirements.txt", WARNING)]


def test_saved_files_of_another_machine_tell_nothing_of_software(image):
    image.more["is_here"] = False
    assert image.findings() == []


# The container.


def _ask(image, **hyperparameters):
    image.job["hyperparameters"] = Hyperparameters.from_file(hyperparameters, "hyperparameters.json")


def test_a_container_of_aws_is_fine(image):
    image.file("/usr/local/bin/start_with_right_hostname.sh")
    image.file("/usr/bin/gcc")
    image.file("/usr/bin/jq")
    image.file("/opt/amazon/openmpi/bin/mpirun")
    image.file("/usr/sbin/sshd")
    image.job["hosts"] = ("algo-1", "algo-2")
    _ask(image, sagemaker_mpi_enabled="true")
    assert image.wrong(container_checks) == []
    assert [each.check for each in image.findings(container_checks)] == ["training toolkit", "mpirun"]


@pytest.mark.parametrize("missing", ["mpirun", "sshd", "mpi4py"])
@pytest.mark.parametrize("switch", container_checks._MPI_SWITCHES)
def test_launcher_without_its_programs(image, missing, switch):
    for name, path in (("mpirun", "/bin/mpirun"), ("sshd", "/usr/sbin/sshd")):
        if name != missing:
            image.file(path)
    if missing == "mpi4py":
        image.remove("mpi4py")
    image.environ["PATH"] = "/bin"
    image.job["hosts"] = ("algo-1", "algo-2")
    _ask(image, **{switch: "true"})
    assert image.wrong(container_checks) == [("mpirun", ERROR)]
    # Whoever was started by mpirun has all of it.
    image.environ["OMPI_COMM_WORLD_RANK"] = "0"
    assert image.wrong(container_checks) == []


def test_entry_point_without_its_programs(image):
    image.file("/usr/local/bin/start_with_right_hostname.sh")
    image.file("/usr/bin/gcc")
    (found,) = [each for each in image.findings(container_checks) if each.status != OK]
    assert "needs jq" in found.text


def test_debugger(image):
    assert image.wrong(container_checks) == []
    image.file("ml/input/config/debughookconfig.json", "{}")
    assert image.wrong(container_checks) == []
    install(image.root, "smdebug", "1.0.34")
    assert image.wrong(container_checks) == [("Debugger", WARNING)]
    image.file("ml/input/config/checkpointconfig.json", "{}")
    assert image.wrong(container_checks) == [("Debugger", WARNING)]
    image.more["topology"] = Topology(Launcher.TORCHRUN, world_size=2)
    assert image.wrong(container_checks) == [("Debugger", ERROR)]
    image.environ["USE_SMDEBUG"] = "0"
    assert image.wrong(container_checks) == []


def test_debugger_in_saved_files(image):
    image.file("saved/debughookconfig.json", "{}")
    image.environ = {"SM_INPUT_CONFIG_DIR": str(image.root / "saved")}
    image.more["is_here"] = False
    assert image.wrong(container_checks) == [("Debugger", WARNING)]


@pytest.mark.parametrize("path", ["ops/lock", "py311_cu128/ops/lock"])
def test_lock_of_a_build(image, path):
    image.environ["HOME"] = "/root"
    image.file(f"/root/.cache/torch_extensions/{path}")
    assert image.wrong(container_checks) == [("torch_extensions", WARNING)]
    os.utime(image.root / "root/.cache/torch_extensions" / path, (0, 0))
    assert image.wrong(container_checks) == [("torch_extensions", ERROR)]
    image.environ["TORCH_EXTENSIONS_DIR"] = "/other"
    assert image.wrong(container_checks) == []
    image.file(f"/other/{path}")
    assert image.wrong(container_checks) == [("torch_extensions", WARNING)]


def test_deepspeed_without_a_compiler(image):
    install(image.root, "deepspeed", "0.19.8")
    assert image.wrong(container_checks) == []
    image.file("/dev/nvidia0")
    assert image.wrong(container_checks) == [("deepspeed", WARNING)]
    image.file("/usr/local/cuda/bin/nvcc")
    assert image.wrong(container_checks) == []


@pytest.mark.parametrize(
    ("arn", "action"),
    [
        ("arn:aws:sagemaker:eu-west-1:123456789012:mlflow-app/app-1", "sagemaker:CallMlflowAppApi"),
        ("arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/mine", "sagemaker-mlflow:*"),
    ],
)
def test_mlflow_without_its_plugin(image, arn, action):
    image.environ["MLFLOW_TRACKING_URI"] = "http://localhost:5000"
    assert image.findings(container_checks)[1:] == []
    image.environ["MLFLOW_TRACKING_URI"] = arn
    (found,) = [each for each in image.findings(container_checks) if each.check == "MLflow"]
    assert (found.status, action in found.hint) == (ERROR, True)
    install(image.root, "sagemaker-mlflow", "0.5.0")
    assert image.wrong(container_checks) == []


@pytest.mark.parametrize(
    "job",
    [{"current_instance_type": "ml.trn1.32xlarge"}, {"num_neurons": 2}, {"current_instance_type": "ml.inf2.xlarge"}],
)
def test_trainium_is_recognised(image, job):
    image.job.update(job)
    (found,) = [each for each in image.findings(container_checks) if each.status != OK]
    assert found.check == "Trainium"
    assert "neuronx_distributed.lightning" in found.hint


# Damaged packages.


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"Name: torch", b"Name: \xff\nVersion: 1", b"Version: 2.0"])
def test_damaged_metadata_is_no_package(tmp_path, content):
    install(tmp_path, "torch", "2.0.0", metadata=content)
    machine = Machine({}, TrainingJob(), root=tmp_path)
    assert find_package(machine, "torchvision") is None
    list(packages(machine))
    for check in software_checks.CHECKS:
        list(check(machine))


@given(content=st.binary(max_size=200), version=st.binary(max_size=200))
def test_no_check_raises_on_odd_metadata(tmp_path_factory, content, version):
    root = tmp_path_factory.mktemp("root")
    install(root, "torch", "2.0.0+cu118")
    (site(root) / "torch" / "version.py").write_bytes(version)
    install(root, "torchvision", "0.15.0", metadata=b"Name: torchvision\nVersion: 0.15.0\nRequires-Dist: " + content)
    machine = Machine({}, TrainingJob(), root=root)
    assert torch_build(machine) is not None
    for check in software_checks.CHECKS:
        list(check(machine))
