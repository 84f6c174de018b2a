"""A package whose functions saved programs call, and one that others hand on."""

from subprocess import run  # noqa: F401  # A file must not reach it by this name.
