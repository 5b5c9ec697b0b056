"""Jobs that tests write and read: any that torchtitan has words for."""

from dataclasses import replace

import msgspec
from hypothesis import strategies as st

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import FAMILIES
from millrace.planner.search import Pins
from millrace.trainers.job import TrainingJob

HEADS = 16


def spelled_out(job: TrainingJob) -> TrainingJob:
    """The job with every size of its model, those of its family's defaults too."""
    config = msgspec.convert(dict(job.model.config), FAMILIES[job.model.family].config)
    sizes = msgspec.structs.asdict(config)
    return replace(job, model=msgspec.structs.replace(job.model, config=sizes))


@st.composite
def model_specs(draw: st.DrawFn, layers: int, *, tied: bool) -> ModelSpec:
    """Decoders of every kind that torchtitan's building blocks can be."""
    head_dim = draw(st.sampled_from((32, 64)))
    config: dict[str, object] = {
        "layers": layers,
        "hidden": draw(st.sampled_from((256, 512))),
        "vocab": draw(st.sampled_from((1000, 32000))),
        "positions": 16384,
        "heads": HEADS,
        "kv_heads": draw(st.sampled_from((8, HEADS))),
        "head_dim": head_dim,
        "rotary_dims": head_dim,
        "ffn_hidden": draw(st.sampled_from((1024, 1408))),
        "tied": tied,
        "epsilon": draw(st.sampled_from((1e-5, 1e-6))),
        "rope_base": draw(st.sampled_from((10000.0, 500000.0))),
        "qk_norm": draw(st.sampled_from(("", "rms"))),
        "qkv_bias": draw(st.booleans()),
        "out_bias": draw(st.booleans()),
        "rope_scaling": draw(st.sampled_from(("", "llama3", "yarn"))),
    }
    if config["rope_scaling"]:
        config |= {"rope_factor": 8.0, "rope_original": 8192}
    else:
        config["rope_interleaved"] = draw(st.booleans())
    if draw(st.booleans()):
        config |= {"kv_lora": 64, "q_lora": draw(st.sampled_from((0, 96))), "value_dim": 48}
        config |= {"kv_heads": HEADS, "rotary_dims": 16, "qk_norm": ""}
        config |= {"qkv_bias": False, "out_bias": False}
        if config["rope_scaling"] == "yarn":
            config["attention_scale"] = draw(st.sampled_from((0.0, 0.3)))
    if draw(st.booleans()):
        config |= {
            "experts": 16,
            "experts_per_token": draw(st.sampled_from((2, 4))),
            "expert_hidden": 512,
            "shared_hidden": draw(st.sampled_from((0, 512))),
            "dense_layers": draw(st.sampled_from(((), (0,)))),
            "router": draw(st.sampled_from(("softmax", "sigmoid"))),
            "normalize_weights": draw(st.booleans()),
            "capacity_factor": 1.0,
        }
    return ModelSpec(
        name="model",
        family="decoder",
        config=config,  # type: ignore[arg-type]
        seq_len=draw(st.sampled_from((1024, 8192))),
        precision=draw(st.sampled_from(("fp32", "bf16", "fp8", "mxfp8", "nvfp4"))),
    )


@st.composite
def torchtitan_jobs(draw: st.DrawFn) -> TrainingJob:
    """Jobs that torchtitan can be told without loss."""
    dp, tp, cp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 8), (1, 2, 8), (1, 2)))
    pp = draw(st.sampled_from((1, 2, 4)))
    schedule = draw(st.sampled_from(("gpipe", "1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v")))
    interleave = 2 if schedule in ("interleaved-1f1b", "zb-v", "dualpipe-v") else 1
    chunks = pp * interleave
    micro_batch = draw(st.sampled_from((1, 2)))
    uneven = pp > 1 and draw(st.booleans())
    counts = (1, *[2] * (chunks - 1)) if uneven else ()
    model = draw(model_specs(sum(counts) or 2 * chunks, tied=pp == 1 and draw(st.booleans())))
    experts = bool(model.config.get("experts"))
    pinned: dict[str, object] = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
    pinned |= {"micro_batch": micro_batch}
    pinned["recompute"] = draw(st.sampled_from(("none", "selective", "full")))
    zero = 0
    if dp * cp > 1:
        levels = [2, 3, *([0] if cp == 1 else []), *(["3-hybrid"] if dp == 8 else [])]
        zero = pinned["zero"] = draw(st.sampled_from(levels))
    if pp > 1:
        pinned |= {"schedule": schedule, "interleave": interleave}
    if tp > 1:
        pinned["sequence_parallel"] = draw(st.booleans())
    if cp > 1:
        pinned["ring"] = False
    if experts:
        ep = draw(st.sampled_from((1, tp if zero == 0 else 2 if dp * tp * cp % 2 == 0 else 1)))
        ep = ep if zero != "3-hybrid" else 1
        pinned |= {"ep": ep, "expert_overlap": False}
        pinned["dispatcher"] = draw(st.sampled_from(("alltoall", "deepep", "hybridep")))
        if tp > 1:
            pinned["etp"] = tp if ep == 1 else 1
    words = [{}, {"compiled": "1"}, {"compiled": "1", "tensor_overlap": "1"}]
    if pp == 1 and pinned.get("ep", 1) == 1:
        words.append({"captured": "step"})
    devices = dp * tp * cp * pp
    per_node = min(8, devices)
    return TrainingJob(
        model=model,
        training=TrainingSpec(
            learning_rate=3e-4,
            warmup_steps=draw(st.sampled_from((0, 100))),
            decay_steps=draw(st.sampled_from((0, 1000))),
            clip_norm=draw(st.sampled_from((0.5, 1.0))),
        ),
        global_batch=dp * micro_batch * draw(st.sampled_from((1, 3))) * 2 * chunks,
        nodes=devices // per_node,
        devices_per_node=per_node,
        pins=Pins.of(pinned),
        framework=draw(st.sampled_from(("torchtitan", "pytorch-fsdp"))),
        cluster=draw(st.sampled_from(("h100:8x8", ""))),
        chunk_layers=counts,
        software=draw(st.sampled_from(words)),
    )
