"""Functions that saved programs find by their place."""

import functools
from subprocess import run  # noqa: F401  # A file must not reach it by this name.


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


UNWRAPPED = halve.__wrapped__
alias = double
