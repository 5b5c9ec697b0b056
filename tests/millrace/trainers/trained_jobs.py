"""Jobs of trainers, drawn at random, and what makes two of them one."""

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import strategies as st

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import FAMILIES
from millrace.planner.search import Pins
from millrace.trainers.catalogue import trainer_of
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import ReadSettings, SettingsSource, Trainer, WrittenSettings


def source(written: WrittenSettings, **values: str) -> SettingsSource:
    """Source of what was written."""
    return SettingsSource(files=written.files, values=values)


def read_back(trainer: Trainer, job: TrainingJob) -> ReadSettings:
    """Job that a trainer reads of what it wrote, by the trainer that recognizes it."""
    settings = source(trainer.write(job))
    assert trainer_of(settings) is trainer
    return trainer.read(settings)


def plain(job: TrainingJob) -> TrainingJob:
    """Job with every field of its model's configuration, as defaults may be written out.

    Where all layers have experts, the width of a dense feed-forward part is nobody's.
    """
    family = FAMILIES[job.model.family]
    config = msgspec.structs.asdict(msgspec.convert(job.model.config, family.config))
    if config.get("experts") and not config["dense_layers"]:
        config["ffn_hidden"] = 0
    return replace(job, model=msgspec.structs.replace(job.model, config=config))


@st.composite
def llamas(draw: st.DrawFn, *, heads_multiple: int = 1, precision: str = "bf16") -> ModelSpec:
    """Models like Llama, whose heads and tokens divide by a degree of tensor parallelism."""
    kv_heads = heads_multiple * draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 4))
    head_dim = 2 * draw(st.integers(1, 64))
    config: dict[str, Any] = {
        "layers": draw(st.integers(1, 40)),
        "hidden": heads * head_dim,
        "vocab": heads_multiple * draw(st.integers(1, 1000)),
        "positions": draw(st.integers(1, 4096)),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "rotary_dims": head_dim,
        "ffn_hidden": draw(st.integers(1, 4096)),
        "tied": draw(st.booleans()),
        "rope_base": draw(st.sampled_from((10000.0, 500000.0))),
        "epsilon": draw(st.sampled_from((1e-5, 1e-6))),
        "activation": draw(st.sampled_from(("silu", "gelu", "gelu_erf", "relu"))),
    }
    return ModelSpec(
        name=draw(st.sampled_from(("llama", "llama3-8b", "m.1"))),
        family="decoder",
        config=config,
        seq_len=draw(st.integers(1, 8192)),
        precision=precision,
    )


@st.composite
def trainings(draw: st.DrawFn) -> TrainingSpec:
    """AdamW or SGD, with and without a warm-up and a cosine."""
    warmup = draw(st.sampled_from((0, 10, 500)))
    decay = draw(st.sampled_from((0, 1000)))
    rate = draw(st.sampled_from((1e-3, 3e-4, 0.02)))
    clip = draw(st.sampled_from((0.0, 1.0)))
    if draw(st.booleans()):
        return TrainingSpec(
            learning_rate=rate, warmup_steps=warmup, decay_steps=decay, clip_norm=clip,
            final_fraction=0.25 if decay else 0.1, beta2=0.98, epsilon=1e-7,
        )  # fmt: skip
    return TrainingSpec(
        optimizer="sgd", learning_rate=rate, warmup_steps=warmup, decay_steps=decay, clip_norm=clip
    )


def job_of_pins(model: ModelSpec, pins: dict[str, Any], **changes: Any) -> TrainingJob:
    """Job of one microbatch after another on as many devices as its degrees ask for."""
    degrees = [pins.get(name, 1) for name in ("dp", "tp", "pp", "cp")]
    world = degrees[0] * degrees[1] * degrees[2] * degrees[3]
    per_node = next(size for size in (8, 4, 2, 1) if world % size == 0)
    pinned = {"dp": 1, "tp": 1, "pp": 1, "cp": 1, "recompute": "none", "micro_batch": 1} | pins
    fields: dict[str, Any] = {
        "model": model,
        "global_batch": 4 * pinned["dp"] * pinned["micro_batch"],
        "nodes": world // per_node,
        "devices_per_node": per_node,
        "pins": Pins.of(pinned),
        "framework": "any",
        "cluster": f"h100:{per_node}x{world // per_node}",
    }
    return TrainingJob(**(fields | changes))
