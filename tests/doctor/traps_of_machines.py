"""The traps of the machine and its software, each as it is set on a host."""

from lightning_sm._doctor import Status
from tests.doctor.packages import install
from tests.doctor.traps import trap
from tests.helpers.opt_ml import group

OK, WARNING, ERROR = Status.OK, Status.WARNING, Status.ERROR


def _two_hosts(host, instance_type):
    groups = (group("homogeneousCluster", "algo-1", "algo-2", instance_type=instance_type),)
    host.opt_ml.host("algo-1", "algo-1", "algo-2", groups=groups, current_instance_type=instance_type)


def _asks_for_smddp(host):
    host.opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    host.file("/dev/nvidia0")


@trap(11, check="SMDDP", status=WARNING, text="failed with ModuleNotFoundError")
def image_without_smddp(host):
    _asks_for_smddp(host)


def _library(host, code):
    """Put AWS's library, which runs ``code`` when it is imported, where Python finds it."""
    module = host.root / "library" / "smdistributed" / "dataparallel" / "torch" / "torch_smddp.py"
    module.parent.mkdir(parents=True)
    for package in list(module.parents)[:3]:
        (package / "__init__.py").touch()
    module.write_text(code)
    host.environ["PYTHONPATH"] = str(host.root / "library")


@trap(11, check="SMDDP", status=WARNING, text="RuntimeError: ml.g5.xlarge is not supported")
def instance_type_that_smddp_refuses(host):
    _asks_for_smddp(host)
    _library(host, "raise RuntimeError('ml.g5.xlarge is not supported')")


@trap(11, check="SMDDP", status=ERROR, text="ends the process with SIGABRT")
def smddp_that_ends_the_process(host):
    _asks_for_smddp(host)
    _library(host, "import os; os.abort()")


@trap(11, check="SMDDP", status=OK, text="SMDDP needs GPUs and the device is cpu")
def smddp_without_gpus(host):
    host.opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)


@trap(11, check="SMDDP", status=WARNING, text="ml.g5.48xlarge is not supported by SMDDP")
def instance_type_without_smddp_in_saved_files(host):
    host.is_here = False
    host.opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    _two_hosts(host, "ml.g5.48xlarge")


@trap(13, check="SMDDP collectives", status=OK, text="AllReduce (DDP) is sped up, AllGather is not")
def launcher_for_all_reduce(host):
    host.opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)


@trap(13, check="SMDDP collectives", status=WARNING, text="DDP's AllReduce is not")
def switch_to_all_gather(host):
    host.opt_ml.hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    host.environ["SMDATAPARALLEL_OPTIMIZE_SDP"] = "true"


@trap(13, check="SMDDP collectives", status=WARNING, text="under torchrun AllGather")
def launcher_for_all_gather(host):
    names = ("sagemaker_distributed_dataparallel_enabled", "sagemaker_torch_distributed_enabled")
    host.opt_ml.hyperparameters(**dict.fromkeys(names, True))


@trap(14, check="EFA", status=WARNING, text="ml.g4dn.xlarge has no EFA")
def efa_provider_on_a_type_without_efa(host):
    _two_hosts(host, "ml.g4dn.xlarge")
    host.environ["FI_PROVIDER"] = "efa"


@trap(14, check="EFA", status=WARNING, text="hosts communicate over TCP")
def efa_type_without_its_devices(host):
    _two_hosts(host, "ml.p4d.24xlarge")


@trap(14, check="NCCL settings", status=OK, text="NCCL_IB_DISABLE=1, NCCL_PROTO=simple")
def settings_of_every_container(host):
    host.environ.update(NCCL_IB_DISABLE="1", NCCL_PROTO="simple")


@trap(29, check="host name", status=ERROR, text="resourceconfig.json, and that is missing")
def host_name_library_without_its_file(host):
    host.environ["LD_PRELOAD"] = "/usr/lib/python3/site-packages/gethostname.cpython-311-x86_64-linux-gnu.so"


@trap(32, check="torch", status=OK, text="2.15.0+cu132")
def torch_above_the_limits_of_the_sdk(host):
    host.opt_ml.hyperparameters(sagemaker_torch_distributed_enabled=True)
    install(host.root, "torch", "2.15.0+cu132")


@trap(33, check="mpirun", status=ERROR, text="mpi4py is not installed")
def image_without_mpi4py(host):
    host.opt_ml.hyperparameters(sagemaker_mpi_enabled=True)


@trap(33, check="mpirun", status=ERROR, text="sshd is not in this image")
def image_without_ssh(host):
    host.opt_ml.hyperparameters(sagemaker_mpi_enabled=True)
    host.opt_ml.host("algo-1", "algo-1", "algo-2")


@trap(
    34, check="Lightning", status=WARNING, text="pytorch-lightning 1.9.5 with torch 2.10.0+cu130 is not tested together"
)
def lightning_that_is_older_than_the_image(host):
    install(host.root, "torch", "2.10.0+cu130")
    install(host.root, "pytorch-lightning", "1.9.5")
