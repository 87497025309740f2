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
from tests.doctor.conftest import DRIVER, OPEN_DRIVER
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.opt_ml import group

_TRAPS = []


def trap(check, text, is_error=False):
    """Add a function that sets a trap on a host, which a check sees; ``text`` is a part of its finding."""

    def add(set_trap):
        _TRAPS.append(pytest.param(set_trap, check, text, is_error, id=set_trap.__name__))
        return set_trap

    return add


@trap("job", "not among the hosts", is_error=True)
def host_that_is_in_no_list(host):
    host.opt_ml.host("algo-1", current_host="algo-9")


@trap("world", "are on 1 of 2 hosts")
def world_that_leaves_hosts_out(host):
    host.two_hosts()
    host.environ.update(mpirun(0, 2, 0, 2))


@trap("world", "groups a, b trains alone")
def groups_that_train_separately(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-2", groups=[group("a", "algo-1"), group("b", "algo-2")])
    host.opt_ml.hyperparameters(sagemaker_torch_distributed_enabled=True)


@trap("variables", "data.py:2 reads SM_* variables, and on algo-2 they are those of algo-1")
def variables_of_the_main_host(host):
    host.two_hosts("algo-2").code("# SM_HOSTS\nrank = os.environ['SM_CURRENT_HOST']")
    host.environ.update(mpirun(1, 2, 0, 1), SM_CURRENT_HOST="algo-1", SM_HOSTS='["algo-1", "algo-2"]')


@trap("variables", "data.py:1 reads MASTER_ADDR, which is algo-1, and rank 0 of this world is on algo-3")
def main_host_of_the_sorted_list(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-3", groups=[group("a", "algo-3", "algo-1")])
    host.code("main = os.environ['MASTER_ADDR']").environ.update(MASTER_ADDR="algo-1", MASTER_PORT="7777")


@trap("variables", "data.py:1 reads RANK, WORLD_SIZE or LOCAL_RANK, which mpirun does not set")
def ranks_without_the_wrapper_of_smddp(host):
    host.code("rank = int(os.environ.get('RANK', 0))").environ.update(mpirun(0, 2, 0, 2))


@trap("idle accelerators", "1 process(es) on a host with 8 GPUs: 7 of them idle")
def one_process_for_eight_gpus(host):
    host.environ.update(torchrun(0, 1, 0, 1, 0, 1), SM_NUM_GPUS="8")


@trap("idle accelerators", "ml.trn1.32xlarge has Neuron cores, and neither torch_neuronx nor torch_xla is installed")
def trainium(host):
    host.two_hosts(kind="ml.trn1.32xlarge")


@trap("hyperparameters", "reach the script as text: layers, nothing, flag")
def hyperparameters_that_argparse_does_not_read_back(host):
    host.code("import argparse").opt_ml.hyperparameters(layers={"first": 1}, nothing=None, flag=True, lr=0.1)


@trap("hyperparameters", "ckpt_path stand before --config")
def option_that_is_sorted_before_the_config(host):
    host.code("import argparse").opt_ml.hyperparameters(config="config.yaml", ckpt_path="a.ckpt", lr=0.1)


@trap("source", "are older than the container: s3://bucket/sourcedir.tar.gz was not extracted")
def source_of_the_image(host):
    # It will start a moment after them.
    host.code("", "train.py").file("/proc/uptime", "40.0 70.0\n")
    host.file("/proc/1/stat", "1 (bash) " + " ".join(["S", *["0"] * 18, "10000", "0"]))
    host.opt_ml.hyperparameters(sagemaker_submit_directory="s3://bucket/sourcedir.tar.gz")


@trap("lightning version", "names no version of pytorch_lightning")
def lightning_without_a_version(host):
    host.code("six\npytorch_lightning  # newest\n", "requirements.txt")


@trap("sigterm", "does not forward it")
def process_one_of_an_image_of_aws(host):
    host.file("/proc/1/cmdline", "bash\0-m\0start_with_right_hostname.sh\0train\0")


@trap("checkpoint upload", "no CheckpointConfig")
def no_checkpoint_upload(host):
    (host.opt_ml.config / "checkpointconfig.json").unlink()


@trap("prepare data", "prepare_data runs on the main host only")
def data_prepared_once_for_all_hosts(host):
    host.two_hosts().opt_ml.hyperparameters(**{"data.prepare_data_per_node": False})


@trap("debugger", "smdebug hooks into every module")
def debugger(host):
    host.opt_ml.write("debughookconfig.json", "{}")
    host.file(f"{sysconfig.get_paths()['purelib']}/smdebug/__init__.py")


@trap("sharded channels", "training is ShardedByS3Key")
def channel_that_is_divided_twice(host):
    host.two_hosts().channel(S3DistributionType="ShardedByS3Key")


@trap("file order", "data.py:4 uses the order of a directory listing")
def files_in_an_order_of_their_own(host):
    host.two_hosts().channel()
    host.code("def a(d):\n    return sorted(x for x in os.listdir(d))\ndef b(d):\n    return [*d.glob('*')]\n")


@trap("directories", "is a file", is_error=True)
def model_directory_that_is_a_file(host):
    (host.opt_ml.base / "model").write_text("a file")


@trap("directories", "is a file", is_error=True)
def model_directory_that_is_a_broken_link(host):
    (host.opt_ml.base / "model").symlink_to("nowhere")


@trap("directories", "The directory of the failure file", is_error=True)
def failure_file_that_cannot_be_written(host):
    (host.opt_ml.base / "output").write_text("a file")


@trap("main host", "localhost resolves to ", is_error=True)
def main_host_that_resolves_to_this_one(host):
    # An address stands for a name that resolves to it; this one belongs to nobody (RFC 5737).
    host.opt_ml.host("192.0.2.1", "192.0.2.1", "localhost")
    host.environ.update(torchrun(1, 2, 0, 1, 1, 2), MASTER_ADDR="localhost", MASTER_PORT="1")


@trap("main host", "does not answer", is_error=True)
def main_host_that_drops_packets(host):
    # Linux answers no more connections than wait to be accepted, as a firewall that drops packets answers none.
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    host.kept.append(full)
    for _ in range(4):
        waiting = socket.socket()
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
        host.kept.append(waiting)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(full.getsockname()[1])}
    host.two_hosts("algo-2").environ.update(torchrun(1, 2, 0, 1, 1, 2), **address)


@trap("efa", "ml.p4d.24xlarge has EFA, and this host shows no device")
def efa_type_without_its_devices(host):
    host.two_hosts()


@trap("efa", "has 1 EFA device(s), and this image has no libfabric")
def efa_without_its_library(host):
    host.two_hosts(kind="ml.p5en.48xlarge").file("/sys/class/infiniband/rdmap0s27")


@trap("smddp collectives", "SMDATAPARALLEL_OPTIMIZE_SDP is set")
def switch_to_all_gather(host):
    host.opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    host.environ["SMDATAPARALLEL_OPTIMIZE_SDP"] = "true"


@trap("smddp collectives", "torchrun starts the processes")
def launcher_for_all_gather(host):
    names = ("sagemaker_distributed_dataparallel_enabled", "sagemaker_torch_distributed_enabled")
    host.opt_ml.hyperparameters(**dict.fromkeys(names, True))


@trap("visible gpus", "ml.p4d.24xlarge has GPUs, and this container sees none", is_error=True)
def image_without_gpus(host):
    host.file("/sys/devices/virtual/dmi/id/product_name", "p4d.24xlarge\n")


@trap("visible gpus", "CUDA_VISIBLE_DEVICES=0, 1 hides 6 of 8")
def hidden_gpus(host):
    host.gpus().environ["CUDA_VISIBLE_DEVICES"] = "0, 1"


@trap("torch of the image", "2.8.0+cu129 was replaced by 2.15.0+cu132")
def torch_that_was_replaced(host):
    host.torch("2.15.0+cu132", "13.2").environ["SM_DLC_TORCH_VERSION"] = "2.8.0+cu129"


@trap("torch of the image", "built without CUDA, and this host has 8 GPU(s)", is_error=True)
def torch_without_cuda(host):
    host.torch("2.8.0+cpu").gpus()


@trap("gpu driver", "CUDA 13.0, which needs driver 580; this host has 535.183.01", is_error=True)
def driver_that_is_too_old(host):
    host.torch("2.11.0+cu130", "13.0").gpus()


@trap("gpu driver", "this host has 570.86.15", is_error=True)
def open_driver_that_is_too_old(host):
    host.torch("2.11.0+cu130", "13.0").gpus(OPEN_DRIVER, "570.86.15")


@trap("threads", f"each process computes on one of {os.cpu_count()} CPUs")
def one_thread_for_each_process(host):
    host.environ.update(torchrun(0, 1, 0, 1, 0, 1), OMP_NUM_THREADS="1", TORCHELASTIC_RUN_ID="1")


@trap("shared memory", "/dev/shm has 64 MiB")
def shared_memory_of_docker(host):
    host.file("/dev/shm/torch").disk.total = 64 * 1024**2


@pytest.mark.parametrize(("set_trap", "check", "text", "is_error"), _TRAPS)
def test_a_trap_has_its_line_and_without_it_there_is_none(host, monkeypatch, set_trap, check, text, is_error):
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


def test_a_program_that_is_process_1_gets_sigterm_itself(host):
    host.file("/proc/1/cmdline", "python\0train.py\0--model\0pretrained\0")
    assert host.findings("sigterm") == []


def test_a_driver_with_compatibility_libraries(host):
    driver_that_is_too_old(host)
    host.file("/usr/local/cuda/compat/libcuda.so.1")
    assert host.findings("gpu driver") == []
    host.file("/proc/driver/nvidia/version", DRIVER.format("580.95.05"))
    assert host.findings("gpu driver") == []


def test_a_rehearsal_on_other_hardware_is_no_error(host):
    host.two_hosts().file("/sys/devices/virtual/dmi/id/product_name", "Google Compute Engine")
    assert [*host.findings("visible gpus"), *host.findings("efa")] == []


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
