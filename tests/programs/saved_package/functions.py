"""Functions that saved programs find by their place."""

import functools
from subprocess import run  # noqa: F401  # A file must not reach it by this name.

import jax

import jaxpyop


def double(x):
    return 2 * x


class Shapes:
    @staticmethod
    def square(x):
        return x * x


def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@logged
def halve(x):
    return x / 2


@jaxpyop.numpy_function(Tout=jax.ShapeDtypeStruct((3,), "float32"))
def thrice(x):
    return 3 * x


def _private(x):
    return x


INSIDE_A_DECORATOR, INSIDE_AN_OP = halve.__wrapped__, thrice.__wrapped__
alias = double
