"""Other frameworks, if they are installed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.bench.cases.case import Group, Program, compare, negative, numpy_negative, optional


def other_frameworks() -> Group:
    ours, x = jax.jit(numpy_negative()), jnp.ones(1)
    programs: dict[str, Program] = {"numpy_function": lambda: ours(x)}
    if tf := optional("tensorflow"):
        a = tf.ones(1)
        theirs = tf.function(lambda a: tf.numpy_function(negative, [a], tf.float32))
        programs["tf.numpy_function"] = lambda: np.asarray(theirs(a))
    if torch := optional("torch"):
        programs |= _torch_programs(torch)
    return compare("other frameworks, float32[1]", programs)


def _torch_programs(torch: Any) -> dict[str, Program]:
    class Negative(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.from_numpy(negative(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return -grads[0]

    def of_tensors(x: Any) -> Any:
        return torch.from_numpy(negative(x.numpy()))

    declare = torch.library.custom_op("jaxpyop::negative", mutates_args=(), schema="(Tensor x) -> Tensor")
    custom, t = declare(of_tensors), torch.ones(1)
    return {
        "torch Function, eager": lambda: Negative.apply(t).numpy(),
        "torch custom_op, eager": lambda: custom(t).numpy(),
    }
