"""Device overhead: the memory that a process takes of a GPU besides its registers' arena.

Figures are those of NVIDIA devices under the usual libraries. Ranks on a CPU have none of it: their
arena is all they allocate, and kernels there work in place.
"""

from dataclasses import dataclass

from millrace.planner.cluster import Cluster

MIB = 2**20

# CUDA context with the kernels of cuBLAS, cuDNN and NCCL that a run loads (lazy loading, CUDA
# 11.7 on): 400 to 600 MiB on A100 and H100, between what nvidia-smi and the allocator report.
CONTEXT_BYTES = 512 * MIB

# Workspace of one stream of products: "at least 32 MiB" (cuBLAS documentation, cublasSetWorkspace,
# on Hopper, 2024).
WORKSPACE_BYTES = 32 * MIB

# NCCL buffers so much per channel and peer: 4 MiB Simple (NCCL_BUFFSIZE's default, documentation
# of 2.2x), 4.69 MiB LL128 (120 × 640 × 8 steps × 8 B) and 0.5 MiB LL (NCCL device.h, read 2026-11).
CHANNEL_BYTES = 4 * MIB + 120 * 640 * 8 * 8 + MIB // 2
CHANNELS = 16  # per communicator; NCCL searches 2 to 32, 16 to 24 on NVSwitch (2.2x)
COMMUNICATORS = 3  # two mesh axes and the world

# PyTorch's caching allocator reserves this beyond the peak allocated: 3 to 9 %, 5 % in the mean of
# 43 runs of Megatron on 8 x B200 (SimuMax's published runs, 2025).
SLACK_FRACTION = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of a device besides registers; `slack_fraction` is of the registers' bytes."""

    workspace_bytes: int
    communicator_bytes: int
    context_bytes: int
    slack_fraction: float


def device_memory(cluster: Cluster) -> DeviceMemory:
    """Memory that every device of a cluster holds besides the arena."""
    if cluster.cores_per_node is not None:
        return DeviceMemory(
            workspace_bytes=0, communicator_bytes=0, context_bytes=0, slack_fraction=0.0
        )
    several = cluster.devices > 1
    return DeviceMemory(
        workspace_bytes=WORKSPACE_BYTES,
        communicator_bytes=COMMUNICATORS * CHANNELS * CHANNEL_BYTES if several else 0,
        context_bytes=CONTEXT_BYTES,
        slack_fraction=SLACK_FRACTION,
    )


def reserved_bytes(cluster: Cluster) -> int:
    """Bytes of a device that no register can have: context, workspace, communicators.

    Examples
    --------
    >>> from millrace.planner.clusters import parse_cluster
    >>> reserved_bytes(parse_cluster("local:2", cores=2, memory_bytes=2**33))
    0
    """
    device = device_memory(cluster)
    return device.workspace_bytes + device.communicator_bytes + device.context_bytes


def slack_fraction(cluster: Cluster) -> float:
    """Fraction of what is allocated that an allocator reserves beyond it."""
    return device_memory(cluster).slack_fraction


def device_overhead_bytes(arena_bytes: int, cluster: Cluster) -> dict[str, int]:
    """Bytes by kind of what a device holds besides an arena: none on the ranks of a CPU.

    Parameters
    ----------
    arena_bytes : int
        Size of the arena, of which the allocator's slack is a fraction.
    cluster : Cluster
        Its device says how much the driver, libraries and communicators take.
    """
    device = device_memory(cluster)
    kinds = {
        "workspace": device.workspace_bytes + device.communicator_bytes,
        "context": device.context_bytes,
        "slack": int(device.slack_fraction * arena_bytes),
    }
    return {kind: size for kind, size in kinds.items() if size}
