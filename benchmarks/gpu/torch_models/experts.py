"""A mixture of experts in PyTorch, as one would write it for one GPU.

As in GShard (Lepikhin et al., arXiv 2006.16668, 2020, section 2.2), an expert has places for a
sample, given by choice, then by position, and who comes late is dropped. All shapes are known
beforehand and nothing waits for the device, so that a step can be compiled and captured.

Legend: B batch, T tokens of a sample, D model, F features of an expert, E experts, K choices of a
token, C places of an expert for a sample, R rows at all experts.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Moved(torch.autograd.Function):
    """Rows of x [M, D] by their numbers `to` [R], which may repeat; zeros where that is -1.

    `back` [M, repeats] says in which of the R each row is, so that the gradient is gathered too:
    the one of an index would add up row by row, by atomic sums.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, to: Tensor, back: Tensor) -> Tensor:
        """[M, D] to [R, D]."""
        ctx.save_for_backward(back)
        return _rows(x, to)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """[R, D] to [M, D]."""
        (back,) = ctx.saved_tensors
        return _rows(dy, back).sum(1), None, None


def _rows(x: Tensor, numbers: Tensor) -> Tensor:
    return torch.where(numbers[..., None] >= 0, x[numbers.clamp_min(0)], 0)


class ExpertLinear(nn.Module):
    """Linear layer of every expert, over the rows that are its own."""

    def __init__(self, experts: int, inward: int, outward: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, inward, outward))

    def forward(self, x: Tensor, ends: Tensor | None) -> Tensor:
        """[R, inward] to [R, outward]; every expert has as many rows, or those up to its end."""
        weight = self.weight.to(x.dtype)
        if ends is not None:
            return functional.grouped_mm(x, weight, offs=ends)
        experts, inward, outward = weight.shape
        return torch.bmm(x.view(experts, -1, inward), weight).view(-1, outward)


class Experts(nn.Module):
    """Gated experts, of which every token visits K, added up by the router's scores.

    Parameters
    ----------
    config
        That of the zoo's family `decoder`, its scores by softmax and without a balance loss.
    grouped
        Experts multiply as many rows as they are sent (`grouped_mm`), not all of their places.
    """

    def __init__(self, config: Mapping[str, Any], grouped: bool) -> None:
        super().__init__()
        d, f = config["hidden"], config["expert_hidden"]
        self.experts, self.choices = config["experts"], config["experts_per_token"]
        self.factor = config.get("capacity_factor", 1.25)
        self.normalized = config.get("normalize_weights", True)
        self.grouped = grouped
        self.router = nn.Linear(d, self.experts, bias=False)
        self.gate_up = ExpertLinear(self.experts, d, 2 * f)
        self.down = ExpertLinear(self.experts, f, d)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to the same."""
        logits = self.router(x)
        weight, expert = logits.float().softmax(-1).topk(self.choices)
        if self.normalized:
            weight = weight / weight.sum(-1, keepdim=True)
        rows, holders, ends = self._ways(expert)
        tokens = x.to(logits.dtype).flatten(0, 1)
        sent = Moved.apply(tokens, holders // self.choices, rows)
        gate, up = self.gate_up(sent, ends).chunk(2, dim=-1)
        expert_outputs = self.down(functional.silu(gate) * up, ends)
        brought = Moved.apply(expert_outputs, rows.flatten(), holders[:, None])
        weight = weight.to(expert_outputs.dtype).view(-1, self.choices, 1)
        return (
            (brought.view(-1, self.choices, expert_outputs.shape[-1]) * weight).sum(1).view(x.shape)
        )

    def _ways(self, expert: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows of the choices [BT, K], choices of the rows [R], and ends of the experts' rows [E].

        The number of a choice, or of a row, that has none is -1.
        """
        b, t, k = expert.shape
        capacity = self._capacity(t)
        chosen = expert.transpose(1, 2).reshape(b, k * t)
        every = torch.arange(self.experts, device=expert.device)
        so_far = (chosen[:, None] == every[:, None]).cumsum(-1)  # [B, E, KT]
        place = so_far.gather(1, chosen[:, None])[:, 0] - 1
        ends = None
        if self.grouped:
            count, sent = b * t * k, so_far[..., -1].clamp_max(capacity).T  # [E, B]
            last = sent.flatten().cumsum(0).view(self.experts, b)
            starts, ends = (last - sent).T, last[:, -1].int()
        else:
            count = self.experts * b * capacity
            samples = torch.arange(b, device=expert.device)
            starts = (every * b + samples[:, None]) * capacity  # [B, E]
        rows = torch.where(place < capacity, starts.gather(1, chosen) + place, -1)
        rows = rows.view(b, k, t).transpose(1, 2).reshape(b * t, k)
        numbers = torch.arange(b * t * k, device=expert.device)
        # One row more than there are, for the choices that have none.
        holders = torch.full((count + 1,), -1, device=expert.device)
        target = torch.where(rows < 0, count, rows).flatten()
        return rows, holders.scatter(0, target, numbers)[:-1], ends

    def _capacity(self, tokens: int) -> int:
        if not self.factor:
            return tokens
        share = self.choices * tokens / self.experts
        return max(1, min(tokens, ceil(share * self.factor)))
