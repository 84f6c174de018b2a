"""No name of JAX that may go missing ends a program: without it, what needs it says so, and all else runs."""

import ast
import json
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import jaxpyop
from jaxpyop import _jaxcore
from jaxpyop._jaxcore import public
from tests.inside.portable_cases import OF_OBJECTS
from tests.shared.processes import ROOT, clean_environment, on_devices, run_python

pytestmark = pytest.mark.slow

SOURCE = pathlib.Path(jaxpyop.__file__).parent
PROMISED_NOTHING = re.compile(r"jax\.(_src|extend|interpreters|core|ffi)\b")
# Texts that are compared with names in JAX: of a logger, and of the module of a function.
COMPARED = {"jax._src.callback", "jax._src.random"}
# What JAX documents, and native calls alone use. If one is missing, their check at the first use fails.
OF_NATIVE_CALLS = {"jax.ffi", *(f"jax.ffi.{name}" for name in ("ffi_call", "pycapsule", "register_ffi_target"))}
# Names that begin with an underscore, or are in a module that does.
PRIVATE = sorted({name for name in _jaxcore.NAMES.values() if "._" in name})


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
    return sorted({name for name in found if PROMISED_NOTHING.match(name) and name[-1].isalnum()})


def test_one_module_has_all_names_that_may_go_missing():
    others = {name for path in SOURCE.rglob("*.py") if path.name != "private.py" for name in unpromised(path)}
    modules = {name.rpartition(".")[0] for name in public.REQUIRED}
    assert others - COMPARED - OF_NATIVE_CALLS - modules == set(public.REQUIRED)
    assert unpromised(SOURCE / "_jaxcore" / "private.py") == sorted(set(_jaxcore.NAMES.values()) - OF_JITTED)
    needed = {name for feature in _jaxcore.FEATURES.values() for name in feature.names.split()}
    assert needed == set(_jaxcore.NAMES)


def test_few_names_are_private():
    """Those of modules and of objects alike."""
    assert len(PRIVATE) <= 18


OF_JITTED = {name for name in PRIVATE if name.startswith("jax.jit()")}


def answers(names):
    """What a process says that imports jaxpyop once without each of the names."""
    done = run_module("tests.inside.portable_cases", *names)
    return zip(names, map(json.loads, done.stdout.splitlines()), strict=True)


def run_module(*args, **env):
    command, env = [sys.executable, "-m", *args], clean_environment() | env
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done


@pytest.mark.timeout(600)
def test_without_each_of_the_names_and_without_all_of_them():
    names = sorted(set(_jaxcore.NAMES.values()))
    for name, said in answers([*names, ",".join(names)]):
        assert said.get("failed") == "", (name, said)
        absent = {k for k, path in _jaxcore.NAMES.items() if path in name.split(",")}
        lacks = [title for title, feature in _jaxcore.FEATURES.items() if absent & set(feature.names.split())]
        assert said["lacks"] == lacks
        if not OF_OBJECTS.search(name):
            (warning,) = said["warnings"]
            assert warning.startswith("JAX ")
            assert all(_jaxcore.FEATURES[title].without in warning for title in lacks)


def test_a_jitted_function_that_tells_less_than_today():
    """The names of objects are taken away from JAX itself, as far as that is possible."""
    run_code("""
        import jax
        del type(jax.jit(len))._cache_size
        import warnings
        with warnings.catch_warnings(record=True) as noted:
            import jaxpyop
        (warning,) = noted
        assert "has no jax.jit()._cache_size" in str(warning.message), warning
        from tests.inside.portable_cases import works_in_part
        works_in_part(jaxpyop)
        assert jaxpyop._jaxcore.has("jaxpyop.jit")
    """)


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
            assert not any(map(jaxpyop._jaxcore.why_without, jaxpyop._jaxcore.FEATURES)), setting
            jax.config.update(setting, False)
        assert not xla_bridge.backends_are_initialized()
        for name in [name for name in sys.modules if name.startswith("jaxpyop")]:
            del sys.modules[name]
        def f(x):
            import jaxpyop
            return jaxpyop.py_function(lambda x: -x if x > 0 else x, [x], x.dtype)
        assert jax.jit(f)(1.0) == -1
        assert not any(map(sys.modules["jaxpyop"]._jaxcore.why_without, jaxpyop._jaxcore.FEATURES))
    """)


# Each changes what JAX does, and the check of a feature has to see it.
CHANGES = {
    "linearize rules": "jax.__version_info__ = (0, 10, 0) if jax.__version_info__ >= (0, 11, 1) else (0, 12, 0)",
    "jaxpyop.jit": "config.trace_context = lambda: ()",
    "loops": "loops._scan_known_hoisting = lambda jaxpr: None",
    "the tape": "jax.extend.core.set_current_trace = lambda trace: jax.ensure_compile_time_eval()",
}


@pytest.mark.parametrize("feature", CHANGES)
def test_a_jax_that_does_something_else(feature):
    run_code(f"""
        import warnings
        import jax, jax.extend.core
        from jax._src import config
        from jax._src.lax.control_flow import loops
        {CHANGES[feature]}
        import jaxpyop
        with warnings.catch_warnings(record=True) as noted:
            assert not jaxpyop._jaxcore.has({feature!r})
        (warning,) = noted
        assert "does something else with" in str(warning.message)
        assert jaxpyop._jaxcore.FEATURES[{feature!r}].without in str(warning.message)
    """)


def test_the_environment_asks_for_it():
    code = """
        import warnings
        warnings.simplefilter("error")
        import jaxpyop
        from jaxpyop._cli.doctor import report
        from tests.inside.portable_cases import works_in_part
        works_in_part(jaxpyop)
        print(report(), jaxpyop.jit(lambda x: x).explain(1.0))
    """
    report = run_code(code, JAXPYOP_PORTABLE="1")
    assert re.search(r"names of JAX +some that jaxpyop uses are missing", report)
    assert re.search(r"traced mode +mode='traced' calls the function instead.*JAXPYOP_PORTABLE asks", report)
    assert "whole: programs cannot be cut: the environment variable" in report


def test_several_devices_are_refused_without_the_name():
    run_code(
        """
        import jaxpyop, jax, jax.numpy as jnp, numpy as np, pytest
        from jax.sharding import NamedSharding, PartitionSpec as P
        mesh = jax.make_mesh((2,), ("d",))
        x = jax.device_put(jnp.ones(2), NamedSharding(mesh, P("d")))
        op = lambda x: jaxpyop.numpy_function(np.negative, [x], jnp.float32)
        with pytest.raises(NotImplementedError, match="call Python inside of jax.shard_map"):
            jax.jit(op)(x)
        shards = jax.jit(jax.shard_map(op, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
        np.testing.assert_array_equal(shards, -np.ones(2))
        """,
        JAXPYOP_PORTABLE="1",
        **on_devices(2),
    )


@pytest.mark.timeout(400)
def test_the_table_of_routes_holds_on_public_jax_alone():
    run_module(
        "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/routes/test_features.py", JAXPYOP_PORTABLE="1"
    )
