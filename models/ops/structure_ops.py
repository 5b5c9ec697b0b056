"""Structure ops: rows that hold a graph together (sources, rates, layout, and the optimizer).

Shape legend: b batch, t sequence, d k n features, p positions, z the three step totals.
"""

from millrace.models.graph import Rate
from millrace.models.ops.kind import OpKind
from millrace.models.ops.orthogonal import newton_schulz_flops

SOURCES = (
    OpKind(
        name="input",
        description="-> b t: a batch of the data; `source` says what (tokens, targets, features, "
        "classes, ...), `values` how many different ids there are (0: features); images are "
        "b c y x, with `channels_last` (optional) b y x c",
        rate=Rate.MICROBATCH,
        attributes=("source", "values"),
        fusible=False,
    ),
    OpKind(
        name="variable",
        description="-> k n: a trainable tensor, or with `frozen` (optional) one that training "
        "leaves as it is; init is normal, zeros or ones; weight decay applies where `decay` holds",
        rate=Rate.STEP,
        attributes=("init", "std", "decay"),
        fusible=False,
        actor=False,
    ),
    OpKind(
        name="constant",
        description="-> t d: values that are part of the model and not trained: `data` holds them "
        "(base64 of zlib of little-endian values, row by row), or, empty, all are `value`",
        rate=Rate.STEP,
        attributes=("value", "data"),
        fusible=False,
    ),
    OpKind(
        name="fill",
        description="-> b t: `value` everywhere, once a microbatch",
        rate=Rate.MICROBATCH,
        attributes=("value",),
    ),
    OpKind(
        name="learning_rate",
        description="->: this step's learning rate, by warm-up and cosine",
        rate=Rate.STEP,
        attributes=("learning_rate", "warmup_steps", "decay_steps", "final_fraction"),
        fusible=False,
    ),
)

LAYOUT = (
    OpKind(
        name="repeat",
        description="k n -> k n: one step's value, for each of its microbatches",
        linear="joint",
        rate=Rate.MICROBATCH,
        differentiable=True,
        moves=True,
        fusible=False,
        actor=False,
    ),
    OpKind(
        name="accumulate",
        description="k n -> k n: the sum over a step's microbatches",
        linear="joint",
        rate=Rate.STEP,
        wide_outputs=(0,),
        reads_output=True,
        joins=("product", "sum"),
        launched_together=True,
    ),
    OpKind(
        name="cast",
        description="k n -> k n: the same values in another dtype",
        linear="joint",
        differentiable=True,
        fused_by_frameworks=True,
        launched_together=True,
        moves=True,
    ),
    OpKind(
        name="quantise",
        description="b t n -> b t n: rounded to 8 bits, for products of that arithmetic",
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="rearrange",
        description="b i j -> b (i j): dims permuted, grouped and ungrouped",
        linear="joint",
        differentiable=True,
        fused_by_frameworks=True,
        moves=True,
    ),
    OpKind(
        name="broadcast",
        description="b n -> b t n: the same along new dims",
        linear="joint",
        differentiable=True,
        fused_by_frameworks=True,
        moves=True,
    ),
    OpKind(
        name="narrow",
        description="p! d -> t! d: as many as the output holds, from `start` on, along the dim "
        "whose label differs",
        linear="joint",
        attributes=("start",),
        gathered=(0,),
        differentiable=True,
        moves=True,
    ),
    OpKind(
        name="widen",
        description="t! d -> p! d: the input at `start`, zeros elsewhere, along the dim whose "
        "label differs",
        linear="joint",
        attributes=("start",),
        differentiable=True,
    ),
    OpKind(
        name="concat",
        description="b p! d, b q! d -> b t! d: two or more, one behind the other along the dim "
        "whose labels differ",
        linear="joint",
        differentiable=True,
    ),
)

OPTIMIZER = (
    OpKind(
        name="squared_sum",
        description="k n ->: sum of squares",
        reduction="sum",
        wide_outputs=(0,),
        launched_together=True,
    ),
    OpKind(
        name="step_totals",
        description="(loss, count, squares...) , , -> z!: loss sum, token count, sum of squared "
        "gradients over the whole model",
        linear="joint",
        wide_outputs=(0,),
        fusible=False,
    ),
    OpKind(
        name="adamw",
        description="(w, grad, totals, lr) k n, k n, z!,  -> k n: w of the next step",
        attributes=("variable", "beta1", "beta2", "epsilon", "weight_decay", "clip_norm"),
        state=("m", "v"),
        updates=True,
        launched_together=True,
        fusible=False,
    ),
    OpKind(
        name="sgd",
        description="(w, grad, totals, lr) k n, k n, z!,  -> k n: w of the next step",
        attributes=("variable", "momentum", "weight_decay", "clip_norm"),
        state=("velocity",),
        updates=True,
        launched_together=True,
        fusible=False,
    ),
    OpKind(
        name="momentum",
        description="(grad, totals) k n, z! -> k n: the direction of Nesterov's momentum",
        attributes=("variable", "momentum", "clip_norm"),
        state=("velocity",),
        fusible=False,
    ),
    OpKind(
        name="newton_schulz",
        description="e k! n! -> e k! n!: matrices with about the same singular vectors, and "
        "singular values near one; the first `rows` of the dims that are whole are the rows",
        attributes=("rows", "rounds"),
        flops=newton_schulz_flops,
        fusible=False,
    ),
    OpKind(
        name="muon",
        description="(w, direction, totals, lr) k n, k n, z!,  -> k n: w of the next step",
        attributes=("variable", "rate_factor", "weight_decay"),
        updates=True,
        fusible=False,
    ),
)

ROWS = (*SOURCES, *LAYOUT, *OPTIMIZER)
