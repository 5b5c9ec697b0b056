"""Request to the search: its question, and its answers where memory is too small."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.models.graph import Graph, Op
from millrace.models.labels import BATCH, EXPERT, SEQUENCE, Shape, bind, parse
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.training.unfused_attention import UNFUSED
from millrace.planner.cluster import OURS, Cluster, Device
from millrace.planner.costs.bucket_sizes import state_bytes_of, with_own_buckets
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.formatting import counted, one_of, size
from millrace.planner.frameworks.capabilities import EVERYTHING, Capabilities, check_pins
from millrace.planner.memory import NO_RESERVE, Reserve, reserved_bytes, slack_fraction
from millrace.planner.plan import (
    COUNT_MAX,
    FUSED,
    MAX_GAP,
    ON_DEVICES,
    OPTIMIZER,
    SEED_MAX,
    TOKENS_MAX,
)
from millrace.planner.plan import UNFUSED as NOT_FUSED
from millrace.planner.search.pins import Pins


class MemoryLimitError(InfeasibleError):
    """No choice fits the memory of a device: the bytes that the least of them needs."""

    def __init__(self, needed_bytes: int, limit_bytes: int, stage: int | None = None) -> None:
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes
        self.stage = stage
        super().__init__(
            f"memory: at least {size(needed_bytes)} a device are needed"
            f"{'' if stage is None else f' on stage {stage}'}, the limit is "
            f"{size(limit_bytes)}: {size(needed_bytes - limit_bytes)} too few"
        )


LABEL_WORDS = {BATCH: "samples of a microbatch", SEQUENCE: "tokens", EXPERT: "experts"}
HEAD_WORDS = {"g": "key/value heads", "r": "query heads to each of them", "h": "heads"}


class NoPlanError(InfeasibleError):
    """No plan fits the memory of the devices; `nearest` says what comes closest.

    `bound_ns` is what a plan takes at least that is not proven to need more; infinite: all are.
    """

    def __init__(
        self,
        nearest: str,
        needed_bytes: int,
        limit_bytes: int,
        stage: int | None = None,
        offload: str = ON_DEVICES,
        bound_ns: float = float("inf"),
    ) -> None:
        self.needed_bytes = needed_bytes
        self.bound_ns = bound_ns
        where = "" if stage is None else f" on stage {stage}"
        even = "" if offload == ON_DEVICES else " with optimizer state on the host"
        super().__init__(
            f"no plan fits the memory{even}. Nearest: {nearest}: at least {size(needed_bytes)} a "
            f"device{where}, where {size(limit_bytes)} can be laid out: "
            f"{size(needed_bytes - limit_bytes)} too few"
        )


class HostMemoryError(InfeasibleError):
    """Optimizer state does not fit the memory of the nodes."""

    def __init__(self, needed_bytes: int, limit_bytes: int, stage: int | None = None) -> None:
        where = "" if stage is None else f" on stage {stage}"
        super().__init__(
            f"host memory: optimizer state takes at least {size(needed_bytes)} a device{where}, a "
            f"node has {size(limit_bytes)} for each: {size(needed_bytes - limit_bytes)} too few"
        )


class SignatureError(InfeasibleError):
    """An op has no legal signature on a mesh; says what it could split.

    Parameters
    ----------
    op : Op
    shapes : sequence
        Shapes of its inputs, then of its outputs, for as many samples as may be.
    sizes, batch
        Sizes of the mesh's axes, and samples of a microbatch.
    """

    def __init__(self, op: Op, shapes: Sequence[Shape], sizes: Sequence[int], batch: int) -> None:
        expression, inputs = parse(op.labels), len(op.inputs)
        label_sizes = bind(expression, shapes[:inputs], shapes[inputs:]) | {BATCH: batch}
        words = LABEL_WORDS | (HEAD_WORDS if "attention" in op.kind else {})
        parts = [
            counted(label_sizes[label], words[label])
            if label in words
            else f"{label} of {label_sizes[label]}"
            for label in expression.splittable
        ]
        super().__init__(
            f"op `{op.name}` has no legal signature on a mesh of "
            f"{' × '.join(map(str, sizes)) or 'one device'}: as far as pins let it, an axis splits "
            f"{one_of(parts) if parts else 'nothing'}, and has to divide what it splits"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """Question to the search: what to plan, for which devices, and what is fixed beforehand.

    Attributes
    ----------
    model, training, cluster
        The documents that go into the plan.
    global_batch : int
        Samples of a step.
    pins : Pins
        Choices of the user.
    memory_limit_bytes : int or None
        Memory of one device that the plan may use; None: all that the device has but `reserve`.
    reserve : Reserve
        Memory of one device that stays free; it does not count where there is a limit.
    max_gap : float
        Relative gap at which a solver may stop.
    seed : int
        Written into the plan. A run has a `--seed` of its own.
    required : mapping
        Label that an op (by its name) must split on the tp axes, for plans of a wanted form.
    runs : Capabilities
        What the framework that drives the cluster can run; the search keeps to it.
    simpler_within : float
        Share of the step by which a simpler plan may be slower than the fastest and still be the
        answer; 0: the fastest is.
    last_resort : bool
        Optimizer state goes to host memory though no pin says so, for nothing fits otherwise.
    plan_only : bool
        A plan is all that is wanted, as of a run that happened: no proof that others are slower, no
        alternatives, and no account of its memory, which takes the search most of its time.
    """

    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    global_batch: int
    pins: Pins = field(default_factory=Pins)
    memory_limit_bytes: int | None = None
    reserve: Reserve = NO_RESERVE
    max_gap: float = MAX_GAP
    seed: int = 0
    required: Mapping[str, str] = field(default_factory=dict)
    runs: Capabilities = EVERYTHING
    simpler_within: float = 0.0
    last_resort: bool = False
    plan_only: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.global_batch <= COUNT_MAX:
            raise PlanError(
                f"--global-batch is {self.global_batch}: expected 1 to {COUNT_MAX:,} samples"
            )
        if (tokens := self.global_batch * self.model.seq_len) > TOKENS_MAX:
            raise PlanError(
                f"--global-batch {self.global_batch} with --seq-len {self.model.seq_len}: a step "
                f"of {tokens:,} tokens, expected at most {TOKENS_MAX:,}"
            )
        if not 0 <= self.seed <= SEED_MAX:
            raise PlanError(f"--seed is {self.seed}: expected 0 to {SEED_MAX}")
        if not self.max_gap >= 0:
            raise PlanError(f"--max-gap is {self.max_gap}: expected 0 or more")
        if not 0 <= self.simpler_within <= 1:
            raise PlanError(f"--simpler-within is {self.simpler_within}: expected 0 to 1")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < 1:
            raise PlanError(f"--memory-limit is {self.memory_limit_bytes} bytes: expected more")
        check_pins(self.runs, self.cluster.software.name, self.pins.document)
        smallest = min(group.device.memory_bytes for group in self.cluster.groups)
        if (spared := self.reserve.bytes_of(smallest)) >= smallest:
            raise PlanError(
                f"--reserve is {size(spared)}, and a device has {size(smallest)}: leave some of it "
                f"to the plan"
            )
        if self.pins.ring and self.training.attention == UNFUSED:
            raise InfeasibleError(
                "--ring joins rounds of flash attention, and --attention is unfused: leave one of "
                "them out"
            )

    @property
    def offload(self) -> str:
        """Place of optimizer state, as in a Plan."""
        return self.pins.offload or (OPTIMIZER if self.last_resort else ON_DEVICES)

    @property
    def uniform(self) -> bool:
        """True if blocks of one kind are alike, on devices of one kind, and some gap is allowed."""
        return not (self.runs.mixed or self.cluster.others) and self.max_gap > 0

    @property
    def fusion(self) -> str:
        """Fusion, as in a Plan: fused if ops become one actor where one kernel computes them.

        Unless a pin says so: where our own executor drives GPUs. A framework fuses in its own way.
        """
        if self.pins.fusion is not None:
            return self.pins.fusion
        ours = self.cluster.cores_per_node is None and self.cluster.software.name == OURS
        return FUSED if ours else NOT_FUSED

    def priced_on(self, graph: Graph) -> Cluster:
        """The cluster as ops and collectives of a graph are priced on it."""
        if self.fusion != FUSED:
            return self.cluster
        return with_own_buckets(self.cluster, state_bytes_of(graph))

    @property
    def usable_bytes(self) -> int:
        """Bytes of one device of the first kind that are left for what a plan lays out."""
        return self.usable_on((self.cluster.device,))

    def usable_on(self, devices: Iterable[Device]) -> int:
        """Bytes of the smallest of these devices that are left for what a plan lays out."""
        return self.laid_out_bytes(min(self.limit_on(device) for device in devices))

    @property
    def limit_bytes(self) -> int:
        """Bytes of one device of the first kind that the plan may use."""
        return self.limit_on(self.cluster.device)

    def limit_on(self, device: Device) -> int:
        """Bytes of one device that the plan may use; on several kinds, no more than each has."""
        if self.memory_limit_bytes is None:
            return device.memory_bytes - self.reserve.bytes_of(device.memory_bytes)
        if self.cluster.others:
            return min(self.memory_limit_bytes, device.memory_bytes)
        return self.memory_limit_bytes

    def laid_out_bytes(self, held_bytes: int) -> int:
        """Bytes that a plan lays out of those held: `usable_on` for all that a device has."""
        slack = 1 + slack_fraction(self.cluster)
        return int((held_bytes - reserved_bytes(self.cluster)) / slack)
