"""How a Python function is stored by name, and which names find a function."""

import functools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._saved import function_names
from jaxpyop._saved.code import code_checksum
from jaxpyop._saved.function_names import find_functions
from tests.programs.saved_package import functions
from tests.shared.processes import run_python

X = jnp.arange(3.0)
HERE = "tests.programs.saved_package.functions"


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(function_names, "_registered", {})


def saved(func, **options):
    op = lambda x: jaxpyop.numpy_function(func, [x], jax.ShapeDtypeStruct((3,), jnp.float32))
    return jaxpyop.export(op, **options)(X)


PLACES = {
    "a function of a module": (functions.double, "double"),
    "a decorated function": (functions.halve, "halve"),
    "the function inside an op": (functions.INSIDE_AN_OP, "thrice"),
    "under another name": (functions.alias, "double"),
}


@pytest.mark.parametrize(("func", "name"), PLACES.values(), ids=PLACES)
def test_the_place_of_a_function_is_its_name_where_it_is_allowed(func, name):
    program = saved(func)
    assert program.functions == (f"{HERE}:{name}",)
    for allow in ([HERE], ("other", "tests.programs")):
        np.testing.assert_array_equal(jaxpyop.load(program.to_bytes(), allow=allow)(X), func(X))
    for allow in ((), ["test"], ["tests.programs.saved_pack"], [f"{HERE}.{name}"]):
        with pytest.raises(ValueError, match=rf"functions are missing: '{HERE}:{name}'"):
            jaxpyop.load(program.to_bytes(), allow=allow)


class Doubling:
    def __call__(self, x):
        return 2 * x

    def method(self, x):
        return 2 * x


class Tripling(Doubling):
    def __call__(self, x):
        return 3 * x


def of_main(x):
    return x


of_main.__module__ = "__main__"


PLACELESS = {
    "<lambda>": lambda x: x,
    "<locals>": (lambda: lambda x: x)(),
    "a Doubling": Doubling(),
    "a method": Doubling().method,
    "a ufunc": np.sin,
    "Shapes.square": functions.Shapes.square,
    "__main__": of_main,
    "halve is inside a decorator": functions.INSIDE_A_DECORATOR,
}


@pytest.mark.parametrize(("why", "func"), PLACELESS.items(), ids=PLACELESS)
def test_a_function_without_a_place_needs_a_name(why, func):
    with pytest.raises(ValueError, match=rf"numpy_function .*: .* cannot find func again: .*{why}.*register"):
        saved(func)
    expected = func(np.asarray(X))
    program = saved(func, functions={"mine": func})
    assert program.functions == ("mine",)
    with pytest.raises(ValueError, match="functions are missing: 'mine'"):
        jaxpyop.load(program.to_bytes(), allow=["tests"])
    np.testing.assert_array_equal(jaxpyop.load(program.to_bytes(), functions={"mine": func})(X), expected)
    jaxpyop.register("mine", func)
    assert saved(func).functions == ("mine",)
    np.testing.assert_array_equal(jaxpyop.load(program.to_bytes())(X), expected)


def test_a_given_function_goes_before_the_place_and_changed_code_is_a_warning():
    with pytest.warns(UserWarning, match=f"the code of '{HERE}:double' is not the code that was exported"):
        loaded = jaxpyop.load(saved(functions.double).to_bytes(), functions={f"{HERE}:double": lambda x: 3 * x})
    np.testing.assert_array_equal(loaded(X), 3 * X)


def test_a_name_is_the_name_of_one_function():
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    both = lambda f, g: lambda x: [jaxpyop.numpy_function(f, [x], shape), jaxpyop.numpy_function(g, [x], shape)]
    triple, method = lambda x: 3 * x, Doubling().method
    with pytest.raises(ValueError, match=f"cannot find func again: '{HERE}:double' is the name of <function "):
        jaxpyop.export(both(triple, functions.double), functions={f"{HERE}:double": triple})(X)
    twice = both(functions.thrice, functions.INSIDE_AN_OP)
    program = jaxpyop.export(twice)(X).to_bytes()
    np.testing.assert_array_equal(jaxpyop.load(program, allow=[HERE])(X), twice(X))
    with pytest.raises(ValueError, match="one inside it have this name; use allow="):
        jaxpyop.load(program, functions={f"{HERE}:thrice": triple})
    # Each access to a method makes another object.
    methods = both(method, method.__self__.method)
    program = jaxpyop.export(methods, functions={"method": method})(X)
    assert program.functions == ("method",)
    for _ in range(2):
        jaxpyop.register("method", method.__self__.method)
    np.testing.assert_array_equal(jaxpyop.load(program.to_bytes())(X), methods(X))


def test_register_wants_a_name_and_one_function_for_it():
    for name in ("", 3):
        with pytest.raises(TypeError, match="expected a string"):
            jaxpyop.register(name, abs)
    with pytest.raises(TypeError, match="expected a function"):
        jaxpyop.register("name", 3)
    for _ in range(2):
        jaxpyop.register("name", abs)
    jaxpyop.register("method", Doubling().method)
    for name, said in (("name", "the name of <built-in function abs>"), ("method", "")):
        with pytest.raises(ValueError, match=f"{said} already; choose another"):
            jaxpyop.register(name, Doubling().method)


HOSTILE = {
    "another module's function": ("tests.programs.saved_package.functions:run", 0),
    "an alias": (f"{HERE}:alias", 0),
    "a module": ("tests.programs.saved_package:functions", 0),
    "through a module": ("tests.programs.saved_package:functions.double", 0),
    "a static method": (f"{HERE}:Shapes.square", 0),
    "a class": (f"{HERE}:Shapes", 0),
    "inside a decorator": (f"{HERE}:halve", 1),
    "a private function": (f"{HERE}:_private", 0),
    "a dunder": (f"{HERE}:double.__globals__", 0),
    "a builtin": (f"{HERE}:__builtins__.eval", 0),
    "too many decorators": (f"{HERE}:thrice", 2),
    "a name that is no text": (3, 0),
    "an allowed name in front": ("testsevil:double", 0),
    "what is not allowed": ("os:system", 0),
    "a module of the standard library": ("subprocess:run", 0),
}


@pytest.mark.parametrize(("name", "unwrapped"), HOSTILE.values(), ids=HOSTILE)
def test_a_name_in_a_file_finds_no_other_function(name, unwrapped, monkeypatch):
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    before = set(sys.modules)
    entry = {"name": name, "unwrapped": unwrapped, "code": None, "python": ""}
    with pytest.raises(ValueError, match="functions are missing"):
        find_functions([entry], {}, ["tests"])
    assert not [module for module in set(sys.modules) - before if not module.startswith("tests")]


@pytest.mark.parametrize(("module", "said"), [("exits", "it is not there"), ("program.__main__", "not of the form")])
def test_loading_runs_no_program_and_does_not_end_the_process(module, said, tmp_path, monkeypatch):
    (tmp_path / "program").mkdir()
    for file in ("program/__init__.py", "program/__main__.py", "exits.py"):
        (tmp_path / file).write_text("" if file.endswith("__init__.py") else "raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    entry = {"name": f"{module}:f", "unwrapped": 0, "code": None, "python": ""}
    with pytest.raises(ValueError, match=f"functions are missing: '{module}:f' .*{said}"):
        find_functions([entry], {}, ["exits", "program", "program.__main__"])


def test_what_is_private_is_allowed_by_its_name():
    program = saved(functions._private).to_bytes()
    np.testing.assert_array_equal(jaxpyop.load(program, allow=[f"{HERE}:_private"])(X), X)
    for allow in ([HERE], ["tests"]):
        with pytest.raises(ValueError, match=f"allow= has no {HERE}:_private"):
            jaxpyop.load(program, allow=allow)


def test_wrong_arguments():
    for allow in ("tests", [3], None):
        with pytest.raises(TypeError):
            jaxpyop.load(b"", allow=allow)
    for call in (jaxpyop.load, jaxpyop.export):
        for given in ([abs], {"a": 3}, {3: abs}):
            with pytest.raises(TypeError, match="expected a dict from names to functions"):
                call(abs, functions=given)


# ------------------------------------------------------------------- changed code

TEXT = "def f(x, y=1):\n    'Text.'\n    if x in {'a', 'b', 'c'}:\n        return [lambda: x + y]\n    return 1.5"


def compiled(text):
    exec(compile(text, "<test>", "exec"), namespace := {})
    return namespace["f"]


CHANGES = {"1.5": "2.5", "x + y": "x - y", "y=1": "y=2", "'c'": "'d'", "return 1.5": "return x", "lambda": "lambda z"}


@pytest.mark.parametrize(("old", "new"), CHANGES.items())
@pytest.mark.parametrize("wrap", [lambda function: function, functions.logged], ids=["alone", "decorated"])
def test_a_change_of_the_code_changes_its_checksum(old, new, wrap):
    first, moved, other = (code_checksum(wrap(compiled(t))) for t in (TEXT, f"\n\n{TEXT}", TEXT.replace(old, new)))
    assert first == moved != other


def scaled(x, k):
    return k * x


def closure(value):
    return lambda x: value if value is None else scaled(x, value)


def recursive(value):
    def function(x):
        return value if x is None else function(None)

    return function


HOLDING = {
    "a closure": (closure, 2, 3),
    "a closure that holds itself": (recursive, 2, 3),
    "a tuple as default": (lambda value: lambda x, k=value: k * x, (2, None), (3, None)),
    "a partial": (lambda k: functools.partial(scaled, k=k), 2, 3),
    "the function in a partial": (lambda f: functools.partial(f, 2), scaled, recursive),
    "an object": (lambda c: c(), Doubling, Tripling),
    "a method": (lambda c: c().__call__, Doubling, Tripling),
    "a compiled function": (lambda k: jax.jit(closure(k)), 2, 3),
    "a list as default": (lambda value: lambda x, k=value: k * x, [2, 3], [2, 4]),
    "an array as default": (lambda value: lambda x, k=value: k * x, np.zeros(2000), np.arange(2000)),
    "an array in a closure": (closure, np.zeros(2000), np.arange(2000) // 1999),
    "a number of NumPy's": (closure, np.float32(2), np.float32(3)),
    "a keyword-only parameter": (lambda text: eval(text), "lambda x, y: x", "lambda x, *, y: x"),
    "a derivative": (lambda k: jax.grad(scaled, argnums=k), 0, 1),
    "a transformation": (lambda wrap: wrap(scaled), jax.grad, jax.jit),
    "a function of C": (closure, math.sin, math.cos),
    "a function of NumPy's": (closure, np.sin, np.cos),
    "a type of NumPy's": (closure, np.float16, np.float32),
    "a vectorized function": (lambda kinds: np.vectorize(scaled, otypes=kinds), [int], [float]),
}


@pytest.mark.parametrize(("make", "one", "other"), HOLDING.values(), ids=HOLDING)
def test_the_checksum_knows_what_a_function_holds(make, one, other):
    first, same, changed = map(code_checksum, (make(one), make(one), make(other)))
    assert None is not changed != first == same


def test_the_checksum_of_a_decorated_function_has_no_code_of_libraries():
    for decorate in (jax.jit, jaxpyop.py_function(Tout=jnp.float32)):
        assert code_checksum(decorate(scaled)) == code_checksum(scaled)


@pytest.mark.slow
def test_the_checksum_is_the_same_in_another_process():
    code = f"from tests.inside.test_function_names import *; print(code_checksum(compiled({TEXT!r})))"
    # Sets have another order there.
    found = run_python(code, PYTHONHASHSEED="1", PYTHONPATH=":".join(sys.path)).stdout.strip()
    assert found == code_checksum(compiled(TEXT))


def test_code_of_another_python_is_not_compared(monkeypatch):
    monkeypatch.setattr(function_names, "python_version", lambda: "cpython 3.99")
    program = saved(functions.double)
    monkeypatch.undo()
    jaxpyop.load(program.to_bytes(), functions={f"{HERE}:double": lambda x: 3 * x})
