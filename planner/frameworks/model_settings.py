"""Settings of a model that a training framework decides, not the model's configuration alone."""

from msgspec.structs import replace

from millrace.models.spec import ModelSpec
from millrace.planner.errors import InfeasibleError, PlanError

MTP_LAYERS_MAX = 16  # published models have one to three
DECODER = "decoder"


def with_mtp_layers(model: ModelSpec, layers: int | None) -> ModelSpec:
    """Model with so many modules that predict the tokens after the next; None: as it is.

    Parameters
    ----------
    model : ModelSpec
        A language model of the zoo's decoders, or imported from a `config.json` as one.
    layers : int or None
        Modules, 0 for none; at most `MTP_LAYERS_MAX`.

    Raises
    ------
    PlanError
        The number is out of range.
    InfeasibleError
        The model is of a kind that has no such modules.
    """
    if layers is None:
        return model
    if not 0 <= layers <= MTP_LAYERS_MAX:
        raise PlanError(f"--mtp-layers is {layers}: expected 0 to {MTP_LAYERS_MAX}")
    if model.family != DECODER:
        if layers:
            raise InfeasibleError(
                f"--mtp-layers {layers}: `{model.name}` is no decoder of `millrace models` or of a "
                f"config.json; leave it out"
            )
        return model
    return replace(model, config={**model.config, "mtp_layers": layers})
