"""What random programs call. The converter rewrites a function of this module once for all of them."""

from __future__ import annotations


def positive(a):
    if a > 0:  # noqa: SIM103 (the branch is what programs need)
        return True
    return False


def clip(a, b=2.0):
    if a > b:
        return b
    if a < -b:
        return -b
    return a


def halve(a):
    turns = 0
    while abs(a) > 0.5 and turns < 5:
        a = a / 2
        turns += 1
    return a
