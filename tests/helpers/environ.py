"""Variables as launchers leave them, and the taking away of those that the machine under test has."""

__all__ = ["mpirun", "setup_environment", "torchrun", "without_launcher"]

_LAUNCHERS = ("SM_", "SAGEMAKER_", "OMPI_", "PMIX_", "TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_", "SMDATAPARALLEL_")
_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "OMP_NUM_THREADS"}


def without_launcher(environ):
    return {k: v for k, v in environ.items() if not k.startswith(_LAUNCHERS) and k not in _NAMES}


def torchrun(rank, size, local_rank, local_size, node_rank, nodes=None, **more):
    """What torchrun sets for a worker."""
    variables = {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": node_rank,
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": 7777,
    }
    if nodes is not None:
        variables["GROUP_WORLD_SIZE"] = nodes
    return {name: str(value) for name, value in {**variables, **more}.items()}


def mpirun(rank, size, local_rank, local_size, **more):
    """What Open MPI sets for a rank. Its ``NODE_RANK`` counts the processes of a node."""
    variables = {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
        "OMPI_COMM_WORLD_NODE_RANK": local_rank,
    }
    return {name: str(value) for name, value in {**variables, **more}.items()}


def setup_environment(environment):
    """What a strategy of Lightning's does in its function of this name."""
    return environment.main_address
