"""Doubts: whether predictions for a cluster come from figures that were measured under load."""

from millrace.planner.cluster import Cluster, Device, MeasurementQuality

SAID = 0.005  # smaller shares are not worth a word


def profile_warning(cluster: Cluster) -> str | None:
    """Sentence that warns of predictions for a cluster; None where nothing speaks against them.

    Parameters
    ----------
    cluster : Cluster
        Its devices bring how they were measured.
    """
    doubts = (profile_doubt(group.device) for group in cluster.groups)
    doubt = next((doubt for doubt in doubts if doubt is not None), None)
    return None if doubt is None else f"predictions for {cluster.name} are in doubt: {doubt}"


def profile_doubt(device: Device) -> str | None:
    """Sentence that says by how much a device's figures may be off, and why; None where not.

    Parameters
    ----------
    device : Device
        Measured or not.
    """
    quality = device.measured
    if quality is None or not quality.is_doubtful:
        return None
    most = f"{100 * quality.error_max:.0f} %"
    if device.multiprocessors:
        return (
            f"the profile was taken while {_causes(quality, 'GPU')}: its figures may be up to "
            f"{most} too slow; take it anew while nothing else uses the GPU "
            f"(`millrace profile --device gpu`)"
        )
    return (
        f"the profile was taken while {_causes(quality, 'cores')}: its collectives may be up to "
        f"{most} too slow, its kernels by less; take it anew on a quiet machine "
        f"(`millrace profile`)"
    )


def _causes(quality: MeasurementQuality, what: str) -> str:
    """Clause that says what speaks against a measurement: others, the host, or its own rounds."""
    shares = (
        (f"other programs took {{}} % of the {what}", quality.others),
        ("the host took {} %", quality.steal),
        ("rounds differed by {} %", quality.spread),
    )
    causes = [
        text.format(round(100 * share))
        for text, share in shares
        if share is not None and share >= SAID
    ]
    if quality.others is None:
        causes.insert(0, "nothing is known of other programs")
    return " and ".join(causes)
