"""Reads and checks the derivative rules that a user gives to an op: `vjp=`, `jvp=` and `transpose=`.

The names and meanings are taken from `jax.custom_vjp` and `jax.custom_jvp`.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
import types
from collections.abc import Callable, Iterator
from typing import Any

from jaxpyop._functions import without_partials
from jaxpyop._values import IN_A_LOOP


@dataclasses.dataclass(frozen=True, eq=False)
class numerical:  # noqa: N801  # reads as the rule that it is to users
    """A derivative rule that needs no formula: central differences of the function itself.

    A cotangent takes two calls of the function for each input element, a tangent usually two
    in all. Expect three to four correct digits in float32. ``jax.custom_vjp`` needs a formula.

    Args:
        step: how far an input element is moved. A pair ``(absolute, relative)`` stands for the larger
            of `absolute` and `relative` times the absolute value of the element, and a number for a
            pair of equal ones. A list has an entry for each argument of the function: a step for all
            of its arrays, steps in the structure of the argument, or ``None`` for the default, which
            is 0.005 in float32 and 6e-6 in float64.

    Raises:
        ValueError: a step is not above zero.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> @jaxpyop.numpy_function(Tout=jnp.float32(0), vjp=jaxpyop.numerical(step=1e-2))
        ... def volume(p):
        ...     return p["width"] ** 2 * p["height"]
        >>> slopes = jax.grad(volume)({"width": 3.0, "height": 2.0})
        >>> print(f"{slopes['width']:.2f} {slopes['height']:.2f}")
        12.00 9.00
    """

    step: Any = None

    def __post_init__(self) -> None:
        if not _are_steps(self.step):
            raise ValueError(
                f"numerical: step is {self.step!r}; expected a number above 0, such as 1e-3, a pair (absolute, "
                "relative) such as (1e-3, 0.0), whose first number is above 0, or a list with an entry for each "
                "argument: None, one of these, or these in the structure of the argument"
            )


def _are_steps(step: Any) -> bool:
    if isinstance(step, tuple) and len(step) == 2 and all(isinstance(s, numbers.Real) for s in step):
        return _are_steps(step[0]) and (step[1] == 0 or _are_steps(step[1]))
    if isinstance(step, (list, tuple, dict)):
        return all(map(_are_steps, step.values() if isinstance(step, dict) else step))
    return step is None or (isinstance(step, numbers.Real) and step is not True and 0 < float(step) < math.inf)


# Ops with these rules are called on the host, because the rules are.
RULES_ON_THE_HOST = ("vjp", "jvp")
# What each rule takes, by the name that errors give it.
RULE_ARGUMENTS = {
    "vjp": ("inputs", "outputs", "cotangents"),
    "jvp": ("inputs", "outputs", "tangents"),
    "bwd of vjp": ("residuals", "cotangents"),
    "transpose": ("cotangents",),
}


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Rules:
    """The rules that a user gave to an op. A rule that was not given is None.

    They take and return values in the structure of the function's arguments and of `Tout`.

    Attributes:
        vjp: maps inputs, outputs and cotangents to the inputs' cotangents, if there is no `fwd`. With `fwd` it is
            bwd, and maps residuals and cotangents to the inputs' cotangents. It may be a `numerical`.
        fwd: maps the arguments to outputs and residuals.
        jvp: maps inputs, outputs and tangents to the outputs' tangents. It may be a `numerical`.
        transpose: maps the cotangents to the inputs' cotangents.
    """

    vjp: Any = None
    fwd: Any = None
    jvp: Any = None
    transpose: Any = None

    @property
    def any_given(self) -> bool:
        """Whether there is a rule."""
        return any(rule is not None for rule in (self.vjp, self.jvp, self.transpose))

    def functions(self) -> Iterator[tuple[str, Any]]:
        """The functions among the rules, each with its name in errors."""
        names = ("vjp" if self.fwd is None else "bwd of vjp", "fwd of vjp", "jvp", "transpose")
        rules = (self.vjp, self.fwd, self.jvp, self.transpose)
        return ((name, rule) for name, rule in zip(names, rules) if callable(rule))


def mark_differentiable(func: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a decorated op that has derivatives. As a rule of another op, it is differentiated by them."""
    # functools.wraps copies the mark to functions that are no ops, and these have another id.
    vars(func)["jaxpyop_op"] = id(func)
    return func


def is_differentiable(rule: Any) -> bool:
    """Tell whether a rule is an op that has derivatives."""
    return getattr(rule, "jaxpyop_op", None) == id(rule)


def read_rules(options: dict[str, Any], spec: Any, api: str) -> Rules:
    """Take the rules out of an op's options.

    Raises:
        TypeError: a rule is neither a function, nor a pair of functions, nor `numerical`.
        ValueError: the rules contradict each other, or the op.
    """
    vjp, jvp, transpose = (options.pop(name, None) for name in ("vjp", "jvp", "transpose"))
    for name, rule in (("vjp", vjp), ("jvp", jvp), ("transpose", transpose)):
        _check_rule(rule, name, api)
    fwd, vjp_rule = vjp if isinstance(vjp, (tuple, list)) else (None, vjp)
    if transpose is not None and (vjp is not None or jvp is not None):
        raise ValueError(
            f"{api}: transpose= declares func linear, which gives all of its derivatives; remove vjp= and jvp="
        )
    padded = any(leaf.arrays > 1 for leaf in spec.returned.leaves)
    if (jvp is not None or transpose is not None) and padded:
        raise ValueError(f"{api}: jvp= and transpose= do not work with padded results; give vjp=")
    if (isinstance(vjp_rule, numerical) or isinstance(jvp, numerical)) and options["stateful"]:
        raise ValueError(
            f"{api}: numerical derivatives call func again, which a stateful op does not allow; pass stateful=False "
            "(py_func and an op without a result are stateful)"
        )
    if jvp is None and isinstance(vjp_rule, numerical) and not padded:
        # Whoever asks for reverse mode by differences gets forward mode in the same way.
        jvp = vjp_rule
    return Rules(vjp_rule, fwd, jvp, transpose)


_EXPECTED = {
    "vjp": "f(inputs, outputs, cotangents), a pair of functions (fwd, bwd), which are called as func is and as "
    "bwd(residuals, cotangents), or jaxpyop.numerical()",
    "jvp": "f(inputs, outputs, tangents), or jaxpyop.numerical()",
    "transpose": "f(cotangents)",
}


def _check_rule(rule: Any, name: str, api: str) -> None:
    if rule is None or (isinstance(rule, numerical) and name != "transpose"):
        return
    if rule is numerical:
        # The class can be called, and is not the rule.
        raise TypeError(f"{api}: {name} is the class jaxpyop.numerical; write {name}=jaxpyop.numerical()")
    is_pair = name == "vjp" and isinstance(rule, (tuple, list)) and len(rule) == 2
    functions: Any = rule if is_pair else (rule,)
    for function in functions:
        check_function(function, name, f"a function {_EXPECTED[name]}", api)


_UNUSUAL = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def check_function(func: Any, name: str, expected: str, api: str) -> None:
    """Raise an error unless it is callable, and neither an async function nor a generator function.

    What such a function returns is refused too, so that one which hides behind a decorator is found when it runs.
    """
    if not callable(func):
        raise TypeError(f"{api}: {name} must be {expected}, got {func!r}")
    inner = without_partials(func)
    for part in (inner, type(inner).__call__):
        function = part.__func__ if isinstance(part, types.MethodType) else part
        if isinstance(function, types.FunctionType) and function.__code__.co_flags & _UNUSUAL:
            raise TypeError(
                f"{api}: {name} is an async or generator function, which returns before its body has run; write a "
                f"plain function, which may call asyncio.run(...); {IN_A_LOOP}"
            )
