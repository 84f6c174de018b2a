"""No name of JAX that may go missing ends a program: each one is taken away, and each capability turned off."""

import ast
import json
import pathlib
import re
import subprocess
import sys
import textwrap

import jax
import pytest

import jaxpyop
from jaxpyop import _jaxcore
from jaxpyop._jaxcore.capabilities import REQUIRED, required
from tests.pages.test_examples import SCRIPTS, SECTIONS
from tests.shared.capability_cases import NEEDS, QUICK
from tests.shared.util import ROOT, run_python
from tests.shared.without import WITHOUT

SOURCE = pathlib.Path(jaxpyop.__file__).parent
CAPABILITIES = {capability.name: capability for capability in _jaxcore.CAPABILITIES}
# What this JAX is too old for is always off, and there is no warning about it.
TOO_OLD = {name for name, capability in CAPABILITIES.items() if _jaxcore.is_too_old_for(capability)}
TAKEN_AWAY = sorted({name for key in CAPABILITIES.keys() - TOO_OLD for name in CAPABILITIES[key].names})
PROMISED_NOTHING = re.compile(r"jax\.(_src|extend|interpreters|core|ffi)\b")
# Two texts that are compared with names in JAX: of a logger, and of the module of a function. The other two are the
# places where a name of jax.extend is looked up.
NOT_LOOKED_UP = {"jax._src.callback", "jax._src.random", "jax._src.", "jax.extend."}


def named_in(code):
    """The names that `code` imports, reads or has as texts, in full."""
    tree = ast.parse(code)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else "jax"
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            yield f"{modules.get(first, first)}.{rest}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def unpromised(code):
    return sorted({name for name in named_in(code) if PROMISED_NOTHING.match(name) and " " not in name})


def test_every_name_that_may_go_missing_is_in_the_table():
    found = {name for path in SOURCE.rglob("*.py") for name in unpromised(path.read_text(encoding="utf-8"))}
    listed = {name for capability in _jaxcore.CAPABILITIES for name in capability.names}
    modules = {name.rpartition(".")[0] for name in REQUIRED}
    assert found - NOT_LOOKED_UP - modules == listed | set(REQUIRED)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from jax._src import core as _core\n_core.trace_ctx", ["jax._src.core", "jax._src.core.trace_ctx"]),
        ("import jax\njax.ffi.ffi_lowering", ["jax.ffi", "jax.ffi.ffi_lowering"]),
        ("import jax.extend.core as e\ne.Primitive", ["jax.extend.core", "jax.extend.core.Primitive"]),
        ("look_up('jax.core.Tracer')", ["jax.core.Tracer"]),
        ("'''jax.core.Tracer is a class'''\nimport jax.numpy\njax.numpy.sin", []),
    ],
    ids=["_src", "attribute", "extend", "text", "documented"],
)
def test_the_search_itself(code, found):
    assert unpromised(code) == found


def answers(requests):
    """What a process says that imports jaxpyop once for each request."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    command = [sys.executable, "-m", "tests.shared.capability_cases"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=ROOT, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


def in_groups(values, count):
    return pytest.mark.parametrize("group", [values[k::count] for k in range(count)], ids=map(str, range(count)))


@in_groups(TAKEN_AWAY, 6)
def test_without_a_name(group):
    for name, said in zip(group, answers({"absent": name, "cases": QUICK} for name in group), strict=True):
        lacking = [CAPABILITIES[key] for key in CAPABILITIES.keys() - TOO_OLD if name in CAPABILITIES[key].names]
        assert said.get("failed") == {}, (name, said)
        assert said["off"] == sorted(TOO_OLD | {capability.name for capability in lacking}), name
        (warning,) = said["warnings"]
        assert warning.startswith("JAX ")
        assert all(f"{capability.name}: {capability.loss}" in warning for capability in lacking), name


def test_without_a_name_that_nothing_replaces():
    for name, said in zip(REQUIRED, answers({"absent": name} for name in REQUIRED), strict=True):
        assert re.fullmatch(
            rf"jaxpyop cannot work with JAX \S+, which has no {re.escape(name)}. "
            r"It was tested with JAX 0.10.0 to 0.12: install one of these, or a newer jaxpyop",
            said["error"],
        )


@in_groups(["", "all", *CAPABILITIES], 8)
def test_without_a_capability(group):
    for name, said in zip(group, answers({"without": name} for name in group), strict=True):
        off = set(CAPABILITIES) if name == "all" else {name} - {""}
        assert said == {"warnings": [], "off": sorted(TOO_OLD | off), "failed": {}}, name


def test_no_name_of_a_function_or_a_class_of_jax_matters():
    (said,) = answers([{"renamed": True}])
    assert said == {"warnings": [], "off": sorted(TOO_OLD), "failed": {}}


def test_every_capability_is_in_the_guide():
    page = (pathlib.Path(ROOT) / "docs" / "versions.md").read_text(encoding="utf-8")
    assert set(WITHOUT).union(*NEEDS.values()) <= CAPABILITIES.keys()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == CAPABILITIES.keys()


@pytest.mark.parametrize("name", WITHOUT)
def test_every_skipped_test_exists(name):
    for path, tests in WITHOUT[name][1].items():
        text = (pathlib.Path(ROOT) / path).read_text(encoding="utf-8")
        functions = {test.partition("[")[0] for test in tests}
        assert all(re.search(rf"^def {function}\(", text, re.MULTILINE) for function in functions), path


def test_every_skipped_example_exists():
    skipped = {case for _, tests in WITHOUT.values() for case in tests.get("tests/pages/test_examples.py", ())}
    sections = {f"test_blocks_run_and_print_what_is_shown[{page} {section}]" for page, section in SECTIONS}
    scripts = {f"test_scripts_print_what_is_shown[{page} {name}]" for page, name in SCRIPTS}
    assert skipped <= sections | scripts


def test_this_jax_has_all():
    assert not _jaxcore.missing()
    assert ({"lazy_tape"} if jax.__version_info__ < (0, 10, 2) else set()) == TOO_OLD
    assert all(map(_jaxcore.has, CAPABILITIES.keys() - TOO_OLD))


def run_code(code, **env):
    return run_python(textwrap.dedent(code), **env).stdout


def test_no_probe_starts_a_client():
    run_code("""
        import jaxpyop
        from jax._src import xla_bridge
        assert not xla_bridge.backends_are_initialized()
    """)


@pytest.mark.parametrize("flag", ["JAX_DISABLE_JIT", "JAX_ENABLE_CHECKS", "JAX_CHECK_TRACER_LEAKS", "JAX_ENABLE_X64"])
def test_a_setting_of_jax_does_not_mislead_the_probes(flag):
    run_code("import jaxpyop; assert not jaxpyop._jaxcore.missing()", **{flag: "1"})


def test_an_import_inside_of_a_trace():
    run_code("""
        import jax
        @jax.jit
        def f(x):
            import jaxpyop
            assert not jaxpyop._jaxcore.missing()
            return jaxpyop.py_function(lambda x: -x if x > 0 else x, [x], x.dtype)
        assert f(1.0) == -1
    """)


def test_turned_off():
    report = run_code(
        """
        import warnings
        warnings.simplefilter("error")
        import jaxpyop
        assert jaxpyop.config.without == ("zero_copy", "fast_tracing")
        from jaxpyop._cli.doctor import report
        print(report())
        """,
        JAXPYOP_WITHOUT="zero_copy, fast_tracing",
    )
    assert re.search(r"zero_copy +no, turned off: compiled programs call functions through pure_callback", report)
    assert re.search(r"transport +auto: pure_callback\n", report)
    assert re.search(r"own_traces +yes: gradients of functions", report)


def test_no_such_capability():
    run_code(
        """
        import pytest
        with pytest.raises(ValueError, match="variable JAXPYOP_WITHOUT: there is no capability 'zero_copi'; there are"):
            import jaxpyop
        """,
        JAXPYOP_WITHOUT="zero_copi",
    )


def test_it_is_fixed_after_the_import():
    with pytest.raises(ValueError, match="JAXPYOP_WITHOUT=zero_copy before that"):
        jaxpyop.config.without = "zero_copy"
    jaxpyop.config.without = jaxpyop.config.without


@pytest.mark.parametrize(
    ("version", "parts"),
    [("0.10.2", (0, 10)), ("0.13.0.dev20270101", (0, 13)), ("1.0rc1", (1, 0)), ("0.14rc2.1", (0, 14))],
)
def test_versions(version, parts, monkeypatch):
    monkeypatch.setattr("jax.__version__", version)
    assert required._version() == parts
