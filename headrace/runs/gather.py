"""What each stage has to say, known where the last stage is."""

from collections.abc import Mapping
from typing import Any

from headrace.pipeline.mesh import Mesh

__all__ = ["gathered"]


def gathered(mesh: Mesh | None, key: str, own: Mapping[int, Any]) -> dict[int, Any]:
    """stage -> a fact (anything that JSON holds): all of them in the process of the last stage.

    Args:
        mesh: how the processes know of each other; None where all stages are in this one.
        key: names the facts; used once in a run.
        own: the facts of this process's stages.

    Returns:
        Those of all stages, or only its own in a process without the last stage.
    """
    if mesh is None:
        return dict(own)
    mesh.publish(f"{key}/{mesh.stage}", own)
    if mesh.stage < mesh.num_stages - 1:
        return dict(own)
    told = [mesh.read(f"{key}/{stage}") for stage in range(mesh.num_stages)]
    return {int(stage): fact for facts in told for stage, fact in facts.items()}
