"""Arguments and results that are NamedTuples, dataclasses and what was registered with `jax.export`."""

import dataclasses
import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.programs import saved_classes, saved_programs
from tests.shared.checks import trees_close

ARGUMENTS = jax.tree.map(jnp.asarray, saved_classes.ARGUMENTS)
SETTINGS, PAIR = ARGUMENTS["classes"][1], ARGUMENTS["classes"][0]


def data_of(fun, *args, **options):
    return jaxpyop.export(fun, **options)(*args).to_bytes()


def same(x):
    """A program without an op of its own, so that only the structures count."""
    return x


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in saved_classes.STEPS])
def test_a_step_goes_on_from_its_own_results(name):
    fun, args = saved_classes.STEPS[name], ARGUMENTS[name]
    loaded = jaxpyop.load(data_of(fun, *args), allow=saved_programs.ALLOW)
    for _ in range(3):
        found, expected = loaded(*args), jax.jit(fun)(*args)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        trees_close(found, expected)
        args = args if name == "classes" else (*found[:2], args[2])


def test_a_function_in_a_field_is_found_by_its_name():
    program = jaxpyop.export(same)(SETTINGS)
    assert program.functions == ("tests.programs.saved_classes:squared",)
    again = jaxpyop.load(program.to_bytes(), allow=["tests"])
    assert again(SETTINGS).power is saved_classes.squared
    other = dataclasses.replace(SETTINGS, power=jnp.sin)
    with pytest.raises(TypeError, match="exported for arguments of the structure"):
        again(other)


def test_a_class_with_a_given_name():
    class Local(NamedTuple):
        x: Any

    data = data_of(same, Local(jnp.ones(2)), functions={"local": Local})
    again = jaxpyop.load(data, functions={"local": Local})
    assert type(again(Local(jnp.ones(2)))) is Local
    with pytest.raises(ValueError, match=r"functions are missing: 'local' .nobody registered it"):
        jaxpyop.load(data, allow=["tests"])


# ------------------------------------------------------------ what is refused


class Unregistered:
    def __init__(self, x):
        self.x = x


jax.tree_util.register_pytree_node(Unregistered, lambda u: ((u.x,), None), lambda _, xs: Unregistered(*xs))


class Local(NamedTuple):
    x: Any


Local.__qualname__ = "test.<locals>.Local"


class Slotted:
    __slots__ = ("hidden",)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class MoreThanFields(Slotted):
    x: Any

    def tree_flatten(self):
        return (self.x,), (vars(self).get("more", 0), getattr(self, "hidden", 0))

    @classmethod
    def tree_unflatten(cls, more, xs):
        return with_more(cls(*xs), *more)


def with_more(made, more=0, hidden=0):
    if more:
        made.more = more
    if hidden:
        made.hidden = hidden
    return made


REFUSED = {
    "a class that nobody wrote down": (Unregistered(jnp.ones(1)), "Unregistered, is not a number"),
    "a local class": (Local(jnp.ones(1)), r"cannot find the class .*Local again: .*jaxpyop.register"),
    "a class of __main__": (
        type("M", (Local,), {"__module__": "__main__"})(jnp.ones(1)),
        "M again: it is defined in __main__",
    ),
    "attributes beside the fields": (with_more(MoreThanFields(jnp.ones(1)), 3), "has attributes that are not fields"),
    "a node that is not its fields": (
        with_more(MoreThanFields(jnp.ones(1)), 0, 3),
        "cannot be made of its fields again",
    ),
    "a function without a name": (
        dataclasses.replace(SETTINGS, power=lambda x: x),
        "cannot find a function again: it is <lambda>",
    ),
}


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_saved_is_named(value, said):
    with pytest.raises(
        ValueError, match=rf"jaxpyop\.export: an argument is a structure that cannot be saved: .*{said}"
    ):
        jaxpyop.export(same)(value)


# ------------------------------------------------- classes that have changed


@pytest.fixture
def module(monkeypatch):
    """A module with a class, which another version of the module may have changed."""
    made = types.ModuleType("changing")
    monkeypatch.setitem(sys.modules, "changing", made)

    def define(order, fields="ab", name="Changing"):
        kind = dataclasses.make_dataclass("Changing", list(fields), namespace={"__module__": "changing"})
        kind.__module__ = "changing"
        jax.tree_util.register_pytree_node(
            kind,
            lambda x: ([getattr(x, key) for key in order], None),
            lambda _, xs: kind(**dict(zip(order, xs, strict=True))),
        )
        setattr(made, name, kind)
        return kind

    return define


def test_another_version_of_a_class(module):
    old = module("ab")
    data = data_of(same, old(jnp.float32(1), jnp.float32(2)))
    new = module("ab")
    again = jaxpyop.load(data, allow=["changing"])(new(jnp.float32(1), jnp.float32(2)))
    assert type(again) is new
    assert (again.a, again.b) == (1, 2)
    np.testing.assert_array_equal(jax.tree.leaves(again), [1, 2])


CHANGED = {
    "another order": (lambda define: define("ba"), r"were saved in another order: \[1, 0\]"),
    "more fields": (lambda define: define("abc", "abc"), "its fields were a, b, and are a, b, c here"),
    "another name": (
        lambda define: define("ab", name="Renamed") and delattr(sys.modules["changing"], "Changing"),
        "it is not there",
    ),
    "a function": (lambda define: setattr(sys.modules["changing"], "Changing", same), "no class of changing is there"),
    "a class of another module": (
        lambda define: setattr(sys.modules["changing"], "Changing", Local),
        "no class of changing is there",
    ),
}


@pytest.mark.parametrize(("change", "said"), CHANGED.values(), ids=CHANGED)
def test_a_changed_class_is_refused(module, change, said):
    data = data_of(same, module("ab")(jnp.float32(1), jnp.float32(2)))
    change(module)
    with pytest.raises(ValueError, match=rf"cannot be loaded: .*{said}"):
        jaxpyop.load(data, allow=["changing"])


def test_a_class_is_not_imported_unless_it_is_allowed():
    with pytest.raises(ValueError, match=r"'tests.programs.saved_classes:Pair' .allow= has no tests.programs.saved"):
        jaxpyop.load(data_of(same, PAIR))


def test_a_module_whose_name_is_no_name(monkeypatch, tmp_path):
    (tmp_path / "01_x.py").write_text("def f(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "01_x", raising=False)
    function = __import__("01_x").f
    program = lambda x: jaxpyop.numpy_function(function, [x], jnp.float32)
    with pytest.raises(ValueError, match=r"'f': another process cannot find func again: '01_x:f' is not .*; give it"):
        jaxpyop.export(program)(1.0)
