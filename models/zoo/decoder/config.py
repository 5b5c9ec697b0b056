"""DecoderConfig: what makes one decoder-only language model differ from another."""

from collections.abc import Collection
from math import sqrt

import msgspec

from millrace.models.errors import ModelError
from millrace.models.ops.pointwise_ops import ACTIVATIONS
from millrace.models.rotary import SCALINGS
from millrace.models.spec import ModelSpec
from millrace.models.zoo.decoder.part_sizes import Compression, HyperConnections, LayerInputs
from millrace.models.zoo.decoder.recurrent_sizes import (
    ATTENTION,
    BOTH,
    DELTA_NET,
    DENSE,
    EXPERTS,
    GATED_UNIT,
    KIMI_DELTA,
    SHORT_CONVOLUTION,
    STATE_SPACE,
    DeltaNet,
    GatedUnit,
    StateSpace,
    check_delta_net,
    check_gated_unit,
    check_pattern,
    check_state_space,
)
from millrace.models.zoo.family import check_depth

NORMS = ("rms", "layer", "scale", "unscaled", "bare")
QUERY_NORMS = ("", "rms", "layer", "scale", "unscaled")
GATES = ("", "sigmoid", "softplus")
RELU2, XIELU = "relu2", "xielu"
FEED_FORWARD_ACTIVATIONS = (*ACTIVATIONS, RELU2, XIELU)
ROUTERS = ("softmax", "sigmoid", "sqrt_softplus")


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stack of attention and feed-forward parts over token embeddings.

    Attributes
    ----------
    layers, hidden, vocab : int
        Depth, width of the residual stream, size of the vocabulary.
    positions : int
        The longest sequence the model was made for: the default, not a limit, as no position is
        learned.
    norm : str
        "rms", "layer", "scale" (a layer norm that has no shift), "unscaled" (root mean square
        without weights) or "bare" (a layer norm without weights and shift); with `epsilon`.
    learned_positions, position_offset : int
        Rows of a learned table of positions (0: none), of which the first `position_offset` are for
        no position (OPT's two).
    sinusoid_base : float
        Sines and cosines of the position are added to the embeddings, of as many angles as half the
        width, which turn by powers of this (0: none); the first position is `position_offset`.
    embedding_norm : bool
        Embeddings are normed before the first layer.
    tied, head_bias : bool
        The head shares the token table; the head has a bias (never decayed).
    embedding_scale : float
        What rows of the token table are multiplied by.
    logit_scale, logit_cap : float
        Logits are multiplied by this; and then z becomes cap tanh(z / cap) (0: as they are).
    residual_scale : float
        What attention and feed-forward part add to the stream is multiplied by this.
    parallel, shared_norm : bool
        Attention and feed-forward part read the same residual stream; and the same norm of it.
    head_activation : str
        The head has a product as wide as the stream, this activation and a norm before its logits
        ("": not; BERT's kind).
    first_norm : bool
        What the attention of the first layer reads is normed (ModernBERT's embeddings are already).
    pre_norms, post_norms : bool
        What attention and feed-forward part read is normed; what they add to the stream is normed.
    sum_norms : bool
        The stream itself is normed behind every sum, and no more before the head (GPT-1).
    expert_norm : bool
        What experts, with the one that all tokens visit, make is normed.
    inner_norms : bool
        What the heads made, and the opened features of the feed-forward part, are normed over all
        of them (BitNet).
    heads, kv_heads, head_dim : int
        Query heads, heads of keys and values (each serves heads / kv_heads query heads), features
        of a query or key.
    full_kv_heads, full_head_dim : int
        The latter two in layers that see all keys, among others with a window (0: the same).
    value_norm, keys_as_values : bool
        Values are normed without weights; in layers that see all keys they are the keys, as these
        are before their norm and turn (Gemma 4).
    reusing_layers, reusing_ffn_hidden : int
        So many layers, the last ones, take keys and values of the last layer before them that sees
        as many keys (Gemma 3n); the width of their feed-forward parts (0: `ffn_hidden`).
    qkv_bias, out_bias : bool
        The projections before attention, and the one after it, have biases.
    last_out_bias : bool
        In the last layer the projection after attention has a bias (GPT-NeoX Japanese).
    qk_norm : str
        Queries and keys are normed over a head's features: "", "rms", "layer" or "unscaled" (root
        mean square without weights, and only in layers that turn by position).
    qk_norm_whole, qk_norm_last : bool
        Norms of queries and keys are over the features of all heads together (OLMo 2); they come
        behind the turn by position (HunYuan).
    attention_gate, gate_per_head
        What the heads made is multiplied by the "sigmoid" or "softplus" of a projection of what
        they read ("": not), a number for every feature or for every head.
    clip_qkv : float
        Queries, keys and values are brought between minus this and this (0: as they are).
    attention_scale : float
        What products of queries and keys are multiplied by (0: one over the root of `head_dim`).
    alibi : float
        The largest exponent of ALiBi's slopes (0: no ALiBi).
    window, full_layers
        A query sees this many keys, itself the last (0: all before it); layers in which it sees
        all nevertheless.
    chunk : int
        A query sees the keys of its own chunk of the sequence alone, but in `full_layers` (0: no
        chunks; Llama 4).
    sinks : bool
        Every head has a learned score that no key has (gpt-oss).
    gate_cap, gate_slope, gate_shift : float
        Gates and what they open are cut off at the first (0: not), gates are sigmoids of the second
        times what is left, the third is added to what they open (`clamped_swiglu` of the op table;
        gpt-oss).
    cap_routed : bool
        The first is for experts alone that a router chooses (Hy4).
    score_cap : float
        Scores are capped like logits (0: not; Gemma 2).
    tempered_from, tempered_scale, tempered_always
        Positions from which on the scores of `unturned_layers` grow (0: none), and how much (Llama
        4); or those of all layers (Ministral 3).
    rotary_dims, rope_base, rope_interleaved
        How many features of a head are turned by position (0: none), see `millrace.models.rotary`.
    window_rope_base, window_rotary_dims
        Base of layers with a window, whose angles are not stretched, and how many features turn in
        them (0: as all others).
    unturned_layers : tuple of int
        Layers in which nothing is turned by position.
    rope_scaling, rope_factor, rope_amplitude, rope_original, rope_low, rope_high, rope_fast, \
rope_slow, rope_truncate
        How the angles were stretched, "" for not at all; and a factor on what is turned.
    kv_lora, q_lora, value_dim : int
        Latent attention (DeepSeek): keys and values are made from a normed vector of `kv_lora`
        features (0: not latent), queries from one of `q_lora` (0: from the residual stream);
        features of a value (0: `head_dim`). The turned features of a key come first and are the
        same for all heads.
    pattern : str
        A letter for every layer (`millrace.models.zoo.decoder.recurrent_sizes`) that says what
        mixes its tokens ("": attention in all).
    bare_layers : bool
        A layer is one part behind one norm: what mixes tokens, a feed-forward part, or experts.
    state_space, delta_net, gated_unit, conv_taps
        Sizes of such layers, where the pattern has them; tokens that a gated short convolution
        sees (0: there is none).
    compression, connections
        Sizes of attention to keys that stand for several tokens each, behind a window, chosen by
        an indexer or not; and of several residual streams, mixed before and behind every part
        (DeepSeek-V4).
    layer_inputs
        Sizes of a vector of every token that a layer has of its own (Gemma 3n, Gemma 4).
    attention_post_norms : bool
        In layers with attention norms stand behind the parts, not before them (OLMo hybrid).
    gate_from_query : bool
        In latent attention the gate of what the heads made, and queries, are made from the query's
        narrow vector, normed and not, side by side (A.X-K2).
    norm_gate_rank : int
        Norms of what attention and experts read are multiplied by the sigmoid of a product of two
        narrow matrices, of this rank, with the norm (0: not; A.X-K2).
    index_topk, index_heads, index_dim, index_interleaved
        Sparse attention (DeepSeek-V3.2): a query attends to the `index_topk` keys (0: to all) that
        an indexer with so many heads of so many features chooses, the first `rotary_dims` of them
        turned as those of attention, in pairs of neighbours or not. The indexer is not trained.
    index_epsilon : float
        Of the norm of the indexer's keys.
    index_reusing_layers : tuple of int
        Layers without an indexer, whose queries attend to the keys that were chosen for them in the
        last layer before that has one (`glm_moe_dsa` of transformers).
    activation, gated, ffn_hidden, ffn_bias
        The feed-forward part; gated: activation(gate) times up.
    experts, experts_per_token, expert_hidden, shared_hidden : int
        Experts (0: none), how many a token is sent to, the width of one, and the width of the
        expert that every token visits (0: none).
    expert_latent : int
        Experts read and make vectors of this width, to which tokens are narrowed (0: `hidden`).
    shared_gate : bool
        What that expert makes is multiplied by the sigmoid of a projection to one number.
    expert_bias, router_bias : bool
        The products of experts have biases; so has the router.
    weigh_inputs : bool
        A token is weighed before its one expert sees it, not what the expert makes of it.
    dense_beside : bool
        A feed-forward part stands beside the experts, each behind a norm and before one of its own;
        the router has a norm of the stream of its own as well, and every expert a learned factor
        for the weights it is given (Gemma 4).
    hash_layers : tuple of int
        Layers whose experts a table chooses by token in the published model, here by their scores.
    dense_layers : tuple of int
        Layers that have one feed-forward part in place of experts.
    router_correction : bool
        Every expert has a number that is added to its score where experts are chosen; the loss
        does not train it.
    router, router_groups, kept_groups, normalize_weights, weight_scale
        Scores by "softmax", "sigmoid" or "sqrt_softplus" (the root of softplus); experts are chosen
        from the best groups only; the chosen weights are made to sum to one; then multiplied.
    capacity_factor : float
        Places of an expert for a sample, in multiples of an even share (0: as many as tokens, so
        that none is dropped).
    balance_loss : float
        Weight of the routers' load-balance loss in the loss of a token (0: none).
    mtp_layers, mtp_loss
        Modules that predict the tokens after the next (multi-token prediction; 0: none), and the
        weight of their mean loss in the loss of a token.
    narrow_parts : str
        Parts that multiply in 8 bits too where the linear layers between multiply in 8 or 4, of
        "attention" and "head", with spaces between.
    init_std : float
        Initial deviation; projections onto the residual stream are divided by sqrt(2 layers).
    """

    layers: int
    hidden: int
    vocab: int
    positions: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    full_kv_heads: int = 0
    full_head_dim: int = 0
    value_norm: bool = False
    keys_as_values: bool = False
    reusing_layers: int = 0
    reusing_ffn_hidden: int = 0
    norm: str = "rms"
    epsilon: float = 1e-5
    learned_positions: int = 0
    position_offset: int = 0
    sinusoid_base: float = 0.0
    embedding_norm: bool = False
    tied: bool = False
    head_bias: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    residual_scale: float = 1.0
    parallel: bool = False
    shared_norm: bool = False
    head_activation: str = ""
    first_norm: bool = True
    pre_norms: bool = True
    post_norms: bool = False
    sum_norms: bool = False
    expert_norm: bool = False
    inner_norms: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    last_out_bias: bool = False
    qk_norm: str = ""
    qk_norm_whole: bool = False
    qk_norm_last: bool = False
    attention_gate: str = ""
    gate_per_head: bool = False
    clip_qkv: float = 0.0
    attention_scale: float = 0.0
    alibi: float = 0.0
    window: int = 0
    full_layers: tuple[int, ...] = ()
    chunk: int = 0
    score_cap: float = 0.0
    sinks: bool = False
    tempered_from: int = 0
    tempered_scale: float = 0.1
    tempered_always: bool = False
    gate_cap: float = 0.0
    cap_routed: bool = False
    gate_slope: float = 1.702
    gate_shift: float = 1.0
    rotary_dims: int = 0
    rope_base: float = 10000.0
    rope_interleaved: bool = False
    window_rope_base: float = 0.0
    window_rotary_dims: int = 0
    unturned_layers: tuple[int, ...] = ()
    rope_scaling: str = ""
    rope_factor: float = 1.0
    rope_amplitude: float = 1.0
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_original: int = 0
    rope_fast: float = 32.0
    rope_slow: float = 1.0
    rope_truncate: bool = True
    kv_lora: int = 0
    q_lora: int = 0
    value_dim: int = 0
    pattern: str = ""
    bare_layers: bool = False
    state_space: StateSpace | None = None
    delta_net: DeltaNet | None = None
    gated_unit: GatedUnit | None = None
    conv_taps: int = 0
    layer_inputs: LayerInputs | None = None
    compression: Compression | None = None
    connections: HyperConnections | None = None
    attention_post_norms: bool = False
    gate_from_query: bool = False
    norm_gate_rank: int = 0
    index_topk: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_interleaved: bool = False
    index_epsilon: float = 1e-6
    index_reusing_layers: tuple[int, ...] = ()
    activation: str = "silu"
    gated: bool = True
    ffn_bias: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_hidden: int = 0
    shared_hidden: int = 0
    expert_latent: int = 0
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    weigh_inputs: bool = False
    dense_beside: bool = False
    hash_layers: tuple[int, ...] = ()
    dense_layers: tuple[int, ...] = ()
    router_correction: bool = False
    router: str = "softmax"
    router_groups: int = 1
    kept_groups: int = 1
    normalize_weights: bool = True
    weight_scale: float = 1.0
    capacity_factor: float = 1.25
    balance_loss: float = 0.0
    mtp_layers: int = 0
    mtp_loss: float = 0.3
    narrow_parts: str = ""
    init_std: float = 0.02

    @property
    def residual_std(self) -> float:
        """Initial deviation of the projections that add to the residual stream."""
        return self.init_std / sqrt(2 * self.layers)

    @property
    def score_scale(self) -> float:
        """Factor on the products of queries and keys."""
        return self.attention_scale or 1 / sqrt(self.head_dim)

    def letter(self, layer: int) -> str:
        """Letter of a layer's kind; modules behind the layers have attention."""
        return self.pattern[layer] if layer < len(self.pattern) else ATTENTION

    def norms_before(self, layer: int) -> bool:
        """True if what a part of this layer reads is normed."""
        return self.pre_norms and not self.sum_norms and not self._only_behind(layer)

    def norms_behind(self, layer: int) -> bool:
        """True if what a part of this layer adds to the stream is normed."""
        return self.post_norms or self._only_behind(layer)

    def _only_behind(self, layer: int) -> bool:
        return self.attention_post_norms and self.letter(layer) == ATTENTION

    def is_bare(self, layer: int) -> bool:
        """True if this layer is one part behind one norm."""
        return self.bare_layers and layer < self.layers

    def has_experts(self, layer: int) -> bool:
        """True if this layer's feed-forward part is a mixture of experts."""
        if self.is_bare(layer):
            return self.letter(layer) == EXPERTS
        return self.experts > 0 and layer not in self.dense_layers

    def has_dense(self, layer: int) -> bool:
        """True if this layer has a feed-forward part without experts."""
        if self.is_bare(layer):
            return self.letter(layer) == DENSE
        return self.dense_beside or not self.has_experts(layer)

    def is_full(self, layer: int) -> bool:
        """True if a query of this layer sees all keys before it."""
        return layer in self.full_layers or not (self.window or self.chunk)

    def kv_heads_of(self, layer: int) -> int:
        """Heads of keys and values of this layer."""
        return (self.full_kv_heads if self.is_full(layer) else 0) or self.kv_heads

    def head_dim_of(self, layer: int) -> int:
        """Features of a query or key of this layer."""
        return (self.full_head_dim if self.is_full(layer) else 0) or self.head_dim

    def reuses(self, layer: int) -> bool:
        """True if this layer takes over keys and values."""
        return self.layers - self.reusing_layers <= layer < self.layers

    def lender(self, layer: int) -> int | None:
        """Layer whose keys and values a layer that reuses some takes; None if there is none."""
        before = range(self.layers - self.reusing_layers)
        alike = (other for other in before if self.is_full(other) is self.is_full(layer))
        return max(alike, default=None)

    def has_out_bias(self, layer: int) -> bool:
        """True if the projection after this layer's attention has a bias."""
        return self.out_bias or (self.last_out_bias and layer == self.layers - 1)

    def ffn_width(self, layer: int) -> int:
        """Width of the feed-forward part of this layer."""
        return (self.reusing_ffn_hidden if self.reuses(layer) else 0) or self.ffn_hidden

    def window_of(self, layer: int, seq_len: int) -> int:
        """Number of keys that a query of this layer sees; 0 for all before it.

        Of a chunk a query sees half on average, whereby chunks are windows of that many keys.
        """
        if layer in self.full_layers:
            return 0
        return self.window or (self.chunk // 2 if 1 < self.chunk < seq_len else 0)


_POSITIVE = ("layers", "hidden", "vocab", "positions", "heads", "kv_heads", "head_dim")
_COUNTS = (
    *("window", "chunk", "tempered_from"),
    *("rotary_dims", "window_rotary_dims", "rope_original", "kv_lora", "q_lora", "value_dim"),
    *("index_topk", "index_heads", "index_dim", "full_kv_heads", "full_head_dim"),
    "norm_gate_rank",
    *("reusing_layers", "reusing_ffn_hidden"),
    *("experts", "experts_per_token", "expert_hidden", "shared_hidden", "ffn_hidden"),
    *("conv_taps", "expert_latent", "mtp_layers", "learned_positions", "position_offset"),
)
_AMOUNTS = (
    *("clip_qkv", "attention_scale", "alibi", "capacity_factor", "balance_loss", "mtp_loss"),
    *("logit_cap", "score_cap", "gate_cap", "window_rope_base", "sinusoid_base"),
)
_ABOVE_ZERO = (
    *("epsilon", "weight_scale", "init_std", "embedding_scale", "logit_scale", "residual_scale"),
    "gate_slope",
    "index_epsilon",
    *("rope_factor", "rope_amplitude", "rope_fast", "rope_slow"),
)


def check(spec: ModelSpec, config: DecoderConfig) -> None:
    """Raise ModelError, naming the field and a way out, when the sizes do not make a model."""
    name = f"model `{spec.name}`"
    for fields, least in ((_POSITIVE, 1), (_COUNTS, 0), (_AMOUNTS, 0)):
        for field in fields:
            if (value := getattr(config, field)) < least:
                raise ModelError(f"{name}: `{field}` is {value}, below {least}")
    for field in _ABOVE_ZERO:
        if (value := getattr(config, field)) <= 0:
            raise ModelError(f"{name}: `{field}` is {value}, not above 0")
    check_depth(spec, "layers", config.layers)
    _one_of(name, "norm", config.norm, NORMS)
    _one_of(name, "qk_norm", config.qk_norm, QUERY_NORMS)
    _one_of(name, "attention_gate", config.attention_gate, GATES)
    _one_of(name, "head_activation", config.head_activation, ("", *ACTIVATIONS))
    if config.head_activation and config.mtp_layers:
        raise ModelError(f"{name}: `mtp_layers` and `head_activation` exclude each other: set one")
    _one_of(name, "activation", config.activation, FEED_FORWARD_ACTIVATIONS)
    listed = ("full_layers", "dense_layers", "unturned_layers", "hash_layers")
    for field in (*listed, "index_reusing_layers"):
        for layer in getattr(config, field):
            if not 0 <= layer < config.layers:
                raise ModelError(
                    f"{name}: `{field}` names layer {layer}; the layers are 0 to "
                    f"{config.layers - 1}"
                )
    if config.shared_norm and not config.parallel:
        raise ModelError(f"{name}: `shared_norm` needs `parallel`: set both or neither")
    for field in ("post_norms", "sum_norms"):
        if getattr(config, field) and config.parallel:
            raise ModelError(f"{name}: `{field}` and `parallel` exclude each other: set one")
    _check_positions(name, spec.seq_len, config)
    _check_attention(name, config)
    _check_pattern(name, config)
    _check_reuse(name, config)
    _check_compression(name, spec.seq_len, config)
    _check_connections(name, config)
    has_dense = any(config.has_dense(layer) for layer in range(config.layers))
    if has_dense and config.ffn_hidden < 1:
        raise ModelError(f"{name}: `ffn_hidden` is {config.ffn_hidden}, below 1")
    if config.gate_cap and not (config.gated and config.activation == "silu"):
        raise ModelError(
            f"{name}: `gate_cap` is for `gated` parts of `activation` silu; set it to 0"
        )
    if config.experts:
        _check_experts(name, config)
    if spec.seq_len < 1:
        raise ModelError(f"{name}: sequences of {spec.seq_len} tokens; use at least 1")


def _check_positions(name: str, seq_len: int, config: DecoderConfig) -> None:
    positions = config.learned_positions - config.position_offset
    if config.learned_positions and not 1 <= seq_len <= positions:
        raise ModelError(
            f"{name} has {max(positions, 0)} learned positions: sequences of {seq_len} tokens do "
            f"not fit; use 1 to {positions}"
        )


def _check_pattern(name: str, config: DecoderConfig) -> None:
    letters, bare = set(config.pattern), config.bare_layers
    check_pattern(name, config.pattern, config.layers, bare=bare)
    for field, users in (
        ("state_space", {STATE_SPACE, BOTH}),
        ("delta_net", {DELTA_NET, KIMI_DELTA}),
        ("gated_unit", {GATED_UNIT}),
    ):
        if (getattr(config, field) is None) == bool(letters & users):
            raise ModelError(
                f"{name}: `{field}` holds the sizes of layers that `pattern` has by "
                f"{' or '.join(sorted(users))}: set both or neither"
            )
    if (SHORT_CONVOLUTION in letters) != bool(config.conv_taps):
        raise ModelError(
            f"{name}: `conv_taps` is {config.conv_taps}: it is for layers that `pattern` has by "
            f"{SHORT_CONVOLUTION}"
        )
    if config.state_space is not None:
        check_state_space(name, config.state_space)
    if config.delta_net is not None:
        check_delta_net(name, config.delta_net)
    if config.gated_unit is not None:
        check_gated_unit(name, config.gated_unit)
    if EXPERTS in letters and not config.experts:
        raise ModelError(f"{name}: `pattern` has {EXPERTS} (experts), `experts` is 0")
    if bare and config.parallel:
        raise ModelError(f"{name}: `bare_layers` and `parallel` exclude each other: set one")


def _check_attention(name: str, config: DecoderConfig) -> None:
    for field in ("kv_heads", "full_kv_heads"):
        if config.heads % ((groups := getattr(config, field)) or 1):
            raise ModelError(
                f"{name}: heads ({config.heads}) is not divisible by {field} ({groups})"
            )
    widest = max(config.head_dim, config.full_head_dim)
    for field in ("rotary_dims", "window_rotary_dims"):
        if (dims := getattr(config, field)) % 2 or dims > widest:
            raise ModelError(
                f"{name}: `{field}` is {dims}; features turn in pairs, so use an even number up to "
                f"head_dim ({widest})"
            )
    for field in ("rope_base", "window_rope_base"):
        if (base := getattr(config, field)) <= 1 and (base or field == "rope_base"):
            raise ModelError(f"{name}: `{field}` is {base}, not above 1")
    if config.window and config.chunk:
        raise ModelError(f"{name}: `window` and `chunk` exclude each other: set one to 0")
    _one_of(name, "rope_scaling", config.rope_scaling, ("", *SCALINGS))
    if config.rope_scaling in ("llama3", "yarn") and config.rope_original < 1:
        raise ModelError(
            f"{name}: `rope_original` is {config.rope_original}; scaling {config.rope_scaling} "
            f"needs the sequence length before the stretch"
        )
    if config.rope_scaling == "llama3" and not 0 < config.rope_low <= config.rope_high:
        raise ModelError(
            f"{name}: `rope_low` ({config.rope_low}) is to lie between 0 and `rope_high` "
            f"({config.rope_high})"
        )
    if config.kv_lora and config.kv_heads != config.heads:
        raise ModelError(
            f"{name}: latent attention has one key per query head; set kv_heads to {config.heads}"
        )
    if config.kv_lora and not 0 < config.rotary_dims < config.head_dim:
        raise ModelError(
            f"{name}: `rotary_dims` is {config.rotary_dims}; latent attention turns some of the "
            f"{config.head_dim} features of a head and keeps others"
        )
    plain = not (config.kv_lora or config.compression)
    if plain and (config.q_lora or config.value_dim not in (0, config.head_dim)):
        raise ModelError(f"{name}: `q_lora` and `value_dim` belong to latent attention (`kv_lora`)")
    if config.gate_from_query and not (config.kv_lora and config.q_lora and config.attention_gate):
        raise ModelError(
            f"{name}: `gate_from_query` needs `kv_lora`, `q_lora` and `attention_gate`: set these"
        )
    if (config.index_topk and plain) or (config.index_topk and not config.q_lora):
        raise ModelError(
            f"{name}: `index_topk` is for latent attention: set `kv_lora` and `q_lora`, or it to 0"
        )
    if config.index_reusing_layers and (not config.index_topk or 0 in config.index_reusing_layers):
        raise ModelError(
            f"{name}: `index_reusing_layers` needs `index_topk` and an indexer in layer 0"
        )
    if config.index_topk and (config.index_heads < 1 or config.index_dim < config.rotary_dims):
        raise ModelError(
            f"{name}: an indexer needs `index_heads` from 1 and `index_dim` from rotary_dims "
            f"({config.rotary_dims}) on, they are {config.index_heads} and {config.index_dim}"
        )


def _check_compression(name: str, seq_len: int, config: DecoderConfig) -> None:
    sizes = config.compression
    if sizes is None:
        return
    where = f"{name}: `compression`"
    if len(sizes.ratios) != config.layers or min(sizes.ratios) < 0:
        raise ModelError(f"{where}: `ratios` are to be one for each of {config.layers} layers")
    if max(sizes.ratios) > seq_len:
        raise ModelError(
            f"{where}: a key stands for {max(sizes.ratios)} tokens; use longer sequences than "
            f"{seq_len} tokens"
        )
    full = tuple(layer for layer, ratio in enumerate(sizes.ratios) if ratio)
    if config.full_layers != full or config.window < 1:
        raise ModelError(f"{where} needs a `window`, and its layers as `full_layers`")
    if config.pattern or config.kv_lora or config.mtp_layers or config.q_lora < 1:
        raise ModelError(f"{where} needs `q_lora`, and no `pattern`, `kv_lora` and `mtp_layers`")
    if sizes.sparse_ratio in sizes.ratios and not config.index_topk:
        raise ModelError(f"{where}: layers of ratio {sizes.sparse_ratio} need `index_topk`")
    if config.heads % max(sizes.out_groups, 1) or min(sizes.out_groups, sizes.out_rank) < 1:
        raise ModelError(
            f"{where}: `out_groups` is {sizes.out_groups}, `out_rank` {sizes.out_rank}; use a "
            f"divisor of heads ({config.heads}) and 1 or more"
        )


def _check_connections(name: str, config: DecoderConfig) -> None:
    sizes = config.connections
    if sizes is None:
        return
    if sizes.streams < 1 or min(sizes.rounds, sizes.epsilon) < 0 or sizes.magnitude <= 0:
        raise ModelError(f"{name}: `connections` has a size that is too small: {sizes}")
    others = (config.parallel, config.bare_layers, config.mtp_layers, config.layer_inputs)
    if any(others) or config.post_norms or config.sum_norms or config.dense_beside:
        raise ModelError(
            f"{name}: `connections` are for layers of two parts behind a norm each, without "
            f"`mtp_layers` and `layer_inputs`"
        )


def _check_reuse(name: str, config: DecoderConfig) -> None:
    apart = config.full_kv_heads or config.full_head_dim or config.keys_as_values
    others = config.kv_lora or config.pattern or config.qk_norm_last
    if (apart or config.value_norm or config.reusing_layers) and others:
        raise ModelError(
            f"{name}: `full_kv_heads`, `full_head_dim`, `value_norm`, `keys_as_values` and "
            f"`reusing_layers` are for plain attention: set them to 0, or `kv_lora` and `pattern`"
        )
    if config.reusing_layers and not (config.value_norm and config.rotary_dims):
        raise ModelError(f"{name}: `reusing_layers` needs `value_norm` and `rotary_dims`")
    for layer in range(max(config.layers - config.reusing_layers, 0), config.layers):
        if config.lender(layer) is None:
            raise ModelError(
                f"{name}: `reusing_layers` is {config.reusing_layers}: layer {layer} finds no "
                f"layer before those that sees as many keys; use less"
            )
    if config.dense_beside and not (config.experts and config.pre_norms and not config.parallel):
        raise ModelError(f"{name}: `dense_beside` needs `experts` and `pre_norms`, not `parallel`")
    if config.layer_inputs is not None and (config.bare_layers or config.learned_positions):
        raise ModelError(
            f"{name}: `layer_inputs` needs layers of two parts and no `learned_positions`"
        )
    sizes = config.layer_inputs
    if sizes is not None and (sizes.width < 1 or sizes.vocab < config.vocab):
        raise ModelError(
            f"{name}: `layer_inputs` has width {sizes.width}, {sizes.vocab} rows; use 1 or more, "
            f"and vocab ({config.vocab}) or more"
        )


def _check_experts(name: str, config: DecoderConfig) -> None:
    _one_of(name, "router", config.router, ROUTERS)
    if config.expert_hidden < 1:
        raise ModelError(f"{name}: `expert_hidden` is {config.expert_hidden}, below 1")
    groups, kept_groups = config.router_groups, config.kept_groups
    if groups < 1 or config.experts % groups:
        raise ModelError(f"{name}: experts ({config.experts}) do not make {groups} router_groups")
    if groups > 1 and config.experts // groups < 2:
        raise ModelError(
            f"{name}: `router_groups` is {groups}, which leaves one expert to a group; groups are "
            f"chosen by their two best: use at most {config.experts // 2}"
        )
    if not 1 <= kept_groups <= groups:
        raise ModelError(f"{name}: `kept_groups` is {kept_groups}; use 1 to {groups}")
    if config.weigh_inputs and config.experts_per_token != 1:
        raise ModelError(
            f"{name}: `weigh_inputs` is for one expert a token, `experts_per_token` is "
            f"{config.experts_per_token}; use 1"
        )
    reachable = config.experts // groups * kept_groups
    if not 1 <= config.experts_per_token <= reachable:
        raise ModelError(
            f"{name}: `experts_per_token` is {config.experts_per_token}; use 1 to {reachable}"
        )


def _one_of(name: str, field: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        shown = ", ".join(option or '""' for option in choices)
        raise ModelError(f"{name}: `{field}` is `{value}`; choose one of {shown}")
