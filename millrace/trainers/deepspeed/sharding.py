"""Sharding: how fully sharded data parallelism is told to transformers and accelerate."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.planner.parallel_degrees import HYBRID
from millrace.trainers.deepspeed.script_options import NO, YES
from millrace.trainers.trainer import SettingsError

# torch.distributed.fsdp.ShardingStrategy, by its words and accelerate's numbers (read 2026-11).
STRATEGIES: dict[str, int | str] = {
    "full_shard": 3,
    "shard_grad_op": 2,
    "no_shard": 0,
    "hybrid_shard": HYBRID,
    "hybrid_shard_zero2": HYBRID,
    "1": 3,
    "2": 2,
    "3": 0,
    "4": HYBRID,
    "5": HYBRID,
    "_hybrid_shard_zero2": HYBRID,
}
BESIDE = ("auto_wrap", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Sharding of storage over data-parallel ranks: ZeRO, with parameters on the host, recomputed.

    `gathered` is true where weights stay gathered between the passes of a hybrid.
    """

    zero: int | str
    offload: bool = False
    recompute: bool = False
    gathered: bool = False


def sharding_of(words: str, section: Mapping[str, Any]) -> Sharding:
    """Sharding that `--fsdp` and its configuration say.

    Parameters
    ----------
    words : str
        As `--fsdp` has them: `full_shard auto_wrap`, or true.
    section : mapping
        `fsdp_config`, with the prefix `fsdp_` or without.

    Raises
    ------
    SettingsError
        There is no such strategy.

    Examples
    --------
    >>> sharding_of("shard_grad_op auto_wrap offload", {}).zero
    2
    >>> sharding_of("", {"fsdp_version": 2, "fsdp_reshard_after_forward": False}).zero
    2
    """
    config = {
        name.replace("-", "_").removeprefix("fsdp_"): value for name, value in section.items()
    }
    parts = [part for part in re.split(r"[\s,]+", words.lower()) if part not in YES]
    strategy = str(config.get("sharding_strategy") or "").lower()
    after = str(config.get("reshard_after_forward", "")).lower()
    beside = {*BESIDE, *YES, *NO}
    named = [part for part in (*parts, strategy, after) if part not in beside]
    for part in named:
        if part not in STRATEGIES:
            raise SettingsError(
                f"fsdp `{part}`: expected one of {', '.join(list(STRATEGIES)[:5])}, {BESIDE[0]}"
            )
    zero: int | str = STRATEGIES[named[0]] if named else 2 if after in NO[1:] else 3
    return Sharding(
        zero=zero,
        offload="offload" in parts or _is_on(config.get("offload_params")),
        recompute=_is_on(config.get("activation_checkpointing")),
        gathered=any(part in ("hybrid_shard_zero2", "_hybrid_shard_zero2", "5") for part in named),
    )


def _is_on(value: Any) -> bool:
    return value is not None and str(value).lower() in YES[1:]
