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
from jaxpyop._op.values import IN_A_LOOP

NUMERICAL = "numerical"
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

    Attributes:
        vjp: maps inputs, outputs and cotangents to the inputs' cotangents, if there is no `fwd`. With `fwd` it is
            bwd, and maps residuals and cotangents to the inputs' cotangents.
        fwd: maps the inputs to outputs and residuals.
        jvp: maps inputs, outputs and tangents to the outputs' tangents.
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

    @property
    def vjp_name(self) -> str:
        return "vjp" if self.fwd is None else "bwd of vjp"

    def functions(self) -> Iterator[tuple[str, Any]]:
        """The functions among the rules, each with its name in errors."""
        names = (self.vjp_name, "fwd of vjp", "jvp", "transpose")
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
        TypeError: a rule is neither a function, nor a pair of functions, nor ``"numerical"``.
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
    if (isinstance(vjp_rule, str) or isinstance(jvp, str)) and options["stateful"]:
        raise ValueError(
            f"{api}: numerical derivatives call func again, which a stateful op does not allow; pass stateful=False "
            "(py_func and an op without a result are stateful)"
        )
    if jvp is None and isinstance(vjp_rule, str) and not padded:
        # Whoever asks for reverse mode by differences gets forward mode in the same way.
        jvp = NUMERICAL
    return Rules(vjp_rule, fwd, jvp, transpose)


def read_step(step: Any, rules: Rules, api: str) -> Any:
    """Return the steps of numerical derivatives: a pair (absolute, relative), or a list of them for the array inputs.

    Raises:
        ValueError: a step is no positive number and no such pair, or the op has no numerical rule.
    """
    if step is None:
        return None
    if NUMERICAL not in (rules.vjp, rules.jvp):
        raise ValueError(f"{api}: step= is for vjp='numerical' and jvp='numerical'; pass one of these, or remove step=")
    if isinstance(step, list):
        return [None if one is None else _read_one_step(one, step, api) for one in step]
    return _read_one_step(step, step, api)


def _read_one_step(one: Any, step: Any, api: str) -> tuple[float, float]:
    pair = one if isinstance(one, tuple) else (one, one)
    if len(pair) == 2 and all(isinstance(s, numbers.Real) and s is not True for s in pair):
        absolute, relative = map(float, pair)
        if 0 < absolute < math.inf and 0 <= relative < math.inf:
            return absolute, relative
    raise ValueError(
        f"{api}: step is {step!r}; expected a number above 0, such as 1e-3, a pair (absolute, relative) such as "
        "(1e-3, 0.0), whose first number is above 0, or a list with one of these, or None, for each array input"
    )


_EXPECTED = {
    "vjp": "f(inputs, outputs, cotangents), a pair of functions (fwd, bwd) with fwd(*inputs) and "
    "bwd(residuals, cotangents), or 'numerical'",
    "jvp": "f(inputs, outputs, tangents), or 'numerical'",
    "transpose": "f(cotangents)",
}


def _check_rule(rule: Any, name: str, api: str) -> None:
    if rule is None or (isinstance(rule, str) and rule == NUMERICAL and name != "transpose"):
        return
    is_pair = name == "vjp" and isinstance(rule, (tuple, list)) and len(rule) == 2
    for function in rule if is_pair else (rule,):
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
