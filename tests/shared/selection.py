"""The selection of two minutes: what `python -m pytest` leaves to `python -m pytest --all`, and what covers it.

Of every table the selection takes each value of each parameter once. Beyond that it is chosen by subject: where
many programs show one promise at a price, those stay that failed in the past, or that nothing else shows.
"""

# Whole tests, by file, each with the quicker test that shows the same.
THOROUGH = {
    "test_paths.py": {
        "test_direct": "test_traced_equals_eager",
        "test_jit": "test_traced_equals_eager",
        "test_grad": "test_traced_equals_eager",
        "test_vmap": "test_traced_equals_eager",
        "test_vmap_of_grad": "test_traced_equals_eager",
        "test_scan": "test_traced_equals_eager",
    },
    "test_gradients.py": {"test_random_inputs": "test_gradient"},
    "test_gradients_inputs.py": {"test_mixed_derivatives_in_different_inputs": "test_higher_derivatives"},
    "test_freed.py": {
        "test_the_gradient_of_a_numpy_function": "test_a_differentiated_body_and_the_array_it_captured",
    },
    "test_soak.py": {"test_memory_and_records_stay_bounded": "test_a_dropped_program_frees_the_callable"},
    "test_hostile_results.py": {"test_hostile_results_are_freed": "test_results_of_py_functions_are_freed"},
    "test_stateful.py": {"test_exactly_once_on_four_devices": "test_on_four_devices"},
    "test_many_devices.py": {"test_on_four_devices": "test_on_four_devices"},
    "test_lifetime.py": {
        "test_errors_keep_a_bounded_number_of_callables": (
            "test_what_an_exception_holds_goes_when_as_many_follow_as_are_kept"
        ),
    },
    "test_exit.py": {"test_old_and_new_work_side_by_side": "test_the_process_ends"},
    "test_pools.py": {"test_a_pool_whose_worker_died": "test_a_dask_worker_that_dies"},
    "test_cli.py": {"test_doctor_over_several_devices": "test_doctor"},
    "test_transforms.py": {
        "test_the_persistent_compilation_cache_holds_no_callable": (
            "test_the_persistent_cache_brings_back_programs_but_no_callables"
        ),
    },
}
# Of these tests only the cases whose id has one of these in it.
ONLY = {
    "test_shared_runs.py": {"test_over_eight_devices": ("once", "errors")},
    "test_tape.py": {
        "test_pullback": ("trig", "scan", "while", "cond", "custom", "every_way", "mlp", "svd", "complex", "closure"),
        "test_pushforward": ("trigonometric", "scan", "custom", "cond"),
        "test_second_order": ("relu", "cond"),
    },
    "test_tape_effects.py": {"test_no_false_leaks": ("scan",)},
    "test_gradients.py": {
        "test_strict_promotion_and_leak_checks": ("reduction", "scan inside", "relu", "float(x)", "an op inside"),
    },
    "test_paths.py": {"test_no_tracer_leaks": ("log_huber", "custom_vjp")},
    "test_path_refusals.py": {"test_shapes": ("float", "loop", "numpy")},
    "test_exit.py": {
        "test_the_process_ends": (
            "stateless",
            "ordered-",
            "a gradient",
            "a parallel batch-",
            "daemon",
            "exit in a body",
        ),
    },
    "test_deadlock.py": {"test_ends": ("500x500 undrained-", "nested bodies", "matmul before the op")},
    "test_hostile_processes.py": {"test_ends_and_is_right": ("threads", "memory", "slow bodies")},
    "test_cli.py": {"test_demo": ("no_argument",)},
    "test_config.py": {"test_wrong_environment_variables_are_named": ("mode",)},
    "test_settings.py": {"test_settings_from_the_environment": ("x64",)},
    "test_peers.py": {
        "test_training": ("flax-batch-inferred", "equinox-vmap-", "numpy"),
        "test_minimizers": ("bfgs-py_function",),
    },
    "test_debugger.py": {"test_a_session": ("py_function-jit",)},
    "test_examples.py": {"test_scripts_print_what_is_shown": ("collatz", "shards")},
    "test_docs.py": {"test_the_build_ends_with_an_error_of": ("fine", "broken-reference")},
    "test_devices.py": {"test_on_four_devices": ("Auto",)},
    "test_freed.py": {"test_collection_in_a_body": ("auto",)},
}


def is_quick(file: str, test: str, case: str) -> bool:
    """Whether the selection may have a case of a test; `case` is its id, if it has one."""
    if test in THOROUGH.get(file, {}):
        return False
    parts = ONLY.get(file, {}).get(test)
    return parts is None or any(part in case for part in parts)
