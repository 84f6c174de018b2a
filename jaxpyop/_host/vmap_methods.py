"""The values of `vmap_method`, each declared with all that it means. To add a method, add it here.

The batching rule of the primitive and the host read these facts. They never ask for a method by its name.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

VmapMethod: TypeAlias = Literal["sequential", "expand_dims", "broadcast_all", "parallel"]


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """What a `vmap_method` means.

    Attributes:
        name: the value that users pass.
        whole_batch: the function is called once, with the batch axes in front of its inputs.
        broadcasts: the inputs of a whole batch have its full size. Otherwise, an input without a batch axis has size 1
            there.
        at_once: several elements run at the same time.
    """

    name: VmapMethod
    whole_batch: bool = False
    broadcasts: bool = False
    at_once: bool = False


SEQUENTIAL = Method("sequential")
VMAP_METHODS: dict[VmapMethod, Method] = {
    method.name: method
    for method in (
        SEQUENTIAL,
        Method("expand_dims", whole_batch=True),
        Method("broadcast_all", whole_batch=True, broadcasts=True),
        Method("parallel", at_once=True),
    )
}
