"""Control of a device: state that changes from step to step, and a step's last launch."""

import numpy as np

from millrace.executor.cuda.calls import CONTROL, WARP_THREADS, Launch, Operand, types
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import LOSS_SCALE

CONTROL_DTYPE = np.dtype(
    [
        ("step", np.int64),
        ("run_step", np.int64),
        ("updates", np.int64),
        ("good_steps", np.int64),
        ("loss_scale", np.float64),
        ("scale_growth", np.float64),
        ("growth_interval", np.int64),
        ("margin_bits", np.int32),
        ("skipped", np.int32),
    ],
    align=True,
)
"""`Control` of `sources/control.cuh`, field by field."""

HISTORY_FIELDS = ("loss", "tokens", "squares", "loss_scale", "updated")
"""Columns of a row of the history, all double: what `finish_step` keeps of a step.

`squares` is the sum of squares of the gradients without the loss scale.
"""

# Scaling follows Micikevicius et al., "Mixed precision training" (ICLR 2018), section 3.2; the
# values are what torch.amp.GradScaler documents as its defaults (growth_factor, growth_interval,
# and in `sources/optimizer.cu` backoff_factor; stable documentation, read 2026-11).
SCALE_GROWTH = 2.0
GROWTH_INTERVAL = 2000


def control_bytes(first_step: int, precision: str, *, loss_scale: float = LOSS_SCALE) -> bytes:
    """Bytes of the `Control` of a rank before the first step of a run.

    Parameters
    ----------
    first_step
        Steps that earlier runs have made. All are taken for updates: how many of them were skipped
        is not known.
    precision
        Precision of the plan: in fp16 gradients are scaled, in any other the scale is 1 and stays.
    loss_scale
        First value of the scale in fp16, above 0. Gradients here are those of sums over
        tokens: what scale s is to a mean over n tokens of a microbatch, s / n is here.

    Raises
    ------
    ExecutorError
        The loss scale is not above 0.

    Examples
    --------
    >>> int(np.frombuffer(control_bytes(7, "bf16"), CONTROL_DTYPE)["step"][0])
    7
    """
    if not loss_scale > 0:
        raise ExecutorError(f"a loss scale is above 0, found {loss_scale}; give 1")
    control = np.zeros((), CONTROL_DTYPE)
    control["step"] = control["updates"] = first_step
    scaled = precision == "fp16"
    control["loss_scale"] = loss_scale if scaled else 1.0
    control["scale_growth"] = SCALE_GROWTH if scaled else 1.0
    control["growth_interval"] = GROWTH_INTERVAL
    # Nothing was chosen yet. Of floats that are not negative the bits have the order of the values.
    control["margin_bits"] = np.float32(np.inf).view(np.int32)
    return control.tobytes()


def finish_step_call(totals: Operand | None, dtype: str, history: Operand, capacity: int) -> Launch:
    """Launch that ends a step, after all that the rank does in it.

    It keeps the step's row of the history and advances `Control`: the steps' counts, and in fp16
    the loss scale, which halves (not below 2⁻¹⁶) where the step's gradients were not finite and is
    multiplied by `scale_growth` after `growth_interval` steps in which they were.

    Parameters
    ----------
    totals
        The sum over the world of what `step_totals` made; None where the rank has no such actor,
        then only `Control` advances, as of a step with finite gradients.
    dtype
        Dtype of the totals.
    history
        Rows of `HISTORY_FIELDS`; step n of this run goes to row n mod `capacity`.
    capacity
        Rows of the history.
    """
    if totals is None:
        return Launch("optimizer", "finish_step_alone", (1, 1, 1), (WARP_THREADS, 1, 1), (CONTROL,))
    args = (CONTROL, totals, history, np.int64(capacity))
    return Launch("optimizer", "finish_step" + types(dtype), (1, 1, 1), (WARP_THREADS, 1, 1), args)
