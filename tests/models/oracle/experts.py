"""A mixture of experts in GShard's form: products with the one-hot tensor of who got which place.

Shape legend: b samples, t tokens, k choices, e experts, c places, d features.
"""

import numpy as np

from millrace.models.labels import EXPERT
from tests.models.oracle.call import Array, Call, Definition


def top_k(call: Call, scores: Array, bias: Array | float = 0.0) -> tuple[Array, ...]:
    choices, capacity = call.shape_out()[-1], call.attributes["capacity"]
    groups, kept_groups = call.attributes["groups"], call.attributes["kept_groups"]
    open_to = scores + bias
    if groups > 1:
        members = open_to.reshape(*scores.shape[:-1], groups, -1)
        of_group = np.sort(members, -1)[..., -2:].sum(-1)
        best = np.argsort(-of_group, -1, kind="stable")[..., :kept_groups]
        is_kept = (best[..., None] == np.arange(groups)).any(-2)
        open_to = np.where(is_kept[..., None], members, -np.inf).reshape(scores.shape)
    expert = np.argsort(-open_to, -1, kind="stable")[..., :choices]
    place = np.full(expert.shape, -1)
    for sample in range(scores.shape[0]):
        taken = [0] * scores.shape[-1]
        for choice in range(choices):
            for token in range(scores.shape[1]):
                chosen = expert[sample, token, choice]
                if taken[chosen] < capacity:
                    place[sample, token, choice] = taken[chosen]
                    taken[chosen] += 1
    return np.take_along_axis(scores, expert, -1), expert, place


def top_k_grad(call: Call, dvalue: Array, expert: Array) -> Array:
    return np.einsum("btk,btke->bte", dvalue, _hot(expert, call.shape_out()[-1]))


def _hot(ids: Array, size: int) -> Array:
    return (ids[..., None] == np.arange(size)).astype(float)


def _places(call: Call, expert: Array, place: Array, places: int) -> Array:
    """[b, t, k, e, c]: 1 where a token's choice is that expert and got that place."""
    experts = _hot(expert, call.sizes[EXPERT])
    return experts[..., :, None] * _hot(place, places)[..., None, :]


def dispatch(call: Call, x: Array, expert: Array, place: Array) -> Array:
    hits = _places(call, expert, place, call.shape_out()[2])
    return np.einsum("btd,btkec->ebcd", x, hits)


def dispatch_grad(call: Call, dy: Array, expert: Array, place: Array) -> Array:
    return np.einsum("ebcd,btkec->btd", dy, _places(call, expert, place, dy.shape[2]))


def combine(call: Call, y: Array, expert: Array, place: Array, weight: Array) -> Array:
    hits = _places(call, expert, place, y.shape[2])
    return np.einsum("ebcd,btkec,btk->btd", y, hits, weight)


def combine_grad_input(
    call: Call, dout: Array, expert: Array, place: Array, weight: Array
) -> Array:
    hits = _places(call, expert, place, call.shape_out()[2])
    return np.einsum("btd,btkec,btk->ebcd", dout, hits, weight)


def combine_grad_weight(call: Call, dout: Array, y: Array, expert: Array, place: Array) -> Array:
    return np.einsum("btd,ebcd,btkec->btk", dout, y, _places(call, expert, place, y.shape[2]))


def expert_load(call: Call, expert: Array) -> Array:
    return np.asarray(_hot(expert, call.shape_out()[-1]).mean((1, 2)))


EXPERTS: dict[str, Definition] = {
    "top_k": top_k,
    "top_k_grad": top_k_grad,
    "dispatch": dispatch,
    "dispatch_grad": dispatch_grad,
    "combine": combine,
    "combine_grad_input": combine_grad_input,
    "combine_grad_weight": combine_grad_weight,
    "expert_load": expert_load,
}
