"""Other frameworks, where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop._cli.cases.case import Case, Group, negative, tensorflow


def other_frameworks() -> Group:
    x = jnp.ones(1)
    ours = jax.jit(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32))
    cases = [Case("numpy_function", lambda: ours(x))]
    if (tf := tensorflow()) is not None:
        a = tf.ones(1)
        theirs = tf.function(lambda a: tf.numpy_function(negative, [a], tf.float32))
        cases.append(Case("tf.numpy_function", lambda: np.asarray(theirs(a))))
    return Group("other frameworks, float32[1]", cases + _torch_cases())


def _torch_cases() -> list[Case]:
    if importlib.util.find_spec("torch") is None:
        return []
    torch: Any = importlib.import_module("torch")  # no part of any extra
    library = vars(torch)["library"]

    class Negative(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.from_numpy(negative(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return -grads[0]

    def of_tensors(x: Any) -> Any:
        return torch.from_numpy(negative(x.numpy()))

    declare = library.custom_op("jaxpyop::negative", mutates_args=(), schema="(Tensor x) -> Tensor")
    custom, t = declare(of_tensors), torch.ones(1)
    return [
        Case("torch Function, eager", lambda: Negative.apply(t).numpy()),
        Case("torch custom_op, eager", lambda: custom(t).numpy()),
    ]
