"""Damaged and hostile files: an error each, which names the file, and never a call of what was not named."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import warnings
import zlib

import jax.numpy as jnp
import pytest

import jaxpyop
from jaxpyop._op import Op
from jaxpyop._saved import call_as_data
from jaxpyop._saved.file_format import packed, unpacked
from tests.programs.saved_programs import PROGRAMS, arguments, branches

HERE = "tests.programs.saved_programs"
NAMES = ("value and gradient", "fwd and bwd in vmap", "structures", "padded", "scan", "on_error", "keys", "constants")


@pytest.fixture(scope="module")
def files():
    """A few programs, each as bytes."""
    found = {}
    for name in NAMES:
        args, kwargs = arguments(PROGRAMS[name])
        found[name] = jaxpyop.export(PROGRAMS[name].fun)(*args, **kwargs).to_bytes()
    return found


@pytest.fixture(autouse=True)
def canaries(monkeypatch):
    """Functions that must never be called."""

    def called(*args, **kwargs):
        raise BaseException(f"called with {args}")

    for module, name in ((os, "system"), (os, "popen"), (subprocess, "Popen"), (pickle, "loads"), (pickle, "load")):
        monkeypatch.setattr(module, name, called)


def repacked(plan, blobs):
    plan = {key: value for key, value in plan.items() if key != "blobs"}
    return packed(plan, blobs)


# ------------------------------------------------------------------ single damages


def cut_off(data):
    return data[:-1]


def checked(content, checksum=None):
    """A file with this content and a right checksum."""
    return struct.pack("<8sI32s", b"jaxpyop\0", 1, checksum or hashlib.sha256(content).digest()) + content


def with_plan(text, blobs=b"", length=None):
    header = zlib.compress(text)
    return checked(struct.pack("<Q", len(header) if length is None else length) + header + blobs)


def with_sizes(change):
    def damage(data):
        plan, blobs = unpacked(data)
        change(plan["blobs"])
        return with_plan(json.dumps(plan).encode(), b"".join(blobs))

    return damage


def changed(**entries):
    def change(data):
        plan, blobs = unpacked(data)
        return repacked({**plan, **entries}, blobs)

    return change


def with_step(**entries):
    def change(data):
        plan, blobs = unpacked(data)
        for step in plan["program"]["steps"]:
            step.update({key: value for key, value in entries.items() if key in step})
        return repacked(plan, blobs)

    return change


def with_fewer_inputs(data):
    plan, blobs = unpacked(data)
    for step in plan["program"]["steps"]:
        if "call" in step:
            step["reads"] = []
    return repacked(plan, blobs)


def without_results(data):
    plan, blobs = unpacked(data)
    for call in plan["calls"]:
        call["op"]["results"] = None
    return repacked(plan, blobs)


def with_loop(data):
    return with_step(loop="exec")(data)


def with_garbage(data):
    plan, blobs = unpacked(data)
    return repacked(plan, [bytes(len(blob)) for blob in blobs])


DAMAGES = {
    "nothing": (lambda data: b"", "is not a program"),
    "a pickle": (lambda data: pickle.dumps({}), "is not a program"),
    "another magic": (lambda data: b"JAXPYOP\0" + data[8:], "is not a program"),
    "the start alone": (lambda data: data[:44], "is not a program"),
    "cut off": (cut_off, "damaged: its checksum"),
    "something behind": (lambda data: data + b"x", "damaged: its checksum"),
    "something behind, and checked": (lambda data: checked(data[44:] + b"x"), "its parts have other sizes"),
    "another checksum": (lambda data: checked(data[44:], bytes(32)), "damaged: its checksum"),
    "a later format": (lambda data: data[:8] + b"\x02" + data[9:], r"the format 2, and .* reads the format 1"),
    "a huge header": (lambda data: with_plan(b"{}", length=2**64 - 1), "its plan is not one"),
    "a header that is cut off": (lambda data: with_plan(b"{}" * 50, length=5), "its plan is not one"),
    "no compressed header": (lambda data: checked(struct.pack("<Q", 2) + b"{}"), "its plan is not one"),
    "no JSON": (lambda data: with_plan(b"x"), "its plan is not one"),
    "a deep header": (lambda data: with_plan(b"[" * 100_000), "its plan is not one that jaxpyop.export wrote"),
    "a header of gigabytes": (lambda data: with_plan(b" " * 2**24 + b"{}"), "its plan is not one"),
    "a size too much": (with_sizes(lambda sizes: sizes.append(1)), "its parts have other sizes"),
    "a size too few": (with_sizes(lambda sizes: sizes.pop()), "its parts have other sizes"),
    "a larger size": (with_sizes(lambda sizes: sizes.append(sizes.pop() + 1)), "its parts have other sizes"),
    "a negative size": (with_sizes(lambda sizes: sizes.extend([-1, 1])), "its parts have other sizes"),
    "no size": (with_sizes(lambda sizes: sizes.append("1")), "its plan is not one that jaxpyop.export wrote"),
    "zeros as segments": (with_garbage, "its plan is not one that jaxpyop.export wrote"),
    "no functions": (changed(functions=[]), "there is no item 0 among 0"),
    "no calls": (changed(calls=[]), "there is no item 1 among 0"),
    "an unknown function": (changed(functions=[{"name": "nobody"}]), "functions are missing: 'nobody'"),
    "a list as plan": (changed(program=[]), "its plan is not one that jaxpyop.export wrote"),
    "reads of later values": (with_step(reads=[99]), "there is no item 99"),
    "reads from the end": (with_step(reads=[-1]), "there is no item -1"),
    "reads by text": (with_step(reads=["0"]), "there is no item '0'"),
    "another dtype": (with_step(makes=[[[3], "float64"]]), "float32 where the program was exported for float64"),
    "another shape": (
        with_step(makes=[[[4], "float32"]]),
        r"shape \(3,\) where the program was exported for \(4,\)",
    ),
    "a call without its inputs": (with_fewer_inputs, "'plus_pi' takes 2 arrays, and its step reads 0"),
    "a call without its results": (without_results, r"'plus_pi' declares \[\], and its step makes \['float32'\]"),
    "a missing segment": (with_step(segment=7), "there is no item 7"),
    "a missing call": (with_step(call=7), "there is no item 7"),
    "an unknown step": (with_loop, "its plan is not one that jaxpyop.export wrote"),
    "another way of loops": (changed(loops="exec"), "loops is 'exec'"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file(damage, said, files, tmp_path):
    of_constants = (with_fewer_inputs, without_results)
    data = damage(files["scan" if damage is with_loop else "constants" if damage in of_constants else NAMES[0]])
    (tmp_path / "broken").write_bytes(data)
    with pytest.raises(ValueError, match=rf"jaxpyop\.load: '.*broken' cannot be loaded: (.|\n)*{said}"):
        jaxpyop.load(tmp_path / "broken", allow=[HERE])
    with pytest.raises(ValueError, match=r"jaxpyop\.load: the program cannot be loaded"):
        jaxpyop.load(data, allow=[HERE])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        jaxpyop.load(tmp_path / "nothing")


# ------------------------------------------------------------------- many mutations

VALUES = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        3,
        7,
        2**31,
        2**63,
        10**30,
        0.5,
        float("nan"),
        "",
        "0",
        "float32",
        "float64",
        "key<fry>",
    ),
    *("numerical", "os:system", "subprocess:run", "forward", "linear", "transposed", "linear_part", "__class__"),
    *([], [0], [-1], {}, {"leaf": 0}, {"tuple": []}, {"dict": [[0, 0]]}, {"Padded": [1]}, [[1], "int32"]),
)


def places(data, path=()):
    """All places in nested data, as paths."""
    if path:
        yield path
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield from places(data[key], (*path, key))


def mutated_plan(data, rng):
    """A file with another plan, whose checksums are right."""
    plan, blobs = unpacked(data)
    plan = copy.deepcopy(plan)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        *path, last = rng.choice([path for path in places(plan) if path[0] != "blobs"])
        inside = plan
        for key in path:
            inside = inside[key]
        kind = rng.randrange(6)
        if kind == 0:
            del inside[last]
        elif kind == 1 and isinstance(inside, list):
            inside.insert(last, inside[rng.randrange(len(inside))])
        elif kind == 2 and isinstance(inside, list):
            rng.shuffle(inside)
        elif isinstance(inside[last], int) and kind == 3:
            inside[last] += rng.choice([-1, 1])
        else:
            inside[last] = rng.choice(VALUES)
    return repacked(plan, blobs)


def mutated_bytes(data, rng):
    """A file with other bytes, whose checksums are not right."""
    found = bytearray(data)
    kind = rng.randrange(3)
    if kind == 0:
        return bytes(found[: rng.randrange(len(found))])
    for _ in range(rng.choice([1, 1, 5])):
        at = rng.randrange(len(found))
        if kind == 1:
            found[at] ^= 1 << rng.randrange(8)
        else:
            found[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(found)


counts = pytest.mark.parametrize("count", [20, pytest.param(300, marks=pytest.mark.slow)])


@counts
def test_mutations_of_the_bytes(files, count):
    for number in range(count):
        rng = random.Random(number)
        data = mutated_bytes(files[NAMES[number % len(NAMES)]], rng)
        with pytest.raises(ValueError, match=r"jaxpyop\.load: the program cannot be loaded"):
            jaxpyop.load(data, allow=[HERE])


@counts
def test_mutations_of_the_plan(files, count):
    errors = []
    for number in range(count):
        data = mutated_plan(files[NAMES[number % len(NAMES)]], random.Random(number))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                jaxpyop.load(data, allow=[HERE])
        except ValueError as error:
            errors.append(str(error))
    # The others are programs, too: another name of the op, or the same values in another order.
    assert len(errors) > count / 2
    assert all(error.startswith("jaxpyop.load: the program cannot be loaded") for error in errors)


def test_without_flatbuffers(files, monkeypatch):
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization")
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ImportError, match="flatbuffers"):
        jaxpyop.load(files["padded"], allow=[HERE])
    with pytest.raises(ImportError, match="flatbuffers"):
        jaxpyop.export(jnp.sin)(1.0)


def test_every_option_of_an_op_is_saved_or_has_a_reason_not_to_be():
    # A saved op is called, so what belongs to traced mode has no meaning.
    reasons = {"title": "of api and name", "executor": "refused", "mode": "", "reason_to_call": "", "max_steps": ""}
    saved = {"func", "output_shapes", "spec", "fills", "failures", "rules", *call_as_data._OPTIONS}
    assert {field.name for field in dataclasses.fields(Op)} == saved | set(reasons)


def test_the_size_is_that_of_the_segments():
    def large(x):
        for _ in range(100):
            x = jnp.sin(x) @ jnp.cos(x).T
        y = jaxpyop.py_function(branches, [x], jnp.float32)
        return jnp.linalg.norm(y @ x) + jnp.sum(y)

    data = jaxpyop.export(large)(jnp.ones((3, 3))).to_bytes()
    _, blobs = unpacked(data)
    assert len(data) < 1.3 * sum(map(len, blobs))
