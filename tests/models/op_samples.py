"""Samples of every kind of op, on which the table's rows are tested.

A sample gives labels and attributes; the sizes of labels are those of SIZES unless it says others.
"""

from typing import Any, NamedTuple

import numpy as np

from millrace.models.arrays import Array
from millrace.models.labels import parse, shape_of
from millrace.models.ops import FUNCTIONS

SIZES = {"b": 2, "t": 4, "s": 4, "h": 2, "d": 6, "k": 4, "n": 2, "v": 8, "p": 6, "i": 2, "j": 4}
SIZES |= {"c": 2, "z": 3, "g": 2, "r": 2, "u": 4, "e": 4, "m": 8, "y": 6, "x": 4, "q": 3, "w": 2}


class Sample(NamedTuple):
    """Labels of an op, which of its inputs hold ids (below v), and which hold cosines.

    `routes` are the inputs that hold experts and, where there are two, the places got there.
    """

    labels: str
    ids: tuple[int, ...] = ()
    attributes: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default is never changed
    cosines: tuple[int, ...] = ()
    sizes: dict[str, int] = {}  # noqa: RUF012
    routes: tuple[int, ...] = ()

    @property
    def all_sizes(self) -> dict[str, int]:
        """Sizes of every label."""
        return SIZES | self.sizes

    def inputs(self, seed: int = 0) -> list[Array]:
        """Random inputs: numbers above 0.1, ids, cosines, routes."""
        generator = np.random.default_rng(seed)
        arrays: list[Array] = []
        for index, operand in enumerate(parse(self.labels).inputs):
            shape = shape_of(operand, self.all_sizes)
            if index in self.ids:
                arrays.append(generator.integers(0, SIZES["v"], shape))
            elif index in self.cosines:
                arrays.append(generator.uniform(-0.9, 0.9, shape))
            elif index in self.routes:
                arrays.append(self._routes(seed)[self.routes.index(index)])
            else:
                arrays.append(np.abs(generator.normal(0, 1, shape)) + 0.1)
        return arrays

    def _routes(self, seed: int) -> tuple[Array, Array]:
        """Experts b t k, all of a token's different, and a place for as many as there is room."""
        generator = np.random.default_rng(seed)
        batch, tokens, choices, experts, room = (self.all_sizes[label] for label in "btkec")
        expert = np.argsort(generator.normal(0, 1, (batch, tokens, experts)), -1)[..., :choices]
        earlier = expert.reshape(batch, 1, -1) == expert.reshape(batch, -1, 1)
        place = np.tril(earlier, -1).sum(-1).reshape(expert.shape)
        return expert, np.where(place < room, place, -1)


POINTWISE = "b t n -> b t n"
NUMBERS: dict[str, dict[str, Any]] = {
    "leaky_relu": {"slope": 0.1},
    "power": {"exponent": 2.5},
    "clip": {"low": 0.3, "high": 0.9},
}

LAYOUT = {
    "repeat": [Sample("k n -> k n")],
    "accumulate": [Sample("k n -> k n")],
    "cast": [Sample("k n -> k n")],
    "quantise": [Sample("b t n -> b t n")],
    "rearrange": [Sample("b i j -> b (i j)"), Sample("b t (h d) -> b h t d")],
    "broadcast": [Sample("b n -> b t n"), Sample("n -> b (n t)"), Sample("() -> b")],
    "narrow": [
        Sample("p! d -> t! d", (), {"start": 0}),
        Sample("b p! d -> b t! d", (), {"start": 2}),
    ],
    "widen": [
        Sample("t! d -> p! d", (), {"start": 0}),
        Sample("b t! d -> b p! d", (), {"start": 1}),
    ],
    "concat": [
        Sample("b p! d, b q! d -> b s! d", sizes={"s": 9}),
        Sample("q! d, w! d, t! d -> s! d", sizes={"s": 9}),
    ],
    "dropout": [Sample("b t n -> b t n", (), {"rate": 0.5, "op": "h.0.drop"})],
}

PRODUCTS = {
    "matmul": [
        Sample("b t k, k n -> b t n"),
        Sample("b t k, k h d -> b t h d"),
        Sample("b t h d, h d n -> b t n"),
        Sample("b t k, v k -> b t v"),
    ],
    "mul": [
        Sample("b t n, n -> b t n"),
        Sample("b t n, b t n -> b t"),
        Sample("b t n, -> b t n"),
    ],
    "add": [Sample("b t n, n -> b t n"), Sample("b t n, b t n, b t n -> b t n")],
    "sum": [Sample("b t n -> n"), Sample("b t -> ")],
    "scale": [Sample(POINTWISE, (), {"factor": -0.7})],
    "shift": [Sample(POINTWISE, (), {"value": 0.7})],
    "softmax": [Sample("b t n! -> b t n!")],
    "softmax_grad": [Sample("b t n!, b t n! -> b t n!")],
    "cross_entropy": [Sample("b t v!, b t -> b t, b t", (1,))],
    "cross_entropy_grad": [Sample("b t v, b t, b t -> b t v", (1,))],
    "logistic_loss": [Sample("b, b -> b", (1,))],
    "logistic_loss_grad": [Sample("b, b -> b", (1,))],
    "count_valid": [Sample("b t -> ", (0,))],
    "arc_margin": [Sample("b v, b -> b v", (1,), {"scale": 4.0, "margin": 0.5}, (0,))],
    "arc_margin_grad": [
        Sample("b v, b, b v -> b v", (1,), {"scale": 4.0, "margin": 0.5}, (0,)),
    ],
    "row_max": [Sample("b t v -> b t")],
    "shifted_sums": [Sample("b t v, b t, b t -> b t c!", (2,))],
    "loss_from_sums": [Sample("b t, b t c!, b t -> b t, b t", (2,))],
    "squared_sum": [Sample("k n -> ")],
    "step_totals": [Sample(", , , -> z!")],
}

ELEMENTWISE = {
    **{name: [Sample(POINTWISE, (), NUMBERS.get(name, {}))] for name in FUNCTIONS},
    **{
        f"{name}_grad": [Sample("b t n, b t n -> b t n", (), NUMBERS.get(name, {}))]
        for name in FUNCTIONS
    },
    "swiglu": [Sample("b t n, b t n -> b t n")],
    "swiglu_grad": [Sample("b t n, b t n, b t n -> b t n, b t n")],
    "prelu": [Sample("b c y x, c -> b c y x", (), {}, (0,)), Sample("b d, d -> b d", (), {}, (0,))],
    "prelu_grad": [Sample("b c y x, c, b c y x -> b c y x, c", (), {}, (0,))],
}

SMALL = {"epsilon": 1e-5}

NORMS = {
    "layer_norm": [Sample("b t d!, d!, d! -> b t d!, b t, b t", (), SMALL)],
    "layer_norm_grad_input": [Sample("b t d!, b t d!, d!, b t, b t -> b t d!")],
    "layer_norm_grad_weight": [Sample("b t d, b t d, b t, b t -> d, d")],
    "rms_norm": [
        Sample("b t d!, d! -> b t d!, b t", (), SMALL),
        Sample("b t g r d!, d! -> b t g r d!, b t g r", (), SMALL),
    ],
    "rms_norm_grad_input": [Sample("b t d!, b t d!, d!, b t -> b t d!")],
    "rms_norm_grad_weight": [Sample("b t d, b t d, b t -> d")],
    "l2_normalize": [Sample("b d! -> b d!, b", (), SMALL)],
    "l2_normalize_grad": [Sample("b d!, b d!, b -> b d!")],
    "channel_sums": [Sample("b c y x -> c"), Sample("b d -> d")],
    "channel_squares": [Sample("b c y x, c -> c"), Sample("b d, d -> d")],
    "batch_norm": [Sample("b c y x, c, c, c, c -> b c y x", (), SMALL)],
    "batch_norm_grad_sums": [Sample("b c y x, b c y x, c, c -> c, c", (), SMALL)],
    "batch_norm_grad_input": [Sample("b c y x, b c y x, c, c, c, c, c -> b c y x", (), SMALL)],
}

ATTENTION = "b t h d!, b s! h d!, b s! h d!"
GROUPED = "b t g r d!, b s! g d!, b s! g u!"
BIASED = "b t h d!, b s! h d!, b s! h u!, h t s!"
FORMS: tuple[dict[str, Any], ...] = (
    {"causal": False},
    {"causal": True},
    {"causal": True, "window": 2},
    {"causal": True, "alibi": 8.0},
)
TURN = {"base": 10.0, "dims": 6, "interleaved": False, "inverse": False}
BUCKETS = {"bidirectional": True, "max_distance": 6}

SEQUENCES = {
    "embedding": [Sample("b t, v d -> b t d", (0,))],
    "embedding_grad": [Sample("b t, b t d -> v d", (0,))],
    "rotary": [
        Sample("b t h d! -> b t h d!", (), TURN),
        Sample("b t g r d! -> b t g r d!", (), TURN | {"interleaved": True}),
        Sample("b t h d! -> b t h d!", (), TURN | {"dims": 4, "inverse": True}),
        Sample("b t h d! -> b t h d!", (), TURN | {"scaling": "linear", "factor": 2.0}),
    ],
    "relative_bias": [
        Sample("m! h -> h t s!", (), BUCKETS),
        Sample("m! h -> h t s!", (), BUCKETS | {"bidirectional": False}),
    ],
    "relative_bias_grad": [Sample("h t s! -> m! h", (), BUCKETS)],
    "attention": [
        Sample(labels, (), {"scale": 0.5} | form)
        for labels in (f"{ATTENTION} -> b t h d!, b t h", f"{GROUPED} -> b t g r u!, b t g r")
        for form in FORMS
    ],
    "attention_grad": [
        Sample(f"{ATTENTION}, b t h d!, b t h, b t h d! -> {ATTENTION}", (), {"scale": 0.5} | form)
        for form in FORMS
    ]
    + [
        Sample(
            f"{GROUPED}, b t g r u!, b t g r, b t g r u! -> {GROUPED}",
            (),
            {"scale": 0.5, "causal": True, "window": 3, "alibi": 8.0},
        )
    ],
    "masked_softmax": [
        Sample(labels, (), {"scale": 0.5} | form)
        for labels in ("b h t s! -> b h t s!", "b g r t s! -> b g r t s!")
        for form in FORMS
    ],
    "masked_softmax_grad": [
        Sample("b g r t s!, b g r t s! -> b g r t s!", (), {"scale": 0.5}),
    ],
    "attention_round": [
        Sample(f"{GROUPED}, b t g r u!, b t g r -> b t g r u!, b t g r", (), {"scale": 0.5} | form)
        for form in FORMS
    ],
    "attention_grad_round": [
        Sample(
            f"{ATTENTION}, b t h d!, b t h, b t h d!, b t h d! -> {ATTENTION}",
            (),
            {"scale": 0.5} | form,
        )
        for form in FORMS
    ],
    "biased_attention": [
        Sample(f"{BIASED} -> b t h u!, b t h", (), {"scale": 0.5, "causal": False})
    ],
    "biased_attention_grad": [
        Sample(
            f"{BIASED}, b t h u!, b t h, b t h u! -> {BIASED}", (), {"scale": 0.5, "causal": True}
        )
    ],
}

# Rows: 6 in windows of 3 one apart make 4, and so do 8 (padded) in windows of 5. Columns: 4 in
# windows of 2 two apart make 2.
WINDOW = {"stride_y": 1, "stride_x": 2, "pad_y": 0, "pad_x": 0}
WIDE = WINDOW | {"pad_y": 1, "dilation_y": 2}
POOL = WINDOW | {"size_y": 3, "size_x": 2}
WIDE_POOL = WINDOW | {"size_y": 5, "size_x": 2, "pad_y": 1}
IMAGE, FEW, KERNEL = "b c y! x!", "b n j! i!", "n c q! w!"
GROUP_IMAGE, GROUP_FEW, GROUP_KERNEL = "b (g c) y! x!", "b (g n) j! i!", "(g n) c q! w!"

IMAGES = {
    "conv": [
        Sample(f"{IMAGE}, {KERNEL} -> {FEW}", (), WINDOW),
        Sample(f"{GROUP_IMAGE}, {GROUP_KERNEL} -> {GROUP_FEW}", (), WIDE),
    ],
    "conv_grad_input": [
        Sample(f"{FEW}, {KERNEL} -> {IMAGE}", (), WIDE),
        Sample(f"{GROUP_FEW}, {GROUP_KERNEL} -> {GROUP_IMAGE}", (), WINDOW),
    ],
    "conv_grad_weight": [
        Sample(f"{IMAGE}, {FEW} -> {KERNEL}", (), WIDE),
        Sample(f"{GROUP_IMAGE}, {GROUP_FEW} -> {GROUP_KERNEL}", (), WINDOW),
    ],
    "max_pool": [Sample("b c y! x! -> b c j! i!", (), POOL)],
    "max_pool_grad": [Sample("b c y! x!, b c j! i! -> b c y! x!", (), WIDE_POOL)],
    "avg_pool": [Sample("b c y! x! -> b c j! i!", (), WIDE_POOL)],
    "avg_pool_grad": [Sample("b c j! i! -> b c y! x!", (), WIDE_POOL)],
}

ROUTE = {"capacity": 2, "groups": 1, "kept_groups": 1}
CHOSEN = "b t! k!"
TWO = {"k": 2}

EXPERTS = {
    "top_k": [
        Sample(f"b t! e! -> {CHOSEN}, {CHOSEN}, {CHOSEN}", (), route, sizes=TWO | {"e": 6})
        for route in (ROUTE, ROUTE | {"groups": 3, "kept_groups": 2})
    ],
    "top_k_grad": [Sample(f"{CHOSEN}, {CHOSEN} -> b t! e!", sizes=TWO, routes=(1,))],
    "dispatch": [
        Sample(f"b t! d, {CHOSEN}, {CHOSEN} -> e b c! d", sizes=TWO, routes=(1, 2)),
    ],
    "dispatch_grad": [
        Sample(f"e b c! d, {CHOSEN}, {CHOSEN} -> b t! d", sizes=TWO, routes=(1, 2)),
    ],
    "combine": [
        Sample(f"e b c! d, {CHOSEN}, {CHOSEN}, {CHOSEN} -> b t! d", sizes=TWO, routes=(1, 2)),
    ],
    "combine_grad_input": [
        Sample(f"b t! d, {CHOSEN}, {CHOSEN}, {CHOSEN} -> e b c! d", sizes=TWO, routes=(1, 2)),
    ],
    "combine_grad_weight": [
        Sample(f"b t! d, e b c! d, {CHOSEN}, {CHOSEN} -> {CHOSEN}", sizes=TWO, routes=(2, 3)),
    ],
    "expert_load": [Sample(f"{CHOSEN} -> b e!", sizes=TWO, routes=(0,))],
}

SAMPLES: dict[str, list[Sample]] = {
    **LAYOUT,
    **PRODUCTS,
    **ELEMENTWISE,
    **NORMS,
    **SEQUENCES,
    **IMAGES,
    **EXPERTS,
}
