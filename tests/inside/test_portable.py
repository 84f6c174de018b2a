"""No name of JAX that may go missing ends a program: without any one of them, the package runs on public JAX alone."""

import ast
import json
import pathlib
import pkgutil
import re
import subprocess
import sys
import textwrap
import types

import pytest

import jaxpyop
from jaxpyop import _jaxcore
from jaxpyop._jaxcore import public
from tests.shared.processes import ROOT, clean_environment, run_python

pytestmark = pytest.mark.slow

SOURCE = pathlib.Path(jaxpyop.__file__).parent
PROMISED_NOTHING = re.compile(r"jax\.(_src|extend|interpreters|core|ffi)\b")
# Texts that are compared with names in JAX: of a logger, and of the module of a function.
COMPARED = {"jax._src.callback", "jax._src.random"}


def unpromised(path):
    """The names of JAX in a file that JAX promises nothing about: what it imports, reads or has as a text, in full."""
    modules, found = {}, []
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:  # imports before what is read, because they are at the top
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            modules |= {alias.asname or alias.name: home + alias.name for alias in node.names}
            found += [home + alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            found.append(f"{modules.get(first, first)}.{rest}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found.append(node.value)
    return sorted({name for name in found if PROMISED_NOTHING.match(name) and " " not in name})


def is_module(name):
    return isinstance(pkgutil.resolve_name(name), types.ModuleType)


_FOUND = unpromised(SOURCE / "_jaxcore" / "private.py")
# The names themselves, without the modules that have them, and without the attributes of what has a name.
PRIVATE = [n for n in _FOUND if not is_module(n) and is_module(n.rpartition(".")[0]) and n not in public.REQUIRED]


def test_one_module_has_all_names_that_may_go_missing():
    others = {name for path in SOURCE.rglob("*.py") if path.name != "private.py" for name in unpromised(path)}
    modules = {name.rpartition(".")[0] for name in public.REQUIRED}
    assert others - COMPARED - modules == set(public.REQUIRED)
    assert len(PRIVATE) > 25


def answers(names):
    """What a process says that imports jaxpyop once without each of the names."""
    done = run_module("tests.inside.portable_cases", *names)
    return zip(names, map(json.loads, done.stdout.splitlines()), strict=True)


def run_module(*args, **env):
    command, env = [sys.executable, "-m", *args], clean_environment() | env
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done


def test_without_each_of_the_names_and_without_all_of_them():
    """Everything works without any of them, so that a single one is missed by nobody once the import has noted it."""
    for name, said in answers([*PRIVATE, ",".join(PRIVATE)]):
        assert (said.get("failed"), said["portable"]) == ("", True), (name, said)
        (warning,) = said["warnings"]
        assert warning.startswith("JAX ")
        assert any(part.rpartition(".")[2] in warning for part in name.split(","))
        assert all(loss in warning for loss in _jaxcore.LOSSES)


def test_without_a_name_that_nothing_replaces():
    for name, said in answers(public.REQUIRED):
        assert re.fullmatch(
            rf"jaxpyop cannot work with JAX \S+, which has no {re.escape(name)}. "
            r"It was tested with JAX 0.10.0 to 0.12: install one of these, or a newer jaxpyop",
            said["error"],
        )


def run_code(code, **env):
    return run_python(textwrap.dedent(code), **env).stdout


def test_the_check_starts_no_client_and_no_setting_of_jax_or_trace_misleads_it():
    run_code("""
        import sys
        import jax
        from jax._src import xla_bridge
        settings = ["jax_disable_jit", "jax_enable_checks", "jax_check_tracer_leaks", "jax_enable_x64"]
        for setting in settings:
            for name in [name for name in sys.modules if name.startswith("jaxpyop")]:
                del sys.modules[name]
            jax.config.update(setting, True)
            import jaxpyop
            assert not jaxpyop._jaxcore.PORTABLE, setting
            jax.config.update(setting, False)
        assert not xla_bridge.backends_are_initialized()
        for name in [name for name in sys.modules if name.startswith("jaxpyop")]:
            del sys.modules[name]
        def f(x):
            import jaxpyop
            return jaxpyop.py_function(lambda x: -x if x > 0 else x, [x], x.dtype)
        assert jax.jit(f)(1.0) == -1
        assert not sys.modules["jaxpyop"]._jaxcore.PORTABLE
    """)


# Each changes what JAX does, and the check has to see it: by the text, what it says.
CHANGES = {
    "values to unpack": "jax.__version_info__ = (0, 10, 0) if jax.__version_info__ >= (0, 11, 1) else (0, 12, 0)",
    "the key of settings": "config.trace_context = lambda: ()",
    "how a primitive is evaluated": "dispatch.apply_primitive = lambda *args, **params: None",
}


@pytest.mark.parametrize("text", CHANGES)
def test_a_jax_that_does_something_else(text):
    run_code(f"""
        import warnings
        import jax
        from jax._src import config, dispatch
        {CHANGES[text]}
        with warnings.catch_warnings(record=True) as noted:
            import jaxpyop
        (warning,) = noted
        assert jaxpyop._jaxcore.PORTABLE and {text!r} in str(warning.message)
        assert warning.category is RuntimeWarning and warning.filename == "<string>"
    """)


def test_the_environment_asks_for_it():
    code = """
        import warnings
        warnings.simplefilter("error")
        import jaxpyop
        from jaxpyop._cli.doctor import report
        from tests.inside.portable_cases import works, works_on_public_jax
        works(jaxpyop)
        works_on_public_jax(jaxpyop)
        print(report(), jaxpyop.jit(lambda x: x).explain(1.0))
    """
    report = run_code(code, JAXPYOP_PORTABLE="1")
    assert re.search(r"portable +yes, on public JAX alone: the environment variable JAXPYOP_PORTABLE asks", report)
    assert "- mode='traced' is refused" in report
    assert "whole: programs cannot be cut on public JAX alone" in report


@pytest.mark.timeout(400)
def test_the_table_of_routes_holds_on_public_jax_alone():
    run_module(
        "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/routes/test_features.py", JAXPYOP_PORTABLE="1"
    )
