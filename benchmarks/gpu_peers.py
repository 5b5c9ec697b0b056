"""The items of `benchmarks/first_gpu.py` that compare: cuDNN's attention, and PyTorch's kernels.

Legend: B batch, H heads, T tokens, D head dim.
"""

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu_items import (
    AT_ONCE,
    ATTENTION,
    PRODUCT,
    REPEATS,
    ROWS,
    Figures,
    bfloat16,
    captured,
    device,
    milliseconds,
    put,
    settle,
    taken,
    widened,
)
from executor.gpu.cupy_device import CupyDevice

CHECKED = (1, 2, 256, 64)  # B, H, T, D of the attention that is compared with NumPy


class Attention:
    """Causal attention by cuDNN and its deterministic gradients, on addresses (B, H, T, D)."""

    def __init__(self, on: CupyDevice, stream: int, shape: tuple[int, int, int, int]) -> None:
        import cudnn

        self.cudnn, self.on, self.shape = cudnn, on, shape
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=stream)
        self.strides = tuple(int(np.prod(shape[at + 1 :])) for at in range(4))
        rows = (*shape[:3], 1)
        self.rows = rows, (rows[1] * rows[2], rows[2], 1, 1)
        values = {"attn_scale": shape[3] ** -0.5, "use_causal_mask": True}
        forward = self._graph()
        q, k, v = (self._tensor(forward, name) for name in "qkv")
        o, stats = forward.sdpa(q=q, k=k, v=v, generate_stats=True, name="sdpa", **values)
        o.set_output(True).set_dim(shape).set_stride(self.strides)
        stats.set_output(True).set_data_type(cudnn.data_type.FLOAT)
        self.forward = forward, (q, k, v, o, stats), self._built(forward)
        backward = self._graph()
        given = [self._tensor(backward, name) for name in ("q", "k", "v", "o", "do")]
        stats = backward.tensor(
            name="stats", dim=self.rows[0], stride=self.rows[1], data_type=cudnn.data_type.FLOAT
        )
        q, k, v, o, do = given
        grads = backward.sdpa_backward(
            q=q,
            k=k,
            v=v,
            o=o,
            dO=do,
            stats=stats,
            use_deterministic_algorithm=True,
            name="sdpa_backward",
            **values,
        )
        for grad in grads:
            grad.set_output(True).set_dim(shape).set_stride(self.strides)
        self.backward = backward, (*given, stats, *grads), self._built(backward)

    def run(self, which: str, addresses: list[int]) -> None:
        """Put one direction on the stream, operands in the order of its tensors."""
        graph, tensors, workspace = getattr(self, which)
        pack = dict(zip(tensors, addresses, strict=True))
        graph.execute(pack, workspace, handle=self.handle)

    def _graph(self) -> Any:
        types = self.cudnn.data_type
        return self.cudnn.pygraph(
            io_data_type=types.BFLOAT16,
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            handle=self.handle,
        )

    def _tensor(self, graph: Any, name: str) -> Any:
        return graph.tensor(
            name=name,
            dim=self.shape,
            stride=self.strides,
            data_type=self.cudnn.data_type.BFLOAT16,
        )

    def _built(self, graph: Any) -> int:
        """Choose a plan; return the address of its workspace."""
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A])
        graph.check_support()
        graph.build_plans()
        return self.on.allocate(graph.get_workspace_size())


def cudnn_attention() -> Figures:
    """Attention by cuDNN, forward and backward in one capture, against NumPy; times of both."""
    on = device()
    stream, generator = on.stream(), np.random.default_rng(4)
    q, k, v, do = (bfloat16(generator.standard_normal(CHECKED, np.float32)) for _ in range(4))
    made, found = _both(on, stream, CHECKED, (q, k, v, do))
    graph = captured(on, stream, found)
    on.replay(graph, stream)
    settle(on, stream)
    right = attention(*map(widened, (q, k, v, do)))
    errors = {}
    for name, expected in zip(("o", "dq", "dk", "dv"), right, strict=True):
        got = widened(taken(on, made[name], CHECKED, np.uint16))
        errors[f"{name}_error"] = float(np.abs(got - expected).max() / np.abs(expected).max())
    assert max(errors.values()) < 2**-5, errors
    arrays = [bfloat16(generator.standard_normal(ATTENTION, np.float32)) for _ in range(4)]
    times = {}
    for which in ("forward", "backward"):
        _, work = _both(on, stream, ATTENTION, arrays, which)
        times[f"{which}_ms"] = milliseconds(on, stream, work)
    return {**errors, **times, **_rates(times)}


def _both(
    on: CupyDevice, stream: int, shape: tuple[int, int, int, int], arrays: Any, which: str = ""
) -> tuple[dict[str, int], Callable[[], None]]:
    """Addresses of attention's results, and the work that fills them (or one direction of it)."""
    library = Attention(on, stream, shape)
    q, k, v, do = (put(on, array) for array in arrays)
    size = 2 * int(np.prod(shape))
    made = {name: on.allocate(size) for name in ("o", "dq", "dk", "dv")}
    stats = on.allocate(4 * int(np.prod(shape[:3])))
    addresses = {
        "forward": [q, k, v, made["o"], stats],
        "backward": [q, k, v, made["o"], do, stats, made["dq"], made["dk"], made["dv"]],
    }

    def work() -> None:
        for name in (which,) if which else addresses:
            library.run(name, addresses[name])

    return made, work


def attention(q: Any, k: Any, v: Any, do: Any) -> tuple[Any, Any, Any, Any]:
    """Return causal attention and its gradients in float32."""
    scale, tokens = q.shape[-1] ** -0.5, q.shape[-2]
    scores = np.where(np.tri(tokens, dtype=bool), q @ k.swapaxes(-1, -2) * scale, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = do @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
    return p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do


def _rates(times: dict[str, float]) -> Figures:
    """Rates of causal attention: half of the scores; backward has five products for two."""
    batch, heads, tokens, size = ATTENTION
    flops = 4 * batch * heads * tokens**2 * size / 2
    factors = {"forward_ms": 1.0, "backward_ms": 2.5}
    return {
        name.replace("_ms", "_tflops_per_s"): round(factors[name] * flops / time / 1e9, 1)
        for name, time in times.items()
    }


def torch_milliseconds(work: Callable[[], Any]) -> float:
    """Return the median time of `work` on PyTorch's stream, without a graph."""
    import torch

    for _ in range(3):
        work()
    found = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(AT_ONCE):
            work()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / AT_ONCE)
    return statistics.median(found)


def torch_product() -> Figures:
    """The product of item `product` by PyTorch."""
    import torch

    a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    time_ms = torch_milliseconds(torch.compile(lambda: a @ b))
    return {"product_ms": time_ms, "tflops_per_s": round(2 * PRODUCT**3 / time_ms / 1e9, 1)}


def torch_layer_norm() -> Figures:
    """The layer norm of item `kernel` by torch.compile."""
    import torch

    x = torch.randn(*ROWS, device="cuda")
    gamma, beta = torch.ones(ROWS[1], device="cuda"), torch.zeros(ROWS[1], device="cuda")
    norm = torch.compile(lambda: torch.nn.functional.layer_norm(x, ROWS[1:], gamma, beta))
    return {"layer_norm_ms": torch_milliseconds(norm)}


def torch_attention() -> Figures:
    """The attention of item `cudnn_attention` by torch.compile, forward, and with its gradients."""
    import torch

    q, k, v, do = (
        torch.randn(*ATTENTION, device="cuda", dtype=torch.bfloat16, requires_grad=at < 3)
        for at in range(4)
    )

    @torch.compile
    def forward(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both() -> None:
        torch.autograd.grad(forward(q, k, v), (q, k, v), do)

    with torch.no_grad():
        forward_ms = torch_milliseconds(lambda: forward(q, k, v))
    times = {"forward_ms": forward_ms, "backward_ms": torch_milliseconds(both) - forward_ms}
    return {**times, **_rates(times)}


ITEMS: dict[str, Callable[[], Figures]] = {
    "torch_product": torch_product,
    "torch_layer_norm": torch_layer_norm,
    "torch_attention": torch_attention,
    "cudnn_attention": cudnn_attention,
}
