"""The selection: the tests that `python -m pytest` leaves to `python -m pytest --all`.

The selection takes each value of each parameter of a table once. It takes one of the four functions and one of the
transports, another one from test to test. Beyond that it is chosen by subject. Where many slow programs show the same
promise, it keeps the ones that failed in the past, and the ones that show something of their own.
"""

# Whole tests that are left out, by file, each with a quicker test that shows the same.
THOROUGH = {
    "test_places.py": {
        "test_over_eight_devices_a_result_keeps_its_sharding": "test_on_four_devices",
        "test_on_a_mesh_of_explicit_axes_a_program_stays_whole": "test_what_stays_whole_says_why",
        "test_results_are_where_jit_has_them": "test_the_results_are_those_of_jit",
        "test_one_thread_of_jaxs_pool_serves_four_callers": "test_four_threads_share_a_function",
        "test_many_steps_leave_nothing_behind": "test_nothing_is_traced_or_compiled_again",
    },
    "test_standin.py": {"test_on_a_backend_without_callbacks": "test_the_results_are_those_of_jit"},
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
    "test_cache.py": {
        "test_a_cached_program_calls_the_functions_of_this_process": (
            "test_the_persistent_cache_brings_back_programs_but_no_callables"
        ),
    },
    "test_bench.py": {
        "test_long_runs": "test_a_run_takes_its_own_times",
        "test_the_table_of_files": "test_functions_are_counted_on_every_thread",
        "test_another_checkout_is_what_runs": "test_another_checkout_takes_turns_with_this_one",
        "test_every_case_runs": "test_the_cases_of_a_group_compute_the_same",
    },
    "test_no_compilation.py": {"test_no_body_is_compiled_for_ever": "test_steps_compile_nothing"},
    "test_training_runs.py": {
        "test_nothing_grows": "test_steps_leave_no_entries_behind",
        "test_nothing_grows_with_four_threads": "test_steps_leave_no_entries_behind",
    },
    "test_portable.py": {"test_without_a_name": "test_on_public_jax_alone_and_on_all_of_it"},
    "test_when.py": {"test_on_four_devices": "test_on_four_devices"},
    "test_out.py": {"test_on_four_devices": "test_on_four_devices"},
    "test_on_error.py": {
        "test_workers": "test_one_element_fails",
        "test_several_devices": "test_on_four_devices",
        "test_derivatives_of_second_order_on_the_tape": "test_one_element_fails",
    },
    "test_devices.py": {"test_a_failing_program_is_seen": "test_on_four_devices"},
    "test_docs.py": {"test_the_build_ends_with_an_error_of": "test_docstrings"},
    "test_shared_runs.py": {"test_over_eight_devices": "test_on_four_devices"},
    "test_padded.py": {"test_on_four_devices": "test_on_four_devices"},
    "test_deadlock.py": {
        "test_one_function_too_many_raises_where_all_would_wait": "test_ends",
        "test_a_hang_is_a_failure": "test_a_failing_program_is_a_failure",
        "test_a_pool_of_the_users_is_kept": ("test_importing_before_the_first_operation_arranges_the_pool_silently"),
        "test_a_pool_that_is_none_is_made": ("test_importing_before_the_first_operation_arranges_the_pool_silently"),
        "test_a_late_import_that_is_safe_all_the_same_does_not_warn": "test_importing_after_it_warns_with_the_cure",
        "test_importing_alone_starts_no_backend": "test_import_makes_no_backend",
    },
    "test_debugger.py": {
        "test_quitting_the_debugger_is_an_error_of_the_body": "test_a_session",
        "test_the_session_notices_a_missing_prompt": "test_a_session",
    },
    "test_settings.py": {
        "test_settings_from_the_environment": "test_programs",
        "test_a_stateful_op_in_a_differentiated_scan_leaks_nothing": "test_exactly_once",
    },
    "test_traced.py": {"test_no_callback_in_the_program": "test_no_callback"},
    "test_report.py": {"test_in_a_process": "test_on_four_devices"},
    "test_peers.py": {
        "test_minimizers": "test_training",
        "test_a_training_step_runs_its_ops_once": "test_training",
        "test_special_functions": "test_bessel_with_rules_of_first_order",
        "test_a_flax_model_as_an_input": "test_training",
        "test_an_equinox_model_as_an_input": "test_training",
    },
    "test_executor.py": {
        "test_no_element_leaves_the_users_pool": "test_it_runs_there_and_nowhere_else",
        "test_a_circle_of_larger_pools_ends": "test_ops_in_bodies_of_the_same_pool_of_one",
        "test_a_circle_of_pools_is_an_error": "test_ops_in_bodies_of_the_same_pool_of_one",
        "test_an_input_that_comes_from_the_same_pool": "test_ops_in_bodies_of_the_same_pool_of_one",
        "test_a_pool_that_is_shut_down_meanwhile": "test_an_interrupt_leaves_nothing_running",
        "test_a_task_of_the_users_on_the_same_pool": "test_ops_in_bodies_of_the_same_pool_of_one",
    },
    "test_processes.py": {
        "test_two_processes": "test_on_four_devices",
        "test_the_table_of_the_readme": "test_on_four_devices",
    },
    "test_ports.py": {"test_solvers_of_optimistix": "test_training_with_optax"},
    "test_casting.py": {
        "test_wide_touts_in_threads_leave_the_warnings_of_the_process_alone": (
            "test_wide_tout_without_x64_warns_as_jax_does"
        ),
    },
    "test_found.py": {
        "test_an_input_that_was_kept_does_not_get_into_other_calls": "test_inputs_that_a_body_keeps_share_no_memory",
    },
    "test_errors.py": {"test_what_utf8_cannot_encode": "test_under_jit_cold_and_warm"},
    "test_outside.py": {"test_a_combiner_is_refused_outside_of_jit": "test_a_combiner_is_refused"},
    "test_tape.py": {"test_third_order": "test_second_order"},
    "test_loop_gradients.py": {"test_second_derivatives": "test_higher_orders"},
    "test_soak.py": {"test_memory_and_records_stay_bounded": "test_a_dropped_program_frees_the_callable"},
    "test_hostile_results.py": {"test_hostile_results_are_freed": "test_results_of_py_functions_are_freed"},
    "test_stateful.py": {
        "test_exactly_once_on_four_devices": "test_on_four_devices",
        "test_ordered_on_four_devices_is_once_or_refused": "test_on_four_devices",
    },
    "test_many_devices.py": {
        "test_on_four_devices": "test_on_four_devices",
        "test_every_op_inside_and_outside_of_set_mesh": "test_on_four_devices",
    },
    "test_lifetime.py": {
        "test_a_kept_program_keeps_the_callable": "test_a_dropped_program_frees_the_callable",
        "test_errors_keep_a_bounded_number_of_callables": (
            "test_what_an_exception_holds_goes_when_as_many_follow_as_are_kept"
        ),
    },
    "test_exit.py": {
        "test_old_and_new_work_side_by_side": "test_the_process_ends",
        "test_an_error_that_nobody_waited_for_is_shown": "test_the_process_ends",
        "test_devices_that_never_call_keep_no_process": "test_other_devices_still_call_when_the_process_ends",
        "test_an_exception_in_the_program_is_all_that_is_shown": "test_the_process_ends",
        "test_ordered_ops_beside_jaxs_own_ordered_callback": "test_order_holds_where_xla_runs_other_calls_at_once",
    },
    "test_config.py": {
        "test_environment_variables": "test_doctor_shows_every_setting_and_its_variable",
        "test_wrong_environment_variables_are_named": "test_doctor_shows_every_setting_and_its_variable",
    },
    "test_residuals.py": {
        "test_in_worker_processes": "test_bodies_in_other_processes",
        "test_in_shard_map": "test_any_object_is_kept",
        "test_what_cannot_leave_a_worker_is_said": "test_what_cannot_be_pickled",
    },
    "test_examples.py": {"test_scripts_print_what_is_shown": "test_blocks_run_and_print_what_is_shown"},
    "test_parallel.py": {"test_a_parallel_batch_inside_a_parallel_body": "test_jax_programs_in_parallel_bodies"},
    "test_pools.py": {
        "test_a_dask_worker_that_dies": "test_a_pool_whose_worker_died",
        "test_the_next_call_with_a_new_pool_works": "test_a_pool_whose_worker_died",
        "test_a_function_that_workers_cannot_import": "test_bodies_in_other_processes",
        "test_every_row_of_the_table_is_tested": "test_the_table_of_the_readme",
    },
    "test_cli.py": {
        "test_demo": "test_the_command_in_the_readme_runs_the_installed_package",
        "test_doctor": "test_doctor_shows_every_setting_and_its_variable",
        "test_doctor_over_several_devices": "test_doctor_shows_every_setting_and_its_variable",
        "test_doctor_after_a_late_import": "test_importing_after_it_warns_with_the_cure",
        "test_an_unknown_value_in_the_environment_is_named": "test_doctor_shows_every_setting_and_its_variable",
    },
    "test_hostile_processes.py": {
        "test_ends_and_is_right": "test_ends",
        "test_a_forked_child_that_leaves_jax_alone": "test_the_process_ends",
        "test_what_bodies_print_is_in_order": "test_order_holds_where_xla_runs_other_calls_at_once",
        "test_a_child_forked_before_the_first_operation": "test_the_process_ends",
    },
    "test_scratch.py": {
        "test_the_bound_is_a_setting_that_doctor_shows": "test_doctor_shows_every_setting_and_its_variable"
    },
    "test_transforms.py": {
        "test_the_persistent_compilation_cache_holds_no_callable": (
            "test_the_persistent_cache_brings_back_programs_but_no_callables"
        ),
    },
}
TRANSFORMS = ("in turn", "vmap of scan", "-vmap]", "shard_map")
LOOPS = (
    "newton",
    "bisection",
    "collatz",
    "log_huber",
    "beam",
    "for_of",
    "nested",
    "two_conditions",
    "closure]",
    "return_in_a",
    "continues",
    "break",
    "array_state",
    "weak",
    "no_turn",
    "python_numbers",
)
# Tests of which only some cases run: those whose id, in brackets, contains one of these texts.
ONLY = {
    "test_programs.py": {
        "test_another_process_gets_the_same": (
            *("[only a call]", "[value and gradient]", "[gradient of a loaded program]", "[effects]", "[structures]"),
            *("[padded]", "[when]", "[on_error]", "[keys]", "[scan run from Python]", "[fwd and bwd in vmap]"),
        ),
    },
    "test_tape.py": {
        "test_pullback": ("trig", "-scan", "while", "-cond", "every_way", "svd", "real_to_complex", "custom_jvp]"),
        "test_pushforward": ("trigonometric", "scan", "custom", "cond"),
        "test_second_order": ("relu",),
        "test_checker_fails_on_a_gradient_that_is_off": ("square", "complex"),
    },
    "test_on_error.py": {"test_derivatives_of_second_order_on_the_tape": ("nan",)},
    "test_portable.py": {"test_a_setting_of_jax_does_not_mislead_the_check": ("ENABLE_CHECKS",)},
    "test_loop_refusals.py": {
        "test_a_file_that_changed_since_it_was_imported_is_no_source": ("lines above", "another sign"),
    },
    "test_tape_effects.py": {
        "test_no_false_leaks": ("scan",),
        "test_nested_python_functions_run_once": ("cond", "body"),
        "test_effects_run_once": ("cond", "body"),
    },
    "test_tape_compiled.py": {"test_arrays_that_a_jitted_function_closes_over_may_change": ("in scan",)},
    "test_gradients_inputs.py": {"test_complex_numbers_as_jax_vjp": ("conjugate", "absolute")},
    "test_found.py": {"test_a_batch_of_scalars_of_any_dtype": ("float8_e4m3fn]", "int4", "bfloat16", "uint2")},
    "test_rules.py": {
        "test_reverse_mode": ("jacrev of vmap", "[scan-", "checkpoint", "in one input", "[grad-", "numerical"),
    },
    "test_gradients.py": {
        "test_strict_promotion_and_leak_checks": ("float(x)",),
        "test_other_first_derivatives": ("reduction", "control flow"),
        "test_gradient": ("reduction", "relu", "in place", "float(x)", "np.asarray", "constant"),
        "test_derivatives_under_every_transformation": (
            "-vmap of grad]",
            "scan of grad]",
            "while_loop",
            "grad of cond, other",
            "checkpoint of chain",
            "vmap of grad of scan",
            "aux",
        ),
        "test_higher_derivatives": ("relu-third", "float(x)"),
        "test_the_same_for_a_numpy_function_with_vjp": (
            "-vmap of grad]",
            "grad of scan]",
            "grad of cond, other",
            "checkpoint]",
            "stopped",
            "unused",
        ),
    },
    "test_paths.py": {
        "test_no_tracer_leaks": ("log_huber",),
        "test_random_programs": ("7",),
        "test_conditions_become_one_switch": ("elif", "mixed"),
    },
    "test_path_refusals.py": {
        "test_shapes": ("float", "loop", "numpy"),
        "test_the_bound_is_named_after_few_runs": ("sequential",),
    },
    "test_auto.py": {"test_the_jaxpr_says_which": ("while", "math", "raises")},
    "test_bench.py": {"test_the_cases_of_a_group_compute_the_same": ("float32[1]",)},
    "test_names.py": {"test_in_the_profile": ("jit]", "grad]")},
    "test_training_runs.py": {"test_the_time_is_the_processs_and_that_of_one_step": ("[1]",)},
    "test_exit.py": {
        "test_other_devices_still_call_when_the_process_ends": ("after",),
        "test_the_process_ends": (
            "ordered-",
            "sys.exit in a body",
        ),
    },
    "test_deadlock.py": {
        "test_ends": ("nested bodies",),
        "test_importing_after_it_warns_with_the_cure": ("numpy.ones",),
        "test_importing_before_the_first_operation_arranges_the_pool_silently": ("after jax.numpy",),
    },
    "test_peers.py": {
        "test_training": ("equinox-numpy",),
    },
    "test_debugger.py": {"test_a_session": ("py_function-jit",)},
    "test_devices.py": {
        "test_on_four_devices": tuple(
            f"Auto-{name}-auto"
            for name in (
                "shard_map_of_loops",
                "jit_gradient_of_a_stateful_py_function",
                "jit_stateful_exactly_one_whole_call",
                "jit_ordered_one_whole_call_or_refused",
                "error_in_jit_of_scan",
                "row_0",
                "row_1",
                "row_2",
            )
        ),
    },
    "test_freed.py": {
        "test_collection_in_a_body": ("auto",),
        "test_a_differentiated_body_and_the_array_it_captured": ("jit of grad-eager",),
    },
    "test_first_errors.py": {"test_a_nan_under_debug_nans_names_the_op": ("[numpy_function]",)},
    "test_fuzz.py": {"test_random_programs_equal_plain_jax": ("[py_function]",)},
    "test_records_kept.py": {"test_each_body_runs_once": ("scan pulled", "checkpoint")},
    "test_constants.py": {"test_jax_itself_takes_nothing_out": ("scan", "cond", "custom_jvp", "svd", "sort")},
    "test_no_compilation.py": {"test_steps_compile_nothing": ("linear_solve", "powers")},
    "test_executor.py": {
        "test_a_shared_input_is_copied_for_the_elements_under_way_alone": ("jit",),
        "test_a_crash_in_a_pool_of_one_leaves_the_program_alive": ("parallel",),
        "test_ops_in_bodies_of_the_same_pool_of_one": ("a body of a body of a body-jit",),
    },
    "test_pools.py": {
        "test_an_error_elsewhere_cancels_the_rest": ("processes-direct",),
        "test_fwd_and_bwd_of_blocks": ("grad of vmap", "-jit of vmap of grad"),
        "test_bodies_in_other_processes": ("processes-direct",),
        "test_gradients_recompute_in_other_processes": ("processes",),
        "test_results_that_are_filled_in_other_processes": ("processes",),
        "test_values_from_other_processes": ("processes-direct-py_function",),
        "test_the_vjp_of_a_numpy_function_runs_there_too": ("processes",),
        "test_a_gradient_of_a_stateful_op_elsewhere_says_why_not": ("processes",),
        "test_workers_see_the_callers_x64": ("processes",),
    },
    "test_loops.py": {
        "test_jit": LOOPS,
        "test_no_callback": LOOPS,
        "test_grad": ("nested_loops",),
        **dict.fromkeys(
            ["test_direct", "test_jvp", "test_vmap", "test_vmap_of_grad", "test_grad_of_vmap", "test_scan"], ("newton",)
        ),
    },
    "test_second_derivatives.py": {
        "test_equal_to_jax": (
            "[hessian-logdet-differences",
            "[hessian-sine-functions",
            "[hessian-respond-functions",
            "[jacrev of jacrev-sine-differences",
            "[grad of grad-respond-differences",
        ),
        "test_complex_numbers": ("real to complex",),
        "test_vmap_methods": ("[vmap outside-expand_dims-functions", "[vmap inside-broadcast_all-differences"),
    },
    "test_jit.py": {"test_transformations_around_it": ("[grad]", "a body")},
    "test_tables.py": {
        "test_a_body_of_the_tape_and_its_gradient": ("[scan]", "custom_jvp]", "every_way"),
        "test_values_and_runs": ("py_function-scan-python", "py_function-cond, taken-python"),
        "test_derivatives_of_a_body_that_looks_at_its_values": ("-vmap of grad-", "[grad of scan-python"),
        "test_derivatives_by_a_rule": ("fwd and bwd-grad of chain-python",),
    },
    "test_transforms.py": {
        "test_values_and_runs": (
            "-itself",
            "-scan]",
            "-while_loop]",
            "fori_loop",
            "cond, not",
            "switch",
            "-map]",
            "checkpoint",
            "vmap of vmap",
            "vmap of cond",
            "scan of vmap",
            "dynamic",
        ),
    },
    "test_key_results.py": {"test_under_transformations": TRANSFORMS},
    "test_lists.py": {"test_under_transformations": TRANSFORMS},
    "test_stateful.py": {"test_exactly_once_with_strict_promotion_and_leak_checks": ("scan", "grad", "vmap of vmap")},
    "test_padded.py": {
        "test_each_element_has_its_length": TRANSFORMS,
        "test_the_gradient_is_that_of_the_real_part": (
            "py_function-vmap]",
            "vjp=-vmap]",
            "vjp=-cond",
            "vjp=-shard_map",
        ),
    },
    "test_lifetime.py": {
        "test_a_dropped_program_frees_the_callable": ("-vmap]", "jit of scan", "many calls", "lowered"),
    },
    "test_parallel.py": {
        "test_gradients_on_an_executor_of_an_unknown_kind": ("vmap of grad]", "axis size 0"),
    },
    "test_batches.py": {
        "test_gradients_of_py_function_outside_jit": ("expand_dims-vmap of grad]", "axis size 1", "parallel-grad of"),
        "test_gradients_of_py_function": (
            "sequential-vmap of grad]",
            "axis size 1",
            "grad of nested",
            "broadcast_all-vmap of grad of vmap",
            "parallel-grad of scan",
        ),
        "test_loops_and_branches": ("cond of vmap", "vmap of while", "scan of vmap", "vmap of fori"),
        "test_gradients_of_numpy_functions": ("jacrev", "axis size 0", "nested", "scan of vmap", "parallel"),
    },
    "test_linear_functions.py": {
        "test_against_jax": ("jvp", "jacrev", "linear_transpose", "vmap", "checkpoint"),
    },
    "test_loop_gradients.py": {
        "test_no_tracer_leaks_and_strict_promotion": ("newton",),
        "test_under_the_settings_of_jax": ("enable_checks",),
        "test_any_bound_that_does": ("[8", "[17"),
    },
}
# Cases that are left out of all tests of a file: clusters, the longest pages, and programs that compile slowly.
LEFT_OUT = {
    "test_pools.py": ("dask", "Dask"),
    "test_examples.py": ("docs/recipes",),
    "test_equal_or_refused.py": ("squares of a counter", "while true-traced", "large steps"),
    "test_hostile_inside.py": ("hessian", "in vmap of grad"),
    "test_traced.py": ("linalg", "sort", "inner-scan", "inner-vmap"),
}


def is_quick(file: str, test: str, case: str) -> bool:
    """Whether the selection may contain a case of a test. `case` is the id of the case, or empty."""
    if test in THOROUGH.get(file, {}):
        return False
    if any(part in case for part in LEFT_OUT.get(file, ())):
        return False
    parts = ONLY.get(file, {}).get(test)
    return parts is None or any(part in f"[{case}]" for part in parts)
