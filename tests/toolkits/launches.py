"""Every launcher of SageMaker, as the options of a rehearsal and the process groups that it should make."""

from typing import Dict, NamedTuple, Tuple

__all__ = ["LAUNCHES", "Launch"]


class Launch(NamedTuple):
    """Options of the rehearsal, the program's arguments, and the hosts of each process group, its main host first."""

    options: Tuple[object, ...]
    worlds: Tuple[Tuple[str, ...], ...]
    processes: int = 1
    arguments: Tuple[str, ...] = ()
    launcher: str = "torchrun"
    launcher_of_first: str = ""
    backend: str = "gloo"

    def launcher_of(self, world: Tuple[str, ...]) -> str:
        """``Topology.launcher`` there."""
        return self.launcher_of_first or self.launcher if world == self.worlds[0] else self.launcher

    def size(self, world: Tuple[str, ...]) -> int:
        """Processes in one of the worlds."""
        return len(world) * self.processes


_TWO = (("algo-1", "algo-2"),)
_ONE = (("algo-1",),)
# The main host of the second group is neither the first of the cluster nor the first by name.
_GROUPS = (("algo-1",), ("algo-3", "algo-2"))
_GROUP_OPTIONS = (
    *("--instance-groups", "head=1:ml.m5.xlarge,workers=2:ml.m5.xlarge"),
    *("--host-names", "algo-1,algo-3,algo-2"),
)
_PER_HOST, _MPI = "one process per host", "mpirun"

LAUNCHES: Dict[str, Launch] = {
    "none_two_hosts": Launch(("--hosts", 2), _TWO, launcher=_PER_HOST),
    "none_two_devices": Launch((), _ONE, 2, ("--devices", "2"), launcher=_PER_HOST),
    "none_local_mode": Launch(("--hosts", 2, "--local-mode-files"), _TWO, launcher=_PER_HOST),
    # The toolkit names the first of the sorted hosts as the master, whatever the group's order and however many groups.
    "none_unsorted_group": Launch(
        ("--instance-groups", "workers=2:ml.m5.xlarge", "--host-names", "algo-2,algo-1"),
        (("algo-2", "algo-1"),),
        launcher=_PER_HOST,
    ),
    "none_two_groups": Launch(_GROUP_OPTIONS, _GROUPS, launcher=_PER_HOST),
    # The toolkit reads this flag in TensorFlow's containers only.
    "none_parameter_server": Launch(
        ("--hosts", 2), _TWO, arguments=("--sagemaker_parameter_server_enabled", "true"), launcher=_PER_HOST
    ),
    "torchrun_two_hosts": Launch(("--hosts", 2, "--distribution", "torch_distributed"), _TWO),
    "torchrun_two_by_two": Launch(("--hosts", 2, "--processes", 2, "--distribution", "torch_distributed"), _TWO, 2),
    "torchrun_groups": Launch((*_GROUP_OPTIONS, "--distribution", "torch_distributed"), _GROUPS),
    "pytorchddp_two_processes": Launch(("--processes", 2, "--distribution", "pytorchddp"), _ONE, 2, launcher=_MPI),
    # What smdistributed is on an image without smddprun, to the letter: the SDK sends the same for both.
    "pytorchddp_two_hosts": Launch(("--hosts", 2, "--distribution", "pytorchddp"), _TWO, launcher=_MPI),
    # Our stand-ins for smddprun and for the library lie in the source directory.
    "smddp_two_hosts": Launch(
        (
            *("--hosts", 2, "--distribution", "smdistributed", "--instance-type", "ml.p4d.24xlarge"),
            *("--env", "PATH=/opt/ml/code/standin_bin"),
        ),
        _TWO,
        arguments=("--backend", "smddp", "--note", "before#after"),
        launcher="rank variables",
        backend="smddp",
    ),
    "mpi_two_by_two": Launch(
        ("--hosts", 2, "--processes", 2, "--distribution", "mpi"),
        _TWO,
        2,
        arguments=("--note", "two words"),
        launcher=_MPI,
    ),
    # The distribution is for one of the groups; the other runs the same script as a plain process.
    "mpi_one_of_two_groups": Launch(
        (*_GROUP_OPTIONS, "--distribution", "mpi", "--distribution-groups", "workers"),
        _GROUPS,
        launcher=_MPI,
        launcher_of_first=_PER_HOST,
    ),
    "v3_none_two_devices": Launch(("--sdk", "v3"), _ONE, 2, ("--devices", "2"), launcher=_PER_HOST),
    "v3_torchrun_two_hosts": Launch(
        ("--sdk", "v3", "--hosts", 2, "--processes", 1, "--distribution", "torch_distributed"), _TWO
    ),
    # SDK v3's MPI driver fills the first host only, however many there are.
    "v3_mpi_two_processes": Launch(("--sdk", "v3", "--processes", 2, "--distribution", "mpi"), _ONE, 2, launcher=_MPI),
}
