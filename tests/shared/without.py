"""The tests that are skipped where what they test is not there."""

import importlib.util

# What public JAX does not have, and the tests of that by file. With JAXPYOP_PORTABLE=1 they are skipped.
LACKING = {
    "traces of our own, in which a differentiated function asks for values": {
        "tests/gradients/test_gradients.py": (
            "test_derivatives_under_every_transformation",
            "test_gradient",
            "test_higher_derivatives",
            "test_many_gradients_from_threads",
            "test_other_first_derivatives",
            "test_random_inputs",
            "test_strict_promotion_and_leak_checks",
            "test_the_body_runs_once_per_differentiated_step",
            "test_the_body_runs_once_per_step_of_a_differentiated_scan",
            "test_what_the_body_keeps_of_the_abstract_run_is_explained",
        ),
        "tests/host/test_stateful.py": ("test_a_differentiated_stateful_op_runs_once",),
        "tests/host/test_errors.py": ("test_the_original_comes_out_of_every_program",),
        "tests/api/test_shapes.py": (
            "test_a_stateless_py_function_gives_its_own_shape",
            "test_the_same_under_vmap",
        ),
    },
    "linearize rules": {"tests/gradients/test_gradients.py": ("test_reverse_mode_does_not_trace_the_jvp",)},
    "effects that a differentiated loop keeps": {
        "tests/host/test_stateful.py": (
            "test_logging_in_a_differentiated_loop",
            "test_the_derivative_of_a_loop_keeps_a_call_without_results",
            "test_the_derivative_of_a_loop_runs_it_in_each_iteration",
        )
    },
    "effects with a text of their own": {
        "tests/host/test_stateful.py": ("test_where_jax_refuses_effects_the_error_names_the_op_and_the_cure",)
    },
}


def reason_to_skip(path: str, test: str) -> str | None:
    """Says why a test is skipped on public JAX alone, None if it has to pass."""
    for what, tests in LACKING.items():
        if test in tests.get(path, ()):
            return f"public JAX has no {what}"
    return None


_HAS_FLATBUFFERS = importlib.util.find_spec("flatbuffers") is not None


def needs_flatbuffers(path: str, test: str) -> str | None:
    """Says why a test of saved programs is skipped: `jax.export` needs a package that is not here."""
    saves = path.startswith("tests/saved/") or "_saved.exported" in test or "export.md" in test
    return "pip install '.[export]': jax.export needs flatbuffers" if saves and not _HAS_FLATBUFFERS else None
