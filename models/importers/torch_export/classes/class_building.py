"""Class building: the module that transformers makes of a configuration, without its weights.

What a constructor draws or fills is not made: such tensors lie on the meta device. What it works
out of numbers (tables of frequencies, scales of embeddings) is small and is made for real, so that
the tracer has its values.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from millrace.models.errors import ModelError
from millrace.models.importers.torch_export.tracing import quiet

# Keys that name code or weights beside the configuration: neither is read.
_NOT_READ = ("auto_map", "quantization_config", "torch_dtype", "dtype")
_REAL_VALUES_MAX = 2**22  # values of a tensor that a constructor fills with one number
_LAYERS_MAX, _SIZE_MAX = 10_000, 2**31 - 1  # as `huggingface/keys.py` has them


def built_module(values: Mapping[str, Any]) -> Any:
    """Module of the class that transformers has for a configuration, in evaluation mode.

    Parameters
    ----------
    values : mapping
        The decoded configuration.

    Raises
    ------
    ModelError
        transformers has no such model type, or none with a language model's head; the class cannot
        be made of these values; `architectures` names another class.
    """
    with offline():
        import torch
        import transformers
        from transformers.models.auto import CONFIG_MAPPING, modeling_auto

        model_type = values.get("model_type")
        release = f"transformers {transformers.__version__}"
        if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
            raise ModelError(
                f"{release} has no class of `model_type` {model_type!r}, and code of a repository "
                f"is not run"
            )
        if model_type not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise ModelError(f"{release} has no causal language model `{model_type}`")
        _check_sizes(values)
        try:
            with quiet(), _weights_on_meta():
                config = CONFIG_MAPPING[model_type].from_dict(
                    {key: value for key, value in values.items() if key not in _NOT_READ}
                )
                config.use_cache = False
                auto: Any = transformers.AutoModelForCausalLM
                module = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(
                f"the class of `{model_type}` in {release} cannot be made of it: "
                f"{' '.join(line.strip() for line in lines[:2])[:300]}"
            ) from error
    _check_class(values, type(module).__name__)
    return module.eval()


def _check_sizes(values: Mapping[str, Any]) -> None:
    """Refuse more layers than can be made one by one, and slips of the pen, in the parts too."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_sizes(value)
        elif isinstance(value, int) and key.endswith(("layers", "n_layer", "size")):
            most = _SIZE_MAX if key.endswith("size") else _LAYERS_MAX
            if value > most:
                raise ModelError(f"`{key}` is {value:,}; at most {most:,} can be built")


def _check_class(values: Mapping[str, Any], name: str) -> None:
    """Refuse a configuration of a model with another head."""
    named = values.get("architectures")
    if named and list(named) != [name]:
        shown = ", ".join(map(str, named))
        raise ModelError(
            f"`architectures` names {shown}; of this `model_type` {name} is imported, others "
            f"through millrace.importing.import_module"
        )


@contextmanager
def offline() -> Iterator[None]:
    """Let transformers ask no server and write no warnings."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from transformers.utils import logging

            verbosity = logging.get_verbosity()
            logging.set_verbosity_error()
            try:
                yield
            finally:
                logging.set_verbosity(verbosity)
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _weights_on_meta() -> Any:
    """Mode in which tensors that are only reserved, or are large, lie on the meta device."""
    import torch
    from torch.overrides import TorchFunctionMode

    reserved = (torch.empty, torch.empty_strided)
    filled = (torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)

    class WeightsOnMeta(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            options = dict(kwargs or {})
            if func in (*reserved, *filled) and options.get("device") is None:
                on_meta = func(*args, **{**options, "device": "meta"})
                if func in reserved or on_meta.numel() > _REAL_VALUES_MAX:
                    return on_meta
            return func(*args, **options)

    return WeightsOnMeta()
