"""A guest in JAX: what the import and each kind of op change in JAX's own tables, and in the process."""

import json
import textwrap

import pytest

from tests.shared.processes import run_python

pytestmark = pytest.mark.slow

# What is compared: each function and class in each module of JAX, each entry of its tables and lists, the filters of
# its loggers, its settings, and the environment. An entry whose key is ours is no change: nobody else looks it up.
LOOK = """
import logging, os, sys
import jax
import jax.numpy as jnp
import numpy as np

def state():
    found = {}
    for module in [m for name, m in sorted(sys.modules.items()) if name.startswith("jax._src") and m]:
        for name, value in list(vars(module).items()):
            if callable(value):
                found[module.__name__, name] = id(value)
            elif type(value) is dict and name not in ("__builtins__", "__annotations__"):
                for key, entry in list(value.items()):
                    if "python_call" not in str(key) and "cache" not in name and name != "_lazy_imports":
                        rule = getattr(entry, "rule", entry)
                        found[module.__name__, name, str(key)] = id(rule) if callable(rule) else 0
    for name in [n for n in logging.root.manager.loggerDict if n.partition(".")[0] == "jax"]:
        found["filters of", name] = len(logging.getLogger(name).filters)
    found |= {("setting", name): str(value) for name, value in jax.config.values.items()}
    return found | {("environment", name): value for name, value in os.environ.items()}

def changes(before):
    after = state()
    keys = {k for k in before if after.get(k) != before[k]}
    keys |= {k for k in after if k not in before and k[0] in ("environment", "filters of")}
    return sorted(" ".join(k) for k in keys)
"""

USES = {
    "the import": "",
    "stateless ops": """
        rule = lambda inputs, outputs, cotangents: cotangents * np.cos(inputs[0])
        op = lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32, vjp=rule)
        fun = lambda x: jaxpyop.py_function(lambda x: jnp.sin(x) * x, [x], jnp.float32)
        xs = jnp.arange(3.0)
        for f in (op, fun):
            f(1.0), jax.jit(f)(1.0), jax.vmap(f)(xs), jax.jit(jax.vmap(f))(xs), jax.grad(f)(1.0)
            jax.jit(jax.vmap(jax.grad(f)))(xs), jax.jit(jax.jit(f))(1.0)
            jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0])(1.0)
        jaxpyop.jit(fun)(1.0)
        jax.block_until_ready(jaxpyop.py_function(lambda x: -x if x > 0 else x, [xs[0]], jnp.float32, mode="auto"))
    """,
    "a stateful op": """
        jax.jit(lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32, stateful=True))(1.0)
    """,
    "an error": """
        try:
            jax.jit(lambda x: jaxpyop.numpy_function(lambda x: 1 / 0, [x], jnp.float32))(1.0).block_until_ready()
        except Exception:
            pass
    """,
    "a missing tangent": """
        jax.jvp(lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32, vjp=lambda x, y, ct: ct), (1.0,), (1.0,))
    """,
    "a combiner": """
        op = jax.jit(lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32))
        try:
            jax.jit(lambda x: jax.lax.reduce(x, 0.0, lambda a, b: op(b), (0,)))(jnp.ones(3))
        except NotImplementedError:
            pass
    """,
}
# The thread pool has to be made, and dispatch be synchronous before JAX 0.12, when the CPU client is.
BY_IMPORT = ["environment NPROC"]
OLD = ["setting jax_cpu_enable_async_dispatch"]
COND = "jax._src.interpreters.batching fancy_primitive_batchers"
MADE = {
    "a stateful op": [
        f"{COND} cond",
        f"{COND} while",
        "jax._src.lax.control_flow.loops _scan_known_hoisting",
    ],
    "an error": ["filters of jax._src.callback"],
    "a missing tangent": ["jax._src.interpreters.ad primitive_jvps jit"],
}


@pytest.mark.parametrize("use", USES)
def test_what_an_import_and_each_op_change(use):
    code = LOOK + textwrap.dedent("""
        import json
        import jax.extend, jax.experimental.buffer_callback, jax.interpreters.partial_eval
        before = state()
        import jaxpyop
        found = {"import": changes(before)}
        before = state()
    """)
    code += textwrap.dedent(USES[use]) + "\nprint(json.dumps(found | {'use': changes(before)}))"
    found = json.loads(run_python(code).stdout.splitlines()[-1])
    assert found["import"] in (BY_IMPORT, BY_IMPORT + OLD)
    assert found["use"] == MADE.get(use, [])


@pytest.mark.parametrize("op", ["jnp.sin(x)", "numpy_function(np.sin, [x], F)", "py_func(np.sin, [x], F)"])
def test_with_the_first_op_of_a_process_nothing_is_traced_or_compiled_twice(op):
    """A module of JAX's that is imported for the op may have settings, and each program depends on all of them."""
    run_python(
        textwrap.dedent(f"""
        import jaxpyop, jax, jax.numpy as jnp, numpy as np
        from jaxpyop import numpy_function, py_func
        F, traced = jnp.float32, []

        @jax.jit
        def program(x):
            traced.append(x)
            return {op}

        @jax.jit
        def other(x):
            traced.append(x)
            return x + 1

        for _ in range(3):
            other(program(other(F(1))))
        assert len(traced) == 2, traced
        """)
    )


def test_the_doctor_lists_the_changes():
    code = """
        import jaxpyop, jax, jax.numpy as jnp, numpy as np
        from jaxpyop._cli.doctor import report
        print(report())
        jax.jit(lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32, stateful=True))(1.0)
        print(report())
    """
    before, after = run_python(textwrap.dedent(code)).stdout.split("changes to JAX")[1:]
    assert "  effects" in before
    assert "not made: the batching rules of cond" in before
    assert "made: the batching rules of cond" in after
    assert "not made: the batching rules of cond" not in after
    assert "not made: the JVP rule of jit" in after
