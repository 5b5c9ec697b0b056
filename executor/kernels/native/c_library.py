"""The compiled library, and its functions with the types of what they take.

A function is called with arrays (C-contiguous), whole numbers and floats. It runs on as many
threads as OpenMP has, which the environment of a rank says, and without Python's lock.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from millrace.executor.kernels.native.c_compiler import compiled_library

_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "n": ctypes.c_long,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}

# Arguments by letter (pointer, whole number, float), and the result behind an arrow.
SIGNATURES = {
    "adamw": "pppppnffffff",
    "add": "pppn",
    "add_row": "pppnn",
    "attention": "ppppppfp",
    "attention_grad": "ppppppppppfp",
    "attention_scratch": "p->n",
    "batch_norm": "ppppppnnpff",
    "batch_norm_grad_input": "ppppppppnnpff",
    "batch_norm_grad_sums": "ppppppnnpff",
    "channel_squares": "pppnnpf",
    "channel_sums": "ppnnp",
    "copy": "ppn",
    "cross_entropy": "ppppnn",
    "cross_entropy_grad": "ppppnnn",
    "gelu": "ppn",
    "gelu_erf": "ppnp",
    "gelu_erf_grad": "pppnp",
    "gelu_grad": "pppn",
    "layer_norm": "ppppppnnf",
    "layer_norm_grad_input": "ppppppnn",
    "layer_norm_grad_weight": "ppppppnn",
    "max_pool": "ppp",
    "max_pool_grad": "pppp",
    "recurrence": "pppppppp",
    "recurrence_grad": "ppppppppppppp",
    "relu": "ppn",
    "relu_grad": "pppn",
    "rms_norm": "ppppnnf",
    "rms_norm_grad_input": "pppppnn",
    "rms_norm_grad_weight": "ppppnn",
    "rotary": "ppppnnnnnn",
    "scale": "ppnf",
    "silu": "ppn",
    "silu_grad": "pppn",
    "squared_sum": "pn->d",
    "sum_rows": "ppnn",
    "sums_room": "n->n",
    "swiglu": "pppn",
    "swiglu_grad": "pppppn",
    "vector_width": "->n",
}

Function = Callable[..., Any]


@lru_cache(1)
def _library() -> ctypes.CDLL | None:
    path = compiled_library()
    if path is None:
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # compiled for a machine that has an OpenMP library, which this one lacks
        return None


def is_available() -> bool:
    """True where the library could be compiled and loaded."""
    return _library() is not None


@lru_cache(1)
def native_version() -> str:
    """Name of the library that runs use; NumPy's own kernels where there is none."""
    path = compiled_library()
    return "numpy" if path is None else path.stem


@lru_cache(None)
def function(name: str) -> Function:
    """Function of the library, arrays passed by their address."""
    library = _library()
    assert library is not None, "asked for without a look at is_available"
    arguments, _, result = SIGNATURES[name].partition("->")
    symbol = library[name]
    symbol.argtypes = [_TYPES[letter] for letter in arguments]
    symbol.restype = _TYPES[result] if result else None
    return symbol
