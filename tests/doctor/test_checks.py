"""Each check, shown by a host on which what it looks for is set, and by one on which it is not."""

import os
import socket
import sys
import sysconfig
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_sm._doctor import CHECKS, Machine, list_files, name_of, network_checks
from lightning_sm._sagemaker.job import TrainingJob
from tests.doctor.conftest import OPEN_DRIVER
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.opt_ml import group


def main_host_of_the_sorted_list(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-3", groups=[group("a", "algo-3", "algo-1")])
    host.code("main = os.environ['MASTER_ADDR']").environ.update(MASTER_ADDR="algo-1", MASTER_PORT="7777")


def source_of_the_image(host):
    # It will start a moment after them.
    host.code("", "train.py").file("/proc/uptime", "40.0 70.0\n")
    host.file("/proc/1/stat", "1 (bash) " + " ".join(["S", *["0"] * 18, "10000", "0"]))
    host.opt_ml.hyperparameters(sagemaker_submit_directory="s3://bucket/sourcedir.tar.gz")


def debugger(host):
    host.opt_ml.write("debughookconfig.json", "{}")
    host.file(f"{sysconfig.get_paths()['purelib']}/smdebug/__init__.py")


def switch_to_all_gather(host):
    host.opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    host.environ["SMDATAPARALLEL_OPTIMIZE_SDP"] = "true"


def shared_memory_of_docker(host):
    host.file("/dev/shm/torch").disk.total = 64 * 1024**2


def main_host_that_resolves_to_this_one(host):
    # An address stands for a name that resolves to it; this one belongs to nobody (RFC 5737).
    host.opt_ml.host("192.0.2.1", "192.0.2.1", "localhost")
    host.environ.update(torchrun(1, 2, 0, 1, 1, 2), MASTER_ADDR="localhost", MASTER_PORT="1")


def main_host_that_drops_packets(host):
    # Linux answers no more connections than wait to be accepted, as a firewall that drops packets answers none.
    full = host.kept.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(4):
        waiting = host.kept.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(full.getsockname()[1])}
    host.two_hosts("algo-2").environ.update(torchrun(1, 2, 0, 1, 1, 2), **address)


_TORCHRUN = {"sagemaker_torch_distributed_enabled": True}
_TWO_GROUPS = [group("a", "algo-1"), group("b", "algo-2")]
_LISTINGS = "def a(d):\n    return sorted(x for x in os.listdir(d))\ndef b(d):\n    return [*d.glob('*')]\n"
# The check that sees a trap, a part of its finding, and what sets the trap on a host.
_WARNINGS = [
    ("world", "are on 1 of 2 hosts", lambda host: host.two_hosts().environ.update(mpirun(0, 2, 0, 2))),
    (
        "world",
        "groups a, b trains alone",
        lambda host: host.opt_ml.host("algo-1", "algo-1", "algo-2", groups=_TWO_GROUPS).hyperparameters(**_TORCHRUN),
    ),
    (
        "variables",
        "data.py:2 reads SM_* variables, and on algo-2 they are those of algo-1",
        lambda host: (
            host.two_hosts("algo-2")
            .code("# SM_HOSTS\nrank = os.environ['SM_CURRENT_HOST']")
            .environ.update(mpirun(1, 2, 0, 1), SM_CURRENT_HOST="algo-1", SM_HOSTS='["algo-1", "algo-2"]')
        ),
    ),
    (
        "variables",
        "data.py:1 reads MASTER_ADDR, which is algo-1, and rank 0 of this world is on algo-3",
        main_host_of_the_sorted_list,
    ),
    (
        "variables",
        "data.py:1 reads RANK, WORLD_SIZE or LOCAL_RANK, which mpirun does not set",
        lambda host: host.code("rank = int(os.environ.get('RANK', 0))").environ.update(mpirun(0, 2, 0, 2)),
    ),
    (
        "idle accelerators",
        "1 process(es) on a host with 8 GPUs: 7 of them idle",
        lambda host: host.environ.update(torchrun(0, 1, 0, 1, 0, 1), SM_NUM_GPUS="8"),
    ),
    (
        "idle accelerators",
        "ml.trn1.32xlarge has Neuron cores, and neither torch_neuronx nor torch_xla is installed",
        lambda host: host.two_hosts(kind="ml.trn1.32xlarge"),
    ),
    (
        "hyperparameters",
        "reach the script as text: layers, nothing, flag",
        lambda host: host.code("import argparse").opt_ml.hyperparameters(
            layers={"first": 1}, nothing=None, flag=True, lr=0.1
        ),
    ),
    (
        "hyperparameters",
        "ckpt_path stand before --config",
        lambda host: host.code("import argparse").opt_ml.hyperparameters(
            config="config.yaml", ckpt_path="a.ckpt", lr=0.1
        ),
    ),
    ("source", "are older than the container: s3://bucket/sourcedir.tar.gz was not extracted", source_of_the_image),
    (
        "lightning version",
        "names no version of pytorch_lightning",
        lambda host: host.code("six\npytorch_lightning  # newest\n", "requirements.txt"),
    ),
    (
        "sigterm",
        "does not forward it",
        lambda host: host.file("/proc/1/cmdline", "bash\0-m\0start_with_right_hostname.sh\0train\0"),
    ),
    (
        "checkpoint upload",
        "no CheckpointConfig",
        lambda host: (host.opt_ml.config / "checkpointconfig.json").unlink(),
    ),
    (
        "prepare data",
        "prepare_data runs on the main host only",
        lambda host: host.two_hosts().opt_ml.hyperparameters(**{"data.prepare_data_per_node": False}),
    ),
    ("debugger", "smdebug hooks into every module", debugger),
    (
        "sharded channels",
        "training is ShardedByS3Key",
        lambda host: host.two_hosts().channel(S3DistributionType="ShardedByS3Key"),
    ),
    (
        "file order",
        "data.py:4 uses the order of a directory listing",
        lambda host: host.two_hosts().channel().code(_LISTINGS),
    ),
    ("efa", "ml.p4d.24xlarge has EFA, and this host shows no device", lambda host: host.two_hosts()),
    (
        "efa",
        "has 1 EFA device(s), and this image has no libfabric",
        lambda host: host.two_hosts(kind="ml.p5en.48xlarge").file("/sys/class/infiniband/rdmap0s27"),
    ),
    (
        "smddp collectives",
        "SMDATAPARALLEL_OPTIMIZE_SDP is set",
        switch_to_all_gather,
    ),
    (
        "smddp collectives",
        "torchrun starts the processes",
        lambda host: host.opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True, **_TORCHRUN),
    ),
    (
        "visible gpus",
        "CUDA_VISIBLE_DEVICES=0, 1 hides 6 of 8",
        lambda host: host.gpus().environ.update(CUDA_VISIBLE_DEVICES="0, 1"),
    ),
    (
        "torch of the image",
        "2.8.0+cu129 was replaced by 2.15.0+cu132",
        lambda host: host.torch("2.15.0+cu132", "13.2").environ.update(SM_DLC_TORCH_VERSION="2.8.0+cu129"),
    ),
    (
        "threads",
        f"each process computes on one of {os.cpu_count()} CPUs",
        lambda host: host.environ.update(torchrun(0, 1, 0, 1, 0, 1), OMP_NUM_THREADS="1", TORCHELASTIC_RUN_ID="1"),
    ),
    ("shared memory", "/dev/shm has 64 MiB", shared_memory_of_docker),
]
_ERRORS = [
    ("job", "not among the hosts", lambda host: host.opt_ml.host("algo-1", current_host="algo-9")),
    ("directories", "is a file", lambda host: (host.opt_ml.base / "model").write_text("a file")),
    ("directories", "is a file", lambda host: (host.opt_ml.base / "model").symlink_to("nowhere")),
    (
        "directories",
        "The directory of the failure file",
        lambda host: (host.opt_ml.base / "output").write_text("a file"),
    ),
    ("main host", "localhost resolves to ", main_host_that_resolves_to_this_one),
    ("main host", "does not answer", main_host_that_drops_packets),
    (
        "visible gpus",
        "ml.p4d.24xlarge has GPUs, and this container sees none",
        lambda host: host.file("/sys/devices/virtual/dmi/id/product_name", "p4d.24xlarge\n"),
    ),
    (
        "torch of the image",
        "built without CUDA, and this host has 8 GPU(s)",
        lambda host: host.torch("2.8.0+cpu").gpus(),
    ),
    (
        "gpu driver",
        "CUDA 13.0, which needs driver 580; this host has 535.183.01",
        lambda host: host.torch("2.11.0+cu130", "13.0").gpus(),
    ),
    (
        "gpu driver",
        "this host has 570.86.15",
        lambda host: host.torch("2.11.0+cu130", "13.0").gpus(OPEN_DRIVER, "570.86.15"),
    ),
]


@pytest.mark.parametrize(
    ("is_error", "check", "text", "set_trap"),
    [*((False, *each) for each in _WARNINGS), *((True, *each) for each in _ERRORS)],
)
def test_a_trap_has_its_line_and_without_it_there_is_none(host, monkeypatch, is_error, check, text, set_trap):
    monkeypatch.setattr(network_checks, "_CONNECT_FOR", 0.1)
    monkeypatch.setattr(network_checks, "_CONNECT_TIMEOUT", 0.3)
    assert not [each for each in host.findings(check) if text in each.text and each.is_error is is_error]
    set_trap(host)
    found = host.findings(check)
    assert [each.is_error for each in found if text in each.text] == [is_error], found
    assert all(each.hint for each in found)


@pytest.mark.parametrize(
    ("variable", "value", "hurts"),
    [
        ("NCCL_P2P_DISABLE", "1", True), ("NCCL_P2P_DISABLE", "0", False), ("NCCL_P2P_LEVEL", "loc", True),
        ("NCCL_SHM_DISABLE", "1", True), ("NCCL_NET", "Socket", True), ("NCCL_NET", "AWS Libfabric", False),
        ("FI_PROVIDER", "tcp;ofi_rxm", True), ("FI_EFA_USE_DEVICE_RDMA", "0", True), ("NCCL_ALGO", "ring", True),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", True), ("CUDA_LAUNCH_BLOCKING", "1", True),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", True), ("TORCH_DISTRIBUTED_DEBUG", "INFO", False),
        ("NCCL_DEBUG", "TRACE", True), ("NCCL_IB_DISABLE", "1", False), ("NCCL_PROTO", "simple", False),
    ],
)  # fmt: skip
def test_settings_that_hurt(host, variable, value, hurts):
    host.two_hosts().gpus().file("/sys/class/infiniband/rdmap0s27")
    host.environ[variable] = value
    found = host.findings("nccl settings")
    assert [each.text.startswith(f"{variable}={value}: ") for each in found] == ([True] if hurts else [])


def test_what_is_right_is_not_blamed(host, monkeypatch):
    """A host of AWS under torchrun, with everything set as its containers set it, and a project that uses us."""
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    host.two_hosts().gpus().torch("2.8.0+cu129", "12.9").channel()
    host.file("/sys/devices/virtual/dmi/id/product_name", "p4d.24xlarge").file("/opt/amazon/efa/lib/libfabric.so.1")
    host.file("/sys/class/infiniband/rdmap0s27").file("/dev/shm/torch")
    host.file("/proc/1/cmdline", "bash\0lightning-sm\0train\0").code("import lightning_sm\nRANK = 'a'\nsorted(glob())")
    host.code("lightning>=2.5,<2.6\ntorchmetrics\n", "requirements.txt")
    host.opt_ml.hyperparameters(config="config.yaml", ckpt_path=None, flag=True)
    host.environ.update(torchrun(0, 16, 0, 8, 0, 2), SM_NUM_GPUS="8", SM_DLC_TORCH_VERSION="2.8.0+cu129")
    host.environ.update(
        NCCL_IB_DISABLE="1", NCCL_PROTO="simple", FI_PROVIDER="efa", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"
    )
    assert host.findings() == []


def rehearsal_on_other_hardware(host):
    host.two_hosts().file("/sys/devices/virtual/dmi/id/product_name", "Google Compute Engine")


@pytest.mark.parametrize(
    ("check", "set_right"),
    [
        # A program that is process 1 gets SIGTERM itself.
        ("sigterm", lambda host: host.file("/proc/1/cmdline", "python\0train.py\0--model\0pretrained\0")),
        (
            "gpu driver",
            lambda host: host.torch("2.11.0+cu130", "13.0").gpus().file("/usr/local/cuda/compat/libcuda.so.1"),
        ),
        ("gpu driver", lambda host: host.torch("2.11.0+cu130", "13.0").gpus(version="580.95.05")),
        ("visible gpus", rehearsal_on_other_hardware),
        ("efa", rehearsal_on_other_hardware),
    ],
)
def test_what_looks_like_a_trap_and_is_none(host, check, set_right):
    set_right(host)
    assert host.findings(check) == []


def test_a_main_host_that_has_not_started_is_waited_for(host, monkeypatch):
    host.two_hosts("algo-2").environ.update(torchrun(1, 2, 0, 1, 1, 2), MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    assert host.findings("main host") == [], "nothing listens there yet"
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror))
    assert host.findings("main host") == [], "it has no name yet"


@pytest.mark.parametrize(("version", "number"), [((3, 11, 7), 1), ((3, 12, 0), 0)])
def test_forks_beside_gloo(host, monkeypatch, version, number):
    monkeypatch.setattr(sys, "version_info", version)
    host.environ.update(torchrun(0, 2, 0, 2, 0, 1))
    assert len(host.findings("fork")) == number


@pytest.mark.parametrize(("free", "is_error"), [(20e9, None), (9e9, False), (1e8, True)])
def test_disk_space(host, free, is_error):
    host.disk.free = free
    found = host.findings("disk space")
    assert {each.is_error for each in found} == ({is_error} if is_error is not None else set())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
@pytest.mark.parametrize("path", ["/proc/driver/nvidia/version", "/proc/1/stat"])
def test_no_check_raises_on_odd_files(host, path, content):
    host.gpus().torch("2.8.0", "12.9").file(path)
    (host.root / path.lstrip("/")).write_bytes(content)
    assert not [each for each in host.findings() if "could not be examined" in each.text]


def test_a_laptop_is_fine(tmp_path):
    machine = Machine({}, TrainingJob(), root=tmp_path)
    assert [each for check in CHECKS for each in check(machine)] == []


def test_there_are_24_checks_and_each_says_what_it_saves():
    assert len(CHECKS) == len({name_of(check) for check in CHECKS}) == 24
    for check in CHECKS:
        assert "\n    Saves: " in (check.__doc__ or ""), name_of(check)


def test_caches_that_a_program_writes_into_a_channel_do_not_count(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    before = list_files(str(tmp_path))
    cache = tmp_path / "cache.lock"
    while not cache.exists() or cache.stat().st_ctime <= (tmp_path / "a.txt").stat().st_ctime:
        cache.write_text("")
    assert list_files(str(tmp_path)) != before
    assert list_files(str(tmp_path), cache.stat().st_ctime) == before
