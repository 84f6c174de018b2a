"""Damaged and hostile files: an error each, which names the file, and never a call of what was not named."""

import dataclasses
import functools
import hashlib
import operator
import os
import pickle
import random
import struct
import subprocess
import sys
import warnings
import zlib
from unittest import mock

import jax.numpy as jnp
import pytest

import jaxpyop
from jaxpyop._op import Op
from jaxpyop._saved import call_as_data
from jaxpyop._saved.file_format import packed, unpacked
from tests.programs.saved_programs import PROGRAMS, arguments

NAMES = ("value and gradient", "fwd and bwd in vmap", "structures", "padded", "loops", "on_error=", "keys", "constants")


@pytest.fixture(scope="module")
def files():
    """A few programs, each as bytes."""
    export = lambda program: jaxpyop.export(program.fun)(*arguments(program)).to_bytes()
    return {name: export(PROGRAMS[name]) for name in NAMES}


@pytest.fixture(autouse=True)
def canaries(monkeypatch):
    """Functions that must never be called."""
    called = mock.Mock(side_effect=BaseException("called"))
    for module, name in ((os, "system"), (os, "popen"), (subprocess, "Popen"), (pickle, "loads"), (pickle, "load")):
        monkeypatch.setattr(module, name, called)


# ------------------------------------------------------------------ single damages


def checked(content, checksum=None):
    """A file with this content and a right checksum."""
    return struct.pack("<8sI32s", b"jaxpyop\0", 1, checksum or hashlib.sha256(content).digest()) + content


def with_plan(text):
    header = zlib.compress(text)
    return checked(struct.pack("<Q", len(header)) + header)


def repacked(plan, blobs):
    return packed({key: value for key, value in plan.items() if key != "blobs"}, blobs)


def changed(**entries):
    return lambda data: repacked({**(found := unpacked(data))[0], **entries}, found[1])


def with_step(**entries):
    def damage(data):
        plan, blobs = unpacked(data)
        for step in plan["program"]["steps"]:
            step.update({key: value for key, value in entries.items() if key in step})
        return repacked(plan, blobs)

    return damage


def with_key(data):
    plan, blobs = unpacked(data)
    plan["program"]["inputs"][0][1] = "key<nobody>"
    return repacked(plan, blobs)


with_zeros = lambda data: repacked((found := unpacked(data))[0], [bytes(len(blob)) for blob in found[1]])
NO_PLAN = "its plan is not one that this jaxpyop writes; export it again"
DAMAGES = {
    "nothing": (lambda data: b"", "is not a program"),
    "a pickle": (lambda data: pickle.dumps({}), "is not a program"),
    "the start alone": (lambda data: data[:44], "is not a program"),
    "another checksum": (lambda data: checked(data[44:], bytes(32)), "damaged: its checksum"),
    "a later format": (lambda data: data[:8] + b"\x02" + data[9:], r"the format 2, and .* reads the format 1"),
    "no JSON": (lambda data: with_plan(b"x"), NO_PLAN),
    "a deep header": (lambda data: with_plan(b"[" * 100_000), NO_PLAN),
    "zeros as segments": (with_zeros, NO_PLAN),
    "no functions": (changed(functions=[]), NO_PLAN),
    "an unknown function": (changed(functions=[{"name": "nobody"}]), "functions are missing: 'nobody'"),
    "another dtype": (with_step(makes=[[[3], "float64"]]), "float32 where the program was exported for float64"),
    "another shape": (with_step(makes=[[[4], "float32"]]), r"\(3,\) where the program was exported for \(4,\)"),
    "keys of nobody": (with_key, rf"{NO_PLAN} \(KeyError: 'key<nobody>'"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file(damage, said, files, tmp_path):
    data = damage(files[NAMES[0]])
    (tmp_path / "broken").write_bytes(data)
    with pytest.raises(ValueError, match=rf"jaxpyop\.load: '.*broken' cannot be loaded: (.|\n)*{said}"):
        jaxpyop.load(tmp_path / "broken", allow=["tests"])
    with pytest.raises(ValueError, match=r"jaxpyop\.load: the program cannot be loaded"):
        jaxpyop.load(data, allow=["tests"])


# ------------------------------------------------------------------- many mutations

VALUES = [None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 10**30, 0.5, float("nan"), "", "0", "float32", "float64"]
VALUES += ["key<fry>", "numerical", "os:system", "subprocess:run", "forward", "linear", "transposed", "linear_part"]
VALUES += [[], [0], [-1], {}, {"leaf": 0}, {"tuple": []}, {"dict": [[0, 0]]}, {"Padded": [1]}, [[1], "int32"]]


def places(data, path=()):
    """All places in nested data, as paths."""
    if path:
        yield path
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield from places(data[key], (*path, key))


def mutated_plan(data, rng):
    """A file with another value somewhere in its plan, whose checksum is right."""
    plan, blobs = unpacked(data)
    *path, last = rng.choice([path for path in places(plan) if path[0] != "blobs"])
    functools.reduce(operator.getitem, path, plan)[last] = rng.choice(VALUES)
    return repacked(plan, blobs)


@pytest.mark.parametrize("count", [16, pytest.param(300, marks=pytest.mark.slow)])
def test_mutations_of_the_plan(files, count):
    errors = []
    for number in range(count):
        data = mutated_plan(files[NAMES[number % len(NAMES)]], random.Random(number))
        with warnings.catch_warnings(action="ignore"):
            try:
                jaxpyop.load(data, allow=["tests"])
            except ValueError as error:
                errors.append(str(error))
    # The others are programs, too: another name of the op, or the same values in another order.
    assert errors
    assert all(error.startswith("jaxpyop.load: the program cannot be loaded") for error in errors)


def test_without_flatbuffers(files, monkeypatch):
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization")
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    for call in (lambda: jaxpyop.load(files["loops"], allow=["tests"]), lambda: jaxpyop.export(jnp.sin)(1.0)):
        with pytest.raises(ImportError, match="flatbuffers"):
            call()


def test_every_option_of_an_op_is_saved_or_has_no_meaning_in_a_file():
    # A saved op is called, so what belongs to traced mode has no meaning, and without an executor.
    without = {"title", "executor", "chunksize", "retries", "timeout", "mode", "reason_to_call", "max_steps"}
    saved = {"func", "output_shapes", "spec", "fills", "failures", "rules", *call_as_data._OPTIONS}
    assert {field.name for field in dataclasses.fields(Op)} == saved | without
