import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_sm._doctor import (
    Machine,
    Status,
    container_checks,
    hardware_checks,
    nccl_checks,
    smddp_checks,
    software_checks,
)
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from tests.doctor.packages import AWS_IMAGE, install, site
from tests.helpers.opt_ml import OptMl

OK, WARNING, ERROR = Status.OK, Status.WARNING, Status.ERROR
_MODULES = (hardware_checks, nccl_checks, smddp_checks, software_checks, container_checks)

# As the kernel writes them on ml.p4d.24xlarge in AWS's image.
_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             unlimited            unlimited            processes
Max open files            65536                65536                files
"""
_MOUNTS = """overlay / overlay rw,relatime,lowerdir=/a 0 0
shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=16777216k 0 0
"""
_DRIVER = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
GCC version:  gcc version 7.3.1 20180712 (Red Hat 7.3.1-17) (GCC)
"""
_OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22-I3-B03-02-1)\n"
)
_MEMORY = "MemTotal:       1176000000 kB\nMemFree:  1 kB\nMemAvailable:   1100000000 kB\n"


class Host:
    """Two hosts of ``ml.p4d.24xlarge`` under torchrun, of which this is the first, and what a test changes."""

    def __init__(self, root):
        self.root = root
        self.environ = {
            "FI_PROVIDER": "efa",
            "FI_EFA_USE_DEVICE_RDMA": "1",
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_IB_DISABLE": "1",
            "NCCL_PROTO": "simple",
            "NCCL_DEBUG": "WARN",
            "OMP_NUM_THREADS": "1",
            "SM_DLC_TORCH_VERSION": "2.8.0+cu129",
        }
        self.job = {
            "in_container": True,
            "base_dir": str(root / "ml"),
            "hosts": ("algo-1", "algo-2"),
            "current_host": "algo-1",
            "current_instance_type": "ml.p4d.24xlarge",
            "num_gpus": 8,
            "sources": {"num_gpus": "SM_NUM_GPUS"},
        }
        self.topology = Topology(Launcher.TORCHRUN, num_nodes=2, world_size=16, local_world_size=8)
        for name in range(8):
            self.file(f"/dev/nvidia{name}").file(f"/proc/driver/nvidia/gpus/0000:{name}0:1c.0/information")
        for name in range(4):
            self.file(f"/sys/class/infiniband/rdmap{name}s27/node_guid")
        for name in ("lo", "eth0"):
            self.file(f"/sys/class/net/{name}/address")
        self.file("/dev/nvidiactl").file("/opt/amazon/efa/lib/libfabric.so.1")
        self.file("/proc/driver/nvidia/version", _DRIVER).file("/proc/self/limits", _LIMITS)
        self.file("/proc/mounts", _MOUNTS).file("/proc/meminfo", _MEMORY)
        self.file("/sys/fs/cgroup/cpu.max", "9600000 100000\n").file("/sys/fs/cgroup/memory.max", "max\n")
        self.file("/sys/devices/virtual/dmi/id/product_name", "p4d.24xlarge\n")
        (root / "tmp").mkdir()
        for package in AWS_IMAGE:
            install(root, *package)

    def path(self, path):
        return self.root / path.lstrip("/")

    def file(self, path, text=""):
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)
        return self

    def remove(self, path):
        if self.path(path).is_dir():
            for each in self.path(path).iterdir():
                self.remove(str(each.relative_to(self.root)))
            self.path(path).rmdir()
        else:
            self.path(path).unlink()
        return self

    @property
    def machine(self):
        return Machine(self.environ, TrainingJob(**self.job), self.topology, self.root)

    def findings(self):
        return [each for module in _MODULES for check in module.CHECKS for each in check(self.machine)]

    def wrong(self):
        return [(each.check, each.status) for each in self.findings() if each.status != OK]

    def text(self, check):
        return " ".join(each.text for each in self.findings() if each.check == check)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_host_of_aws_is_fine(host):
    assert host.wrong() == []
    found = {each.check: each.text for each in host.findings()}
    assert found["GPUs"] == "8, ml.p4d.24xlarge"
    assert found["CPUs"] == "96 for 8 process(es)"
    assert found["memory"] == "1049.0 GiB of 1121.5 GiB are free"
    assert found["shared memory"] == "/dev/shm has 16.0 GiB"
    assert found["GPU driver"] == "535.183.01, nvidia-nccl-cu12 2.27.3"
    assert found["EFA"] == "4 device(s), FI_PROVIDER=efa"
    assert found["SMDDP"] == "not used, because the job's distribution is not smdistributed.dataparallel"
    assert len(found["NCCL settings"]) < 200


def test_a_laptop_is_fine(tmp_path):
    machine = Machine({}, TrainingJob(), Topology(Launcher.LOCAL), tmp_path)
    for package in AWS_IMAGE:
        install(tmp_path, *package)
    found = [each for module in _MODULES for check in module.CHECKS for each in check(machine)]
    assert [each for each in found if each.status != OK] == []


def test_this_machine_has_no_errors():
    # Whatever runs the tests can train.
    found = [
        each for module in (hardware_checks, nccl_checks) for check in module.CHECKS for each in check(Machine.read())
    ]
    assert [each for each in found if each.status == ERROR] == []


def test_saved_files_of_another_machine_tell_nothing_of_its_hardware(host):
    machine = Machine(host.environ, TrainingJob(**host.job), None, host.root, is_here=False)
    assert [
        each for module in (hardware_checks, nccl_checks) for check in module.CHECKS for each in check(machine)
    ] == []


# GPUs and driver.


def test_a_gpu_is_missing(host):
    host.remove("/dev/nvidia7")
    assert host.wrong() == [("GPUs", ERROR)]
    # The firmware does not say what it is.
    host.remove("/sys/devices/virtual/dmi/id/product_name")
    assert host.wrong() == [("GPUs", WARNING)]


def test_a_rehearsal_on_other_hardware_is_no_error(host):
    host.file("/sys/devices/virtual/dmi/id/product_name", "Google Compute Engine")
    for name in range(8):
        host.remove(f"/dev/nvidia{name}")
    for path in ("/proc/driver/nvidia", "/sys/class/infiniband"):
        host.remove(path)
    host.job.update(num_gpus=0)
    assert {status for _, status in host.wrong()} <= {WARNING}


def test_number_of_gpus_differs_from_the_variable(host):
    host.job.update(current_instance_type="ml.p9.24xlarge", num_gpus=4)
    assert host.text("GPUs") == "SM_NUM_GPUS=4, and this container sees 8."


@pytest.mark.parametrize(
    ("visible", "hidden"), [("0,1,2,3,4,5,6,7", 0), ("0", 7), ("", 8), ("-1", 8), ("0, 1", 6), ("GPU-a,GPU-b", 6)]
)
def test_hidden_gpus(host, visible, hidden):
    host.environ["CUDA_VISIBLE_DEVICES"] = visible
    assert (f"hides {hidden} of 8" in host.text("GPUs")) == bool(hidden)
    assert host.wrong() == ([("GPUs", WARNING)] if hidden else [])


@pytest.mark.parametrize(
    ("driver", "torch", "status"),
    [
        (_DRIVER, "2.8.0+cu129", None),
        (_DRIVER, "2.8.0+cu118", None),
        (_DRIVER, "2.11.0+cu130", ERROR),
        (_OPEN_DRIVER, "2.11.0+cu130", ERROR),
        (_OPEN_DRIVER, "2.8.0+cu128", None),
        (_DRIVER.replace("535.183.01", "580.95.05"), "2.11.0+cu130", None),
        (_DRIVER.replace("535.183.01", "470.57"), "2.8.0+cu129", ERROR),
        ("odd", "2.11.0+cu130", None),
    ],
)
def test_driver_of_the_host(host, driver, torch, status):
    install(host.root, "torch", torch)
    host.file("/proc/driver/nvidia/version", driver)
    found = [each for each in host.findings() if each.check == "GPU driver" and "torch is built" in each.text]
    assert [each.status for each in found] == ([status] if status else [])
    if status:
        host.file("/usr/local/cuda/compat/libcuda.so.1")
        found = [each for each in host.findings() if each.check == "GPU driver" and "torch is built" in each.text]
        assert [each.status for each in found] == [WARNING]


def test_nccl_that_is_newer_than_the_driver(host):
    install(host.root, "nvidia-nccl-cu13", "2.30.7")
    text = host.text("GPU driver")
    assert "nvidia-nccl-cu13 is built for CUDA 13, which needs driver 580; this host has 535.183.01" in text
    assert "several NCCL packages are installed: " in text


# The network of the GPUs.


def test_efa_without_its_devices(host):
    host.remove("/sys/class/infiniband")
    assert host.wrong() == [("EFA", ERROR)]
    host.file("/dev/infiniband/uverbs0")
    assert host.wrong() == []
    host.remove("/dev/infiniband")
    host.job["hosts"] = ("algo-1",)
    assert host.wrong() == []


def test_efa_without_its_library(host):
    host.remove("/opt/amazon/efa")
    assert host.wrong() == [("EFA", WARNING)]


@pytest.mark.parametrize("kind", ["ml.p5en.48xlarge", "ml.p6-b200.48xlarge", "ml.g6e.48xlarge"])
def test_types_that_the_toolkit_does_not_know(host, kind):
    host.job.update(current_instance_type=kind)
    assert host.wrong() == []
    del host.environ["FI_PROVIDER"]
    assert host.wrong() == [("EFA", WARNING)]
    assert "does not set FI_PROVIDER" in host.text("EFA")


@pytest.mark.parametrize("kind", ["ml.g5.xlarge", "ml.g6.4xlarge", "ml.p3.16xlarge", "ml.g4dn.xlarge"])
def test_provider_on_types_without_efa(host, kind):
    host.job.update(current_instance_type=kind)
    assert not any(each.check == "EFA" and each.status != OK for each in host.findings())
    host.remove("/sys/class/infiniband")
    assert ("EFA", WARNING) in host.wrong()
    host.job["hosts"] = ("algo-1",)
    assert ("EFA", WARNING) not in host.wrong()
    del host.environ["FI_PROVIDER"]
    assert host.text("EFA") == "no EFA device; one host needs none"


@pytest.mark.parametrize(
    ("variable", "value", "hurts"),
    [
        ("NCCL_P2P_DISABLE", "1", True),
        ("NCCL_P2P_DISABLE", "0", False),
        ("NCCL_P2P_LEVEL", "loc", True),
        ("NCCL_P2P_LEVEL", "NVL", False),
        ("NCCL_SHM_DISABLE", "1", True),
        ("NCCL_NET", "Socket", True),
        ("NCCL_NET", "AWS Libfabric", False),
        ("NCCL_NET_PLUGIN", "none", True),
        ("FI_PROVIDER", "tcp;ofi_rxm", True),
        ("FI_PROVIDER", "sockets", True),
        ("FI_EFA_USE_DEVICE_RDMA", "0", True),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", True),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", False),
        ("NCCL_ASYNC_ERROR_HANDLING", "0", True),
        ("CUDA_LAUNCH_BLOCKING", "1", True),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", True),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", False),
        ("NCCL_DEBUG", "TRACE", True),
        ("NCCL_DEBUG", "INFO", False),
        ("NCCL_ALGO", "ring", True),
        ("NCCL_PROTO", "simple", False),
    ],
)
def test_settings_that_hurt(host, variable, value, hurts):
    host.environ[variable] = value
    assert host.wrong() == ([("NCCL settings", WARNING)] if hurts else [])
    assert f"{variable}={value}" in host.text("NCCL settings") or not hurts


def test_settings_for_gpus_do_no_harm_without_them(host):
    for name in range(1, 8):
        host.remove(f"/dev/nvidia{name}")
    host.job.update(num_gpus=1, current_instance_type="ml.g5.xlarge")
    host.environ.update(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    assert host.wrong() == []


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ("eth0", True),
        ("eth", True),
        ("ens", False),
        ("=eth", False),
        ("=eth0", True),
        ("^lo,docker", True),
        ("ens,eth", True),
    ],
)
def test_interface_that_is_not_there(host, given, fits):
    host.environ["NCCL_SOCKET_IFNAME"] = given
    assert host.wrong() == ([] if fits else [("network interface", ERROR)])


def test_interface_of_gloo_is_an_exact_name(host):
    host.environ["GLOO_SOCKET_IFNAME"] = "eth"
    assert host.wrong() == [("network interface", ERROR)]


@pytest.mark.parametrize(
    ("scratch", "sort", "status"),
    [
        (None, None, None),
        ("16777216", "134217728", OK),
        ("16777216", None, OK),
        ("1000", None, ERROR),
        ("16 MB", None, ERROR),
        ("0", None, ERROR),
        ("-8192", None, ERROR),
        ("134217728", "134217728", WARNING),
    ],
)
def test_buffers_of_smddp(host, scratch, sort, status):
    for name, value in (("SCRATCH", scratch), ("SORT", sort)):
        if value is not None:
            host.environ[f"SMDDP_AG_{name}_BUFFER_SIZE_BYTES"] = value
    found = [each for each in host.findings() if each.check == "SMDDP buffers"]
    assert [each.status for each in found] == ([] if status is None else [status])


# Limits of the host.


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ("rw,size=65536k", WARNING),
        ("size=64m,rw", WARNING),
        ("rw,size=8g,mode=1777", OK),
        ("rw,size=1073741824", OK),
        ("rw,nr_inodes=1k", None),
    ],
)
def test_shared_memory(host, options, status):
    host.file("/proc/mounts", f"shm /dev/shm tmpfs {options} 0 0\n")
    found = [each.status for each in host.findings() if each.check == "shared memory"]
    if status is None:
        assert found == []
        host.path("/dev/shm").mkdir()
        # Now it is the size of the file system that it is on.
        assert len([each for each in host.findings() if each.check == "shared memory"]) == 1
    else:
        assert found == [status]


@pytest.mark.parametrize(("name", "check"), [("open files", "open files"), ("processes", "processes")])
def test_limits(host, name, check):
    host.file("/proc/self/limits", f"Max {name}             1024                 4096                {name}\n")
    assert host.wrong() == [(check, WARNING)]
    host.job.update(in_container=False)
    assert (check, WARNING) not in host.wrong()


def test_limit_of_processes_of_the_container(host):
    host.file("/sys/fs/cgroup/pids.max", "100\n")
    assert host.wrong() == [("processes", WARNING)]
    host.file("/sys/fs/cgroup/pids.max", "max\n")
    assert host.wrong() == []


@pytest.mark.parametrize("path", ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"])
def test_memory_of_the_container(host, path):
    host.file(path, f"{64 * 1024**3}\n")
    assert host.wrong() == []
    assert "may use 64.0 GiB of the host's 1121.5 GiB" in host.text("memory")
    host.file(path, f"{1024**3}\n")
    assert host.wrong() == [("memory", WARNING)]


def test_memory_that_is_used_up(host):
    host.file("/proc/meminfo", _MEMORY.replace("1100000000", "1000000"))
    assert host.wrong() == [("memory", WARNING)]


def test_cpus(host):
    host.file("/sys/fs/cgroup/cpu.max", "400000 100000\n")
    assert host.wrong() == [("CPUs", WARNING)]
    assert host.text("CPUs") == "4 for 8 process(es): they take turns."
    host.remove("/sys/fs/cgroup/cpu.max")
    host.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "9600000").file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert host.text("CPUs") == "96 for 8 process(es)"


def test_threads_of_torchrun_on_cpus(host):
    for name in range(8):
        host.remove(f"/dev/nvidia{name}")
    host.remove("/proc/driver/nvidia")
    host.job.update(num_gpus=0, current_instance_type="ml.m5.24xlarge")
    # Without torchrun somebody has chosen it.
    assert host.text("CPUs") == "96 for 8 process(es)"
    host.environ["TORCHELASTIC_RUN_ID"] = "none"
    assert "each process computes on one of 12" in host.text("CPUs")
    host.environ["OMP_NUM_THREADS"] = "12"
    assert host.text("CPUs") == "96 for 8 process(es)"


def test_temporary_files(host):
    host.environ["TMPDIR"] = "/nowhere"
    assert host.wrong() == [("temporary files", WARNING)]
    host.environ["TMPDIR"] = "/dev"
    assert "has" in host.text("temporary files")


def test_temporary_files_that_cannot_be_written(host, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/tmp"))
    (found,) = [each for each in host.findings() if each.check == "temporary files"]
    assert found.status == WARNING
    assert "/tmp is not writable" in found.text


def test_provider_on_cpus(host):
    host.job.update(current_instance_type="ml.m5.xlarge")
    host.remove("/sys/class/infiniband")
    assert [each.status for each in host.findings() if each.check == "EFA"] == [OK]


# SMDDP.


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("", OK, "used, because the job's distribution is smdistributed.dataparallel"),
        ("print('hello from AWS')", OK, "used, because"),
        ("import os; assert not any(name.startswith('OMPI') for name in os.environ)", OK, "used, because"),
        ("raise ImportError('libcudart.so.11.0')", WARNING, "failed with ImportError: libcudart.so.11.0"),
        ("import os; os._exit(3)", ERROR, "ends the process with exit code 3"),
    ],
)
def test_smddp(host, tmp_path, code, status, text):
    module = tmp_path / "library" / "smdistributed" / "dataparallel" / "torch" / "torch_smddp.py"
    module.parent.mkdir(parents=True)
    for package in list(module.parents)[:3]:
        (package / "__init__.py").touch()
    module.write_text(code)
    opt_ml = OptMl(tmp_path / "opt").host("algo-1", "algo-1", "algo-2")
    opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    ranks = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    sizes = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE")}
    host.environ.update(opt_ml.environ(PYTHONPATH=tmp_path / "library", **ranks, **sizes))
    (found,) = smddp_checks._smddp(Machine.read(host.environ, root=host.root))
    assert found.status == status
    assert text in found.text


def test_smddp_speeds_up_nothing_on_other_types(host, tmp_path):
    opt_ml = OptMl(tmp_path / "opt").host("algo-1", current_instance_type="ml.g5.48xlarge")
    opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    found = list(smddp_checks._collectives(Machine.read(opt_ml.environ(), root=host.root)))
    assert found == []


# Odd files.

_FILES = (
    "/proc/driver/nvidia/version",
    "/proc/self/limits",
    "/proc/mounts",
    "/proc/meminfo",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/pids.max",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "/sys/devices/virtual/dmi/id/product_name",
    "/ml/code/requirements.txt",
    "/ml/input/config/debughookconfig.json",
)
_FOLDERS = ("/dev", "/dev/shm", "/sys/class/net", "/sys/class/infiniband", "/root/.cache/torch_extensions", "/tmp")


def _make(kind, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "denied":
        path.write_text("1")
        path.chmod(0)
    else:
        path.write_bytes(kind)


@pytest.mark.parametrize(
    "kind",
    ["folder", "loop", "pipe", "dangling", "denied", b"", b"\0\xff" * 99, b"9" * 9999, "٣٣\n".encode() * 3],
    ids=repr,
)
@pytest.mark.parametrize("paths", [_FILES, _FOLDERS], ids=["files", "folders"])
def test_no_check_raises_on_odd_files(tmp_path, kind, paths):
    for path in paths:
        holds_packages = Path(path) in site(Path("/")).parents  # a virtual environment below /tmp
        if not (paths is _FOLDERS and path == "/dev/shm") and not holds_packages:
            _make(kind, tmp_path / path.lstrip("/"))
    if kind != "pipe":  # importlib.metadata waits for it, in every program
        _make(kind, site(tmp_path) / "torch-2.0.dist-info" / "METADATA")
    job = TrainingJob(
        in_container=True, base_dir=str(tmp_path / "ml"), current_instance_type="ml.p4d.24xlarge", num_gpus=8
    )
    machine = Machine({"FI_PROVIDER": "efa", "PATH": "/usr/bin"}, job, Topology(Launcher.HOST), tmp_path)
    found = [each for module in _MODULES for check in module.CHECKS for each in check(machine)]
    assert all(each.text and (each.hint or each.status == OK) for each in found)


_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "FI_PROVIDER", "NCCL_ALGO", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD"),
    *("SMDDP_AG_SORT_BUFFER_SIZE_BYTES", "SM_DLC_TORCH_VERSION", "TMPDIR", "PATH", "HOME", "TORCH_EXTENSIONS_DIR"),
    *("MLFLOW_TRACKING_URI", "CUDA_HOME", "OMP_NUM_THREADS", "SM_MODULE_DIR", "SMDATAPARALLEL_OPTIMIZE_SDP"),
)


@given(content=st.binary(max_size=80), value=st.text(st.characters(blacklist_characters="\0"), max_size=40))
@example(content=b"", value="\ud800")
def test_no_check_raises_on_odd_content(tmp_path_factory, content, value):
    root = tmp_path_factory.mktemp("root")
    for path in _FILES:
        _make(content, root / path.lstrip("/"))
    job = TrainingJob(in_container=True, base_dir=str(root / "ml"), current_instance_type=value, hosts=("a", "b"))
    machine = Machine(dict.fromkeys(_VARIABLES, value), job, Topology(Launcher.HOST), root)
    for module in _MODULES:
        for check in module.CHECKS:
            list(check(machine))
