"""Memory use of a process on a GPU, as it is reported at the end."""

import msgspec


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a rank by use, in bytes.

    `regions` are ours, on the device, by name; `host_bytes` is pinned memory of the node.
    `context_bytes` had been taken before them (the context, other processes), `library_bytes` is
    the scratch of libraries of products, attention and convolutions, `device_used_bytes`
    is what the device as a whole has in use at the end, libraries' buffers and code included, and
    `grown_bytes` by how much that is more than after the first captured step.
    """

    regions: dict[str, int]
    host_bytes: int
    context_bytes: int
    library_bytes: int
    device_used_bytes: int
    grown_bytes: int
