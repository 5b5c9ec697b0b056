"""Doubts: whether predictions for a cluster come from figures that were measured under load."""

from millrace.planner.cluster import Cluster, Device, MeasurementQuality


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
    return (
        f"the profile was taken while {_causes(quality)}: it may be {100 * quality.error_max:.0f} "
        f"% too slow, and more where ranks wait for one another; take it anew on a quiet machine "
        f"(`millrace profile`)"
    )


def _causes(quality: MeasurementQuality) -> str:
    """Clause that says what speaks against a measurement: others, the host, or its own rounds."""
    causes = []
    if quality.others:
        causes.append(f"other programs took {100 * quality.others:.0f} % of the cores")
    if quality.steal:
        causes.append(f"the host took {100 * quality.steal:.0f} %")
    if quality.spread and not causes:
        causes.append("nothing is known of other programs")
    if quality.spread:
        causes.append(f"rounds differed by {100 * quality.spread:.0f} %")
    return " and ".join(causes)
