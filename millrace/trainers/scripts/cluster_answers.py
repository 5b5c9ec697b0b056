"""Cluster answers: what variables and commands of a cluster of a given size tell a script."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NODES_MAX = 10**6
# Variables of launchers and job systems, by what they hold.
NODES = (
    *("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NNODES", "NUM_NODES", "N_NODES", "NODES"),
    *("WORLD_SIZE", "PET_NNODES", "MLP_WORKER_NUM", "NODE_COUNT", "HOST_NUM", "nnodes"),
)
PER_NODE = (
    *("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE", "GPUS_PER_NODE"),
    *("NPROC_PER_NODE", "SLURM_TASKS_PER_NODE", "MLP_WORKER_GPU", "PET_NPROC_PER_NODE"),
    *("KUBERNETES_CONTAINER_RESOURCE_GPU", "NGPU", "NGPUS", "NUM_GPUS", "GPU_NUM", "N_GPUS"),
)
TOTAL = ("SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "NUM_PROCESSES")
FIRST = (
    *("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "RANK", "NODE_RANK", "LOCAL_RANK"),
    *("MLP_ROLE_INDEX", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PET_NODE_RANK", "VC_TASK_INDEX"),
    *("MACHINE_RANK", "SLURM_ARRAY_TASK_ID", "GROUP_RANK"),
)
PLACES = {
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "MLP_WORKER_0_HOST": "node0",
    "MLP_WORKER_0_PORT": "29500",
    "SLURM_JOB_ID": "1",
    "SLURM_JOBID": "1",
    "SLURM_JOB_NAME": "job",
    "SLURM_SUBMIT_DIR": "/job",
    "SLURM_CPUS_PER_TASK": "8",
    "PBS_O_WORKDIR": "/job",
    "HOME": "/root",
    "USER": "user",
    "HOSTNAME": "node0",
    "TMPDIR": "/tmp",
    "PYTHONPATH": "",
    "LD_LIBRARY_PATH": "",
    "CUDA_VISIBLE_DEVICES": "",
}
# Options of a job system's header, by what they say; `--gres=gpu:a100:8` ends in the number.
HEADER = re.compile(r"^#(?:SBATCH|PBS -l|BSUB)\s+(.*)$", re.M)
HEADER_NODES = re.compile(r"(?:--nodes[= ]|-N ?|select=|-nnodes )\s*(\d+)")
HEADER_PER_NODE = re.compile(
    r"(?:--gpus-per-node[= ]|--gres[= ]gpu|--ntasks-per-node[= ]|ngpus=|-G )\S*?(\d+)(?:\s|$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """Nodes and devices that a job is started on; `guessed` where nothing says how many nodes."""

    nodes: int
    devices_per_node: int
    guessed: bool = False


def cluster_size(text: str, nodes: int, devices_per_node: int) -> ClusterSize:
    """Size of the cluster that a script is started on.

    Parameters
    ----------
    text : str
        The script, whose header of a job system counts where the user says nothing.
    nodes, devices_per_node : int
        As the user says; 0: as the script says, or 1 node of 8.

    Examples
    --------
    >>> cluster_size("#SBATCH --nodes=4 --gres=gpu:a100:4", 0, 0)
    ClusterSize(nodes=4, devices_per_node=4, guessed=False)
    """
    header = "\n".join(line.partition(" #")[0] for line in HEADER.findall(text))
    counts = {"nodes": nodes, "devices": devices_per_node}
    for name, pattern in (("nodes", HEADER_NODES), ("devices", HEADER_PER_NODE)):
        numbers = [int(number) for number in pattern.findall(header) if 0 < int(number) < NODES_MAX]
        counts[name] = counts[name] or max(numbers, default=0)
    return ClusterSize(
        nodes=counts["nodes"] or 1,
        devices_per_node=counts["devices"] or 8,
        guessed=not counts["nodes"],
    )


def cluster_values(cluster: ClusterSize) -> Mapping[str, str]:
    """Values of a cluster's variables on its first node, by name.

    Parameters
    ----------
    cluster : ClusterSize
        Its nodes and their devices.
    """
    values = dict.fromkeys(NODES, str(cluster.nodes))
    values |= dict.fromkeys(PER_NODE, str(cluster.devices_per_node))
    values |= dict.fromkeys(TOTAL, str(cluster.nodes * cluster.devices_per_node))
    values |= dict.fromkeys(FIRST, "0")
    nodes = "node0" if cluster.nodes == 1 else f"node[0-{cluster.nodes - 1}]"
    return values | PLACES | {"SLURM_JOB_NODELIST": nodes, "SLURM_NODELIST": nodes}


def _per_device(words: Sequence[str], cluster: ClusterSize) -> str:
    return "".join(f"GPU {index}: device\n" for index in range(cluster.devices_per_node))


def _hosts(words: Sequence[str], cluster: ClusterSize) -> str:
    return "".join(f"node{index}\n" for index in range(min(cluster.nodes, 10_000)))


def _python(words: Sequence[str], cluster: ClusterSize) -> str:
    return f"{cluster.devices_per_node}\n" if "device_count" in shlex.join(words) else ""


def _text(text: str) -> Callable[[Sequence[str], ClusterSize], str]:
    return lambda words, cluster: text


# What commands print whose output scripts take; all others print nothing.
ANSWERS: Mapping[str, Callable[[Sequence[str], ClusterSize], str]] = {
    "nvidia-smi": _per_device,
    "rocm-smi": _per_device,
    "python": _python,
    "python3": _python,
    "scontrol": _hosts,
    "hostname": _text("node0\n"),
    "date": _text("20260101\n"),
    "sleep": _text(""),
    "nproc": _text("64\n"),
    "shuf": _text("29500\n"),
    "which": _text("/usr/bin/python\n"),
    "tee": _text(""),
}
