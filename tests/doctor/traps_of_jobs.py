"""Traps of rank discovery, arguments and the life cycle."""

import os
import socket
import time
from pathlib import Path

from lightning_sm._doctor import Status
from lightning_sm._resume.identity import ProgramIdentity
from lightning_sm._resume.record import CheckpointRecord, SavedFile
from lightning_sm._resume.series import complete_record
from tests.doctor.traps import trap
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.opt_ml import group

OK, WARNING, ERROR = Status.OK, Status.WARNING, Status.ERROR
SMDDP = {"sagemaker_distributed_dataparallel_enabled": True}
V3_CHANNELS = {"code": {"TrainingInputMode": "File"}, "sm_drivers": {"TrainingInputMode": "File"}}


def _v3(host, channels=None, **hyperparameters):
    host.opt_ml.write("inputdataconfig.json", {**V3_CHANNELS, **(channels or {})})
    host.opt_ml.write("hyperparameters.json", hyperparameters)
    host.is_here = False


def _channel(host, mode, *files, **more):
    host.opt_ml.write("inputdataconfig.json", {"training": {"TrainingInputMode": mode, **more}})
    folder = host.opt_ml.base / "input" / "data" / "training"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text(name)
    return folder


def _code(host, *names, started=-60.0):
    """Put files into the source directory of a container that started so many seconds after they were there."""
    code = host.opt_ml.base / "code"
    code.mkdir(exist_ok=True)
    for name in names:
        (code / name).write_text("import argparse")
    host.file("/proc/stat", f"cpu 1\nbtime {int(time.time() + started)}\n")
    host.file("/proc/1/stat", "1 (bash) " + " ".join(["S", *["0"] * 18, "100", "0"]))
    source = "s3://bucket/job/source/sourcedir.tar.gz"
    host.opt_ml.hyperparameters(sagemaker_submit_directory=source, sagemaker_program="train.py")


def _project(host, text):
    """Put a module into the source directory of the project."""
    code = host.opt_ml.base / "code"
    code.mkdir(exist_ok=True)
    (code / "data.py").write_text(text)


# Rank discovery


@trap(1, check="launcher", status=OK, text="MASTER_ADDR is set in every container and names no launcher")
def main_address_without_launcher(host):
    host.environ.update(MASTER_ADDR="algo-1", MASTER_PORT="7777")


@trap(1, 8, check="launcher", status=WARNING, text="WORLD_SIZE=2 without a launcher")
def world_size_counts_hosts(host):
    host.environ.update(MASTER_ADDR="algo-1", WORLD_SIZE="2")


@trap(1, check="launcher", status=WARNING, text="the job asks for torch_distributed")
def launcher_that_did_not_start_this_process(host):
    host.opt_ml.hyperparameters(sagemaker_torch_distributed_enabled=True)


@trap(2, check="SM_* variables", status=WARNING, text="main host's; data.py:2 uses it")
def variables_of_the_main_host(host):
    _project(host, "import os\nrank = os.environ['SM_CURRENT_HOST']")
    variables_of_the_main_host_that_nothing_reads(host)


@trap(2, check="SM_* variables", status=OK, text="those of algo-1, but this host is algo-2")
def variables_of_the_main_host_that_nothing_reads(host):
    host.opt_ml.host("algo-2", "algo-1", "algo-2")
    host.environ.update(mpirun(1, 2, 0, 1), SM_CURRENT_HOST="algo-1", SM_HOSTS='["algo-1", "algo-2"]')


@trap(
    3, check="node rank", status=OK, text="OMPI_COMM_WORLD_NODE_RANK=1 counts processes of this host, which is node 0"
)
def node_rank_that_counts_processes(host):
    host.environ.update(mpirun(1, 2, 1, 2))


@trap(3, 8, check="node rank", status=WARNING, text="NODE_RANK=0, but this host is node 1")
def node_rank_in_the_environment_of_the_job(host):
    host.opt_ml.host("algo-2", "algo-1", "algo-2")
    host.environ.update(NODE_RANK="0", LOCAL_RANK="0")


@trap(4, check="hosts", status=OK, text="algo-3, algo-1: the first one is the main host, in the order of its group")
def hosts_that_are_not_sorted(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-3", groups=[group("a", "algo-3", "algo-1")])


@trap(4, check="main host", status=WARNING, text="MASTER_ADDR is algo-1, but the first host of this world, algo-3")
def main_host_of_the_sorted_list(host):
    _project(host, "main = os.environ['MASTER_ADDR']")
    main_host_that_nothing_reads(host)


@trap(4, check="main host", status=OK, text="MASTER_ADDR is algo-1, but the first host of this world, algo-3")
def main_host_that_nothing_reads(host):
    # The toolkit sets it so.
    hosts_that_are_not_sorted(host)
    host.environ.update(MASTER_ADDR="algo-1", MASTER_PORT="7777")


@trap(4, check="main host", status=WARNING, text="SM_MASTER_ADDR is algo-1")
def main_host_that_sdk_v3_names(host):
    _project(host, "main = os.environ.get('SM_MASTER_ADDR')")
    groups = [group("cpu", "algo-1"), group("gpu", "algo-2", "algo-3")]
    host.opt_ml.host("algo-2", "algo-1", "algo-2", "algo-3", groups=groups)
    host.environ.update(SM_MASTER_ADDR="algo-1", SM_MASTER_PORT="7777")


@trap(4, check="job", status=ERROR, text="not among the hosts")
def host_that_is_in_no_list(host):
    host.opt_ml.host("algo-1", current_host="algo-9")


@trap(5, check="instance groups", status=WARNING, text="each group trains alone")
def groups_that_train_separately(host):
    groups = [group("a", "algo-1", "algo-2"), group("b", "algo-3")]
    host.opt_ml.host("algo-1", "algo-1", "algo-2", "algo-3", groups=groups)
    host.opt_ml.hyperparameters(sagemaker_torch_distributed_enabled=True)
    host.environ.update(torchrun(0, 2, 0, 1, 0, 2))


@trap(5, check="instance groups", status=WARNING, text="runs the script outside of the distribution")
def group_outside_of_the_distribution(host):
    groups = [group("a", "algo-1"), group("b", "algo-2")]
    host.opt_ml.host("algo-2", "algo-1", "algo-2", groups=groups)
    host.opt_ml.hyperparameters(sagemaker_mpi_enabled=True, sagemaker_distribution_instance_groups=["a"])


@trap(5, check="ranks", status=WARNING, text="spans 1 of 2 hosts")
def world_that_leaves_hosts_out(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-2")
    host.environ.update(mpirun(0, 2, 0, 2))


@trap(6, check="distribution", status=WARNING, text="by pytorchddp too")
def smddp_switch_without_smddp(host):
    host.opt_ml.hyperparameters(**SMDDP)


@trap(7, check="distribution", status=WARNING, text="smddprun is not in this image")
def smddp_launcher_without_its_wrapper(host):
    _project(host, "rank = int(os.environ['RANK'])")
    host.opt_ml.hyperparameters(**SMDDP)
    host.environ.update(mpirun(0, 2, 0, 2))


@trap(8, check="cluster environment", status=WARNING, text="Lightning takes this for Slurm")
def variables_of_another_cluster(host):
    host.environ.update(SLURM_NTASKS="2")


@trap(9, check="devices", status=ERROR, text="ask for 4 processes")
def devices_that_are_not_the_launchers(host):
    host.opt_ml.hyperparameters(**{"trainer.devices": 4})
    host.environ.update(torchrun(0, 2, 0, 2, 0, 1))


@trap(9, check="devices", status=ERROR, text="2 processes on a host with 1 GPU")
def two_processes_for_one_gpu(host):
    host.environ.update(torchrun(0, 2, 0, 2, 0, 1), SM_NUM_GPUS="1")


@trap(9, check="devices", status=WARNING, text="7 GPU(s) idle")
def one_process_for_eight_gpus(host):
    host.environ.update(torchrun(0, 1, 0, 1, 0, 1), SM_NUM_GPUS="8")


@trap(10, check="devices", status=OK, text="8 GPUs: Lightning starts a process for each")
def one_process_that_starts_the_others(host):
    host.environ.update(SM_NUM_GPUS="8")


@trap(10, check="devices", status=ERROR, text="trainer.num_nodes is 2, but the job has 1")
def more_hosts_than_the_job_has(host):
    host.opt_ml.hyperparameters(**{"trainer.num_nodes": 2})


# Arguments


@trap(15, check="hyperparameters", status=WARNING, text="a=1,b=2")
def hyperparameters_that_argv_spells_differently(host):
    host.opt_ml.hyperparameters(layers={"first": 1}, sizes=[1, 2], nothing=None, flag=True)


@trap(15, check="hyperparameters", status=WARNING, text="sizes as JSON")
def hyperparameters_that_sdk_v3_spells_differently(host):
    _v3(host, sizes="[1, 2]")


@trap(16, check="mp_parameters", status=WARNING, text="strict parsers refuse")
def model_parallel_parameters(host):
    host.opt_ml.hyperparameters(mp_parameters={"partitions": 2})


@trap(16, check="config file", status=WARNING, text="ckpt_path stand before --config")
def option_that_is_sorted_before_the_config(host):
    host.opt_ml.hyperparameters(config="config.yaml", ckpt_path="a.ckpt", lr=0.1)


@trap(17, check="config file", status=WARNING, text="does not pass as repeated --config")
def several_config_files(host):
    host.opt_ml.hyperparameters(config=["a.yaml", "b.yaml"])


@trap(17, check="hyperparameters", status=WARNING, text="flag as 'True' behind the option")
def flag_without_a_value(host):
    host.opt_ml.hyperparameters(flag=True)


@trap(17, check="reserved names", status=WARNING, text="sagemaker_save_every does not reach the script")
def hyperparameter_with_the_prefix_of_sagemaker(host):
    host.opt_ml.hyperparameters(sagemaker_save_every="5m")


@trap(18, check="names", status=ERROR, text="trainer.max_epochs")
def dotted_name_under_sdk_v3(host):
    _v3(host, **{"trainer.max_epochs": "5"})


@trap(18, check="names", status=ERROR, text="single quote: title")
def single_quote_under_sdk_v3(host):
    _v3(host, title="it's")


@trap(18, check="names", status=ERROR, text="my-data")
def hyphenated_channel_under_sdk_v3(host):
    _v3(host, channels={"my-data": {"TrainingInputMode": "File"}})


@trap(18, check="SM_* variables", status=WARNING, text="SM_CHANNEL_MY-DATA, SM_HP_TRAINER.LR")
def variables_that_a_shell_dropped(host):
    _project(host, "folder = os.environ['SM_CHANNEL_MY-DATA']")
    host.opt_ml.hyperparameters(**{"trainer.lr": 0.1}).write("inputdataconfig.json", {"my-data": {}})
    host.environ.update(SM_HPS='{"trainer.lr": 0.1}')


@trap(19, check="setup.py", status=ERROR, text="torch_distributed does not support")
def setup_py_under_torchrun(host):
    _code(host, "train.py", "setup.py")
    host.opt_ml.hyperparameters(sagemaker_torch_distributed_enabled=True, sagemaker_program="train.py")


@trap(19, check="setup.py", status=WARNING, text="runs python -m train")
def setup_py(host):
    _code(host, "train.py", "setup.py")


@trap(20, check="source", status=ERROR, text="train.py is missing")
def source_of_the_image_without_the_script(host):
    _code(host, "other.py")


@trap(20, check="source", status=WARNING, text="older than the container")
def source_of_the_image(host):
    _code(host, "train.py", started=60)


# Life cycle


@trap(21, check="SIGTERM", status=WARNING, text="does not forward it")
def process_one_of_an_image_of_aws(host):
    host.file("/proc/1/cmdline", "bash\0-m\0start_with_right_hostname.sh\0train\0")


@trap(21, check="checkpoint upload", status=WARNING, text="no CheckpointConfig")
def no_checkpoint_upload(host):
    (host.opt_ml.base / "checkpoints").rmdir()


@trap(22, check="failure reason", status=WARNING, text="exists already")
def reason_that_is_there_already(host):
    (host.opt_ml.base / "output").mkdir()
    (host.opt_ml.base / "output" / "failure").write_text("earlier")


@trap(22, check="failure file", status=ERROR, text="is no directory")
def failure_file_that_cannot_be_written(host):
    (host.opt_ml.base / "output").write_text("a file")


@trap(23, check="failure reason", status=OK, text="crash of gloo as a success")
def crash_of_gloo(host):
    host.environ.update(torchrun(0, 2, 0, 2, 0, 1), SM_NUM_GPUS="0")


@trap(24, check="several hosts", status=OK, text="up to two minutes after the main one")
def hosts_that_end_later(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-2")
    host.environ.update(mpirun(0, 2, 0, 1))


@trap(25, 26, check="several hosts", status=OK, text="uploads of all hosts are merged")
def uploads_that_are_merged(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-2")


@trap(25, check="links", status=WARNING, text="last.ckpt")
def checkpoint_that_is_a_link(host):
    (host.opt_ml.base / "checkpoints" / "last.ckpt").symlink_to("epoch=1.ckpt")


@trap(26, check="older checkpoints", status=WARNING, text="checkpoints of the job yesterday")
def checkpoint_of_another_job(host):
    host.environ.update(TRAINING_JOB_NAME="today")
    folder = host.opt_ml.base / "checkpoints" / "train-0a1b2c" / "fit-0"
    job = ProgramIdentity("yesterday").to_json()
    record = CheckpointRecord("step-2.ckpt", 1, 2, 1, "batch", 1, job=job).to_json()
    complete_record(record, str(folder), [SavedFile("step-2.ckpt", 1, 2)])


@trap(27, check="several hosts", status=WARNING, text="prepare_data runs on the main host only")
def data_prepared_once_for_all_hosts(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-2").hyperparameters(**{"data.prepare_data_per_node": False})


@trap(28, check="channel training", status=ERROR, text="Pipe")
def channel_that_is_a_pipe(host):
    _channel(host, "Pipe")


@trap(28, check="channel training", status=OK, text="read-only")
def channel_that_is_read_only(host):
    _channel(host, "FastFile", "a.txt")


@trap(28, check="caches", status=ERROR, text="HF_HOME")
def cache_in_a_read_only_channel(host):
    host.environ.update(HF_HOME=str(_channel(host, "FastFile", "a.txt") / ".cache"))


@trap(30, check="container", status=OK, text="local mode (no instance groups")
def local_mode(host):
    host.opt_ml.local_mode("algo-1")


@trap(30, check="network interface", status=WARNING, text="names ethwe, but this host has eth0, lo")
def interface_that_does_not_exist(host):
    host.opt_ml.host("algo-1", network_interface_name="ethwe")
    host.file("/sys/class/net/eth0").file("/sys/class/net/lo")


@trap(31, check="job name", status=WARNING, text="SAGEMAKER_JOB_NAME set, but this is no training container")
def job_name_outside_of_a_job(host):
    (host.opt_ml.config / "resourceconfig.json").unlink()
    host.environ.update(SAGEMAKER_JOB_NAME="")


@trap(31, check="job name", status=WARNING, text="TRAINING_JOB_NAME is not set")
def job_without_a_name(host):
    del host.environ["TRAINING_JOB_NAME"]


# What is no trap of the list


@trap(0, check="main port", status=ERROR, text="in use by another program")
def port_that_is_in_use(host):
    listener = socket.create_server(("127.0.0.1", 0))
    host.keep(listener)
    host.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))


@trap(0, check="names of hosts", status=WARNING, text="1 of 2 do not resolve yet: missing.invalid")
def host_without_a_name(host):
    host.opt_ml.host("localhost", "localhost", "missing.invalid")


@trap(0, check="names of hosts", status=ERROR, text="localhost resolve(s) to loopback")
def other_host_that_resolves_to_this_one(host):
    # An address stands for a name that resolves to it; this one belongs to nobody (RFC 5737).
    host.opt_ml.host("192.0.2.1", "192.0.2.1", "localhost")


@trap(0, check="container", status=WARNING, text="a Processing job")
def processing_job(host):
    (host.opt_ml.config / "resourceconfig.json").unlink()
    host.file("/opt/ml/config/processingjobconfig.json", "{}")


@trap(0, check="container", status=WARNING, text="an endpoint")
def endpoint(host):
    (host.opt_ml.config / "resourceconfig.json").unlink()
    host.environ.update(SAGEMAKER_BIND_TO_PORT="8080")


@trap(0, check="container", status=OK, text="SageMaker Studio")
def studio(host):
    (host.opt_ml.config / "resourceconfig.json").unlink()
    host.file("/opt/ml/metadata/resource-metadata.json", '{"AppType": "JupyterLab"}')


@trap(0, check="container", status=OK, text="notebook instance")
def notebook(host):
    (host.opt_ml.config / "resourceconfig.json").unlink()
    host.file("/opt/ml/metadata/resource-metadata.json", '{"ResourceArn": "arn:aws:sagemaker:::notebook-instance/a"}')


@trap(0, check="channel training", status=ERROR, text="No such file or directory")
def channel_that_is_missing(host):
    _channel(host, "File").rmdir()


@trap(0, check="channel training", status=WARNING, text="is empty")
def channel_that_is_empty(host):
    _channel(host, "File")


@trap(0, check="channel training", status=WARNING, text="ShardedByS3Key")
def channel_that_is_divided_twice(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-2")
    _channel(host, "File", "a.txt", S3DistributionType="ShardedByS3Key")


@trap(0, check="channel training", status=WARNING, text="may differ between hosts, and data.py:4 uses that order")
def files_in_an_order_of_their_own(host):
    _project(host, "def a(d):\n    return sorted(x for x in os.listdir(d))\ndef b(d):\n    return [*d.glob('*')]\n")
    files_in_an_order_that_nothing_uses(host)


@trap(0, check="channel training", status=OK, text="may differ between hosts")
def files_in_an_order_that_nothing_uses(host):
    host.opt_ml.host("algo-1", "algo-1", "algo-2")
    names = [f"{number:04}.txt" for number in range(64)]
    folder = _channel(host, "File", *reversed(names))
    assert os.listdir(folder) != names, "this file system sorts"


@trap(0, check="model directory", status=ERROR, text="is no directory")
def model_directory_that_is_a_file(host):
    Path(host.opt_ml.base, "model").write_text("a file")
