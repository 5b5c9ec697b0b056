"""The table of torchtitan's settings, flavours and shipped configurations, read off its own code.

Run `PYTHONPATH=TORCHTITAN python -m benchmarks.trainers.torchtitan_table VERSION` from the root of
the repository, with that release on the path (0.2.2: settings in TOML; 0.3.0: in Python) and torch
and tyro installed. It replaces the version's part of `millrace/trainers/torchtitan/settings.json`.
"""

import importlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import millrace
from benchmarks.trainers import torchtitan_import

TABLE = Path(millrace.__file__).parent / "trainers" / "torchtitan" / "settings.json"
SOURCE = "pypi.org/project/torchtitan, read 2026-11"
MODELS = {"llama3": "llama3", "qwen3": "qwen3", "deepseek_v3": "deepseekv3"}
PLAIN = (bool, int, float, str, type(None))


def rows(config: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings of a configuration, by dotted name, each with type, choices and default."""
    hints = get_type_hints(type(config), include_extras=False)
    for field in fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if field.name in ("model_spec", "param_groups", "optimizer_factory_kwargs_by_name"):
            continue
        if is_dataclass(value):
            yield from rows(value, f"{name}.")
        else:
            hint = hints.get(field.name)
            row: dict[str, Any] = {"type": _spelled(hint)}
            if choices := _choices(hint):
                row["choices"] = choices
            row["default"] = value if isinstance(value, (*PLAIN, list)) else None
            yield name, row


def _spelled(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "str"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(choice) for choice in get_args(hint)]
    return []


def sizes(model: Any) -> dict[str, Any]:
    """Sizes of a flavour, in the words of an exported module's `SIZES`."""
    attention, layers = model.layers[0].attention, model.layers
    rope = attention.rope
    written = {
        "vocab_size": model.vocab_size,
        "dim": model.dim,
        "n_layers": len(layers),
        "n_heads": attention.n_heads,
        **heads(attention, model.dim),
        "hidden_dim": max(x.feed_forward.w1.out_features if x.feed_forward else 0 for x in layers),
        "enable_weight_tying": model.enable_weight_tying,
        "norm_eps": model.norm.eps,
        "rope_format": type(rope).__qualname__.partition(".")[0],
        "max_seq_len": rope.max_seq_len,
        "rope_theta": float(rope.theta),
        "rope_scaling": rope.scaling,
    }
    if rope.scaling == "yarn":
        for word in ("rope_factor", "beta_fast", "beta_slow", "original_seq_len", "truncate"):
            written[word] = getattr(rope, word)
    mixture = next((x.moe for x in layers if x.moe), None)
    if mixture is not None:
        experts, shared = mixture.routed_experts.inner_experts, mixture.shared_experts
        written |= {
            "num_experts": mixture.num_experts,
            "top_k": mixture.router.top_k,
            "moe_hidden_dim": experts.hidden_dim,
            "shared_hidden_dim": shared.w1.out_features if shared else 0,
            "dense_layers": [n for n, layer in enumerate(layers) if layer.moe is None],
            "score_func": mixture.router.score_func,
            "route_norm": mixture.router.route_norm,
            "route_scale": mixture.router.route_scale,
            "num_expert_groups": mixture.router.num_expert_groups or 1,
            "num_limited_groups": mixture.router.num_limited_groups or 1,
        }
    return written


def heads(attention: Any, dim: int) -> dict[str, Any]:
    """Sizes of the heads of an attention, latent or not."""
    if hasattr(attention, "kv_lora_rank"):
        head_dim = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        scale = head_dim**-0.5
        if attention.rope.scaling == "yarn":
            scale *= (0.1 * attention.mscale * math.log(attention.rope.rope_factor) + 1) ** 2
        words = ("q_lora_rank", "kv_lora_rank", "v_head_dim", "qk_rope_head_dim")
        latent = {word: getattr(attention, word) for word in words}
        return {
            "n_kv_heads": attention.n_heads,
            "head_dim": head_dim,
            **latent,
            "attention_scale": scale,
        }
    return {
        "n_kv_heads": attention.n_kv_heads or attention.n_heads,
        "head_dim": attention.head_dim or dim // attention.n_heads,
        "qk_norm": attention.qk_norm is not None,
    }


def shipped(registry: ModuleType) -> dict[str, dict[str, Any]]:
    """Configurations that a registry ships: flavour, converters, settings unlike the defaults."""
    configs = {}
    trainer = importlib.import_module("torchtitan.trainer")
    defaults = {name: row["default"] for name, row in rows(trainer.Trainer.Config())}
    build, calls = registry.model_registry, list[tuple[str, list[str], str]]()

    def recorded(flavor: str, *args: Any, converters: Any = None, **options: Any) -> Any:
        names = [type(c).__qualname__.partition(".")[0] for c in converters or ()]
        calls.append((flavor, names, options.get("moe_comm_backend") or "standard"))
        return build(flavor, *args, **options)

    registry.model_registry = recorded  # type: ignore[attr-defined]
    for name in dir(registry):
        if not name.startswith(f"{registry.__name__.split('.')[-2]}_"):
            continue
        calls.clear()
        try:
            config = getattr(registry, name)()
        except (ImportError, ValueError, NotImplementedError) as error:
            print(f"{name} is left out: {error}")
            continue
        settings = {
            key: row["default"]
            for key, row in rows(config)
            if key.startswith(("training.", "parallelism.", "compile.", "lr_scheduler."))
            and row["default"] != defaults.get(key)
        }
        checkpoint = type(config.activation_checkpoint).__qualname__.partition(".")[0]
        configs[name] = {
            "flavor": calls[-1][0],
            "converters": calls[-1][1],
            "expert_backend": calls[-1][2],
            "activation_checkpoint": {"NoneType": None}.get(checkpoint, checkpoint),
            "settings": settings,
        }
    return configs


def table_of(version: str) -> dict[str, Any]:
    """Part of the table that a release fills."""
    part: dict[str, Any] = {"version": version, "source": SOURCE}
    torchtitan_import.install()
    if version.startswith("0.2"):
        config = importlib.import_module("torchtitan.config.job_config").JobConfig()
        return part | {"settings": dict(rows(config))}
    flavors, configs = {}, {}
    part["settings"] = dict(rows(importlib.import_module("torchtitan.trainer").Trainer.Config()))
    for name, prefix in MODELS.items():
        module = importlib.import_module(f"torchtitan.models.{name}")
        registry = importlib.import_module(f"torchtitan.models.{name}.config_registry")
        options = {"attn_backend": "flex"}
        mixtures = {**options, "moe_comm_backend": "standard"}
        for flavor, build in getattr(module, f"{prefix}_configs").items():
            arguments = mixtures if "moe_comm_backend" in build.__annotations__ else options
            flavors[f"{name}.{flavor}"] = sizes(build(**arguments))
        configs |= {f"{name}.{config}": row for config, row in shipped(registry).items()}
        debug = getattr(registry, f"{name}_debugmodel")()
        part["settings"] |= dict(rows(debug.dataloader, "dataloader."))
        part["settings"] |= dict(rows(debug.checkpoint, "checkpoint."))
    return part | {"flavors": flavors, "configs": configs}


def main(version: str) -> None:
    """Write the part of a version."""
    table = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    table[version] = table_of(version)
    parts = []
    for name, part in sorted(table.items()):
        lines = []
        for key, value in part.items():
            if isinstance(value, dict):
                rows_text = ",\n".join(
                    f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()
                )
                lines.append(f"  {json.dumps(key)}: {{\n{rows_text}\n  }}")
            else:
                lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    TABLE.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")
    print(f"{TABLE}: {len(table[version]['settings'])} settings of {version}")


if __name__ == "__main__":
    main(sys.argv[1])
