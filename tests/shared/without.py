"""What a capability's absence takes away from the tests: the one table of what is skipped without it.

`JAXPYOP_WITHOUT=name python -m pytest tests/...` skips these tests, and so does a JAX that lacks the capability. The
guide has the same list for users, in docs/versions.md. What is left has to pass.
"""

import importlib.util

# Tests of `cond`s and loops under `vmap` with effects in them.
BATCHED_CONDS = (
    "test_a_cond_on_one_predicate_for_the_whole_batch",
    "test_a_predicate_that_differs_is_refused_and_the_error_names_when",
    "test_a_switch_on_one_index",
    "test_a_while_loop_of_different_lengths_is_refused_and_the_error_names_when",
    "test_results_and_gradients_of_such_a_cond",
)


def examples(*sections):
    """The examples of these sections: a page and a heading each."""
    return {"tests/pages/test_examples.py": tuple(f"test_blocks_run_and_print_what_is_shown[{s}]" for s in sections)}


# For each capability, what is different without it, and the tests of that by file.
WITHOUT = {
    "own_traces": (
        "a differentiated function that asks for values raises, traced mode is refused, and there is no tape",
        {
            "tests/saved/test_programs.py": (
                "test_another_process_gets_the_same[gradient]",
                "test_another_process_gets_the_same[value and gradient]",
                "test_another_process_gets_the_same[jvp]",
                "test_another_process_gets_the_same[hessian]",
                "test_another_process_gets_the_same[gradient of a loaded program]",
                "test_another_process_gets_the_same[cut gradient of a loaded program]",
                "test_another_process_gets_the_same[vmap of a gradient]",
                "test_another_process_gets_the_same[gradient with when]",
                "test_another_process_gets_the_same[a checkpoint]",
            ),
            "tests/saved/test_files.py": ("test_a_file_of_format_1",),
            "tests/saved/test_export.py": (
                "test_a_record_is_handed_over_in_a_loaded_gradient",
                "test_gradients_stop_where_they_did",
            ),
            "tests/api/test_report.py": (
                "test_equal_to_counters[auto-grad-tape]",
                "test_equal_to_counters[auto-jit of grad-tape]",
                "test_equal_to_counters[auto-vmap of grad-tape]",
                "test_equal_to_counters[auto-jacrev-tape]",
                "test_equal_to_counters[auto-cut grad-tape]",
                "test_other_ways_to_run[differentiated_twice]",
                "test_other_ways_to_run[on_the_lazy_tape]",
                "test_a_traced_function_has_traces_and_no_calls",
            ),
            "tests/api/test_input_state.py": (
                "test_a_changed_input_warns_once[jit-traced]",
                "test_a_changed_input_warns_once[grad-traced]",
            ),
            "tests/cut/test_tables.py": (
                "test_a_body_of_the_tape_and_its_gradient[float_of_sum]",
                "test_a_body_of_the_tape_and_its_gradient[every_way_to_look]",
                "test_a_body_of_the_tape_and_its_gradient[numpy_detour]",
                "test_a_body_of_the_tape_and_its_gradient[numpy_output]",
                "test_derivatives_of_a_body_that_looks_at_its_values",
            ),
            "jaxpyop/_tape/recording.py": ("record",),
            "tests/api/test_closures.py": ("test_a_traced_value_in_a_closure_is_named",),
            "tests/api/test_error_inputs.py": ("test_the_inputs_are_shown_once",),
            "tests/api/test_key_results.py": ("test_traced_mode_and_when",),
            "tests/api/test_names.py": ("test_traced_in_the_compiled_program",),
            "tests/api/test_padded.py": ("test_traced_mode", "test_traced_mode_with_when"),
            "tests/api/test_shapes.py": (
                "test_a_stateless_py_function_gives_its_own_shape",
                "test_the_same_under_vmap",
            ),
            "tests/api/test_source_lines.py": ("test_a_gradient", "test_an_op", "test_saved_residuals"),
            "tests/gradients/test_constants.py": (
                "test_a_result_of_integers_has_no_derivative_to_lose",
                "test_a_result_that_is_meant_as_a_constant_is_silent",
                "test_a_result_without_a_derivative_warns_once_for_each_op",
                "test_allowed",
                "test_an_error",
                "test_another_op_at_the_same_line_says_it_too",
                "test_it_is_silent",
                "test_it_warns_once_for_a_line",
                "test_nothing_is_said_where_nothing_is_differentiated",
                "test_the_warning_is_at_the_users_line_and_each_line_has_its_own",
                "test_what_is_no_error_either",
            ),
            "tests/gradients/test_gradients.py": (
                "test_derivatives_under_every_transformation",
                "test_gradient",
                "test_higher_derivatives",
                "test_many_gradients_from_threads",
                "test_other_first_derivatives[float(x)-jacrev]",
                "test_other_first_derivatives[float(x)-vjp]",
                "test_other_first_derivatives[np.asarray(x)-jacrev]",
                "test_other_first_derivatives[np.asarray(x)-vjp]",
                "test_other_first_derivatives[constant-jacrev]",
                "test_other_first_derivatives[constant-vjp]",
                "test_random_inputs",
                "test_strict_promotion_and_leak_checks",
                "test_the_body_runs_once_per_differentiated_step",
                "test_the_body_runs_once_per_step_of_a_differentiated_scan",
                "test_what_the_body_keeps_of_the_abstract_run_is_explained",
            ),
            "tests/gradients/test_gradients_inputs.py": (
                "test_a_value_taken_out_as_a_numpy_array_is_a_constant",
                "test_inputs_without_a_tangent_are_plain_arrays_and_not_recorded",
            ),
            "tests/gradients/test_identity.py": (
                "test_a_trace_that_is_dropped_unclosed_costs_one_identity_only",
                "test_a_tracer_of_an_earlier_recording_is_dead",
                "test_steps_leave_no_entries_behind",
                "test_threads_leave_no_entries_behind",
            ),
            "tests/gradients/test_lazy.py": (
                "test_a_function_that_gains_nothing_is_recorded_eagerly",
                "test_a_function_that_gains_later_is_recorded_lazily_again",
                "test_the_record_of_a_large_array_is_the_array",
                "test_after_an_error_the_next_run_is_right",
                "test_inputs_that_are_constants",
                "test_same_as_the_eager_tape",
                "test_stretches_are_cleared",
                "test_through_the_op",
            ),
            "tests/gradients/test_no_compilation.py": (
                "test_a_number_that_comes_again_is_on_the_device",
                "test_an_operation_is_the_jitted_function_that_jax_has_for_it",
                "test_what_jax_expands_is_not_linearized_in_each_step",
            ),
            "tests/gradients/test_records_kept.py": (
                "test_a_training_run_leaves_little",
                "test_each_body_runs_once",
                "test_outside_jit_a_pullback_keeps_its_record",
                "test_records_of_one_line_share_it",
                "test_two_programs_in_turn_run_each_body_once",
            ),
            "tests/gradients/test_tape.py": (
                "test_pullback",
                "test_pullback_with_missing_cotangents",
                "test_pushforward",
                "test_pushforward_with_missing_tangents",
                "test_second_order_looking_at_values",
            ),
            "tests/gradients/test_tape_compiled.py": (
                "test_arrays_that_a_jitted_function_closes_over_are_operands",
                "test_arrays_that_a_jitted_function_closes_over_are_those_of_the_call",
                "test_compiled_on_second_sight",
                "test_constants_are_inputs",
                "test_fresh_lambdas_in_scan_share_one_function",
                "test_types_are_part_of_the_key",
            ),
            "tests/gradients/test_tape_effects.py": (
                "test_a_tracer_that_leaks_is_a_value_only",
                "test_exceptions_leave_no_trace",
                "test_integers_are_not_recorded",
                "test_mutable_arrays_are_refused",
                "test_nested_python_functions_run_once",
                "test_numpy_constants_may_be_written_later",
                "test_shard_map",
                "test_what_has_no_reverse_mode_raises_in_the_backward_pass",
            ),
            "tests/gradients/test_vjp.py": (
                "test_a_tracer_kept_by_the_body_is_refused_or_still_has_its_value",
                "test_errors_of_a_py_function_body_under_grad",
            ),
            "tests/host/test_batches.py": ("test_a_differentiated_stateful_batch_runs_once_per_element",),
            "tests/host/test_errors.py": ("test_the_original_comes_out_of_every_program",),
            "tests/host/test_ordered_programs.py": ("test_programs",),
            "tests/host/test_pools.py": (
                "test_each_element_of_a_chunk_has_a_record_of_its_own",
                "test_gradients_recompute_in_other_processes",
            ),
            "tests/host/test_stateful.py": ("test_a_differentiated_stateful_op_runs_once",),
            "tests/host/test_when.py": ("test_gradients",),
            "tests/traced/test_outside.py": ("test_instead_of_a_combiner", "test_what_is_advised_works"),
            **examples(
                "README.md The functions",
                "README.md Gradients",
                "docs/guide/functions.md `py_function`: JAX arrays and gradients",
                "docs/guide/gradients.md The one pitfall",
                "docs/guide/gradients.md The record of a step",
                "docs/guide/traced.md Traced mode",
                "docs/guide/traced.md Loops",
                "docs/guide/traced.md Traced if possible",
                "docs/guide/traced.md How the function is traced",
                "docs/guide/zero_gradient.md Find the line",
                "docs/recipes/flax.md A Python function in the loss",
            ),
        },
    ),
    "trace_identity": (
        "each recording leaves an entry in JAX's caches",
        {
            "tests/gradients/test_identity.py": (
                "test_open_traces_are_told_apart",
                "test_steps_leave_no_entries_behind",
                "test_threads_leave_no_entries_behind",
            ),
        },
    ),
    "named_axes": (
        "a function in an eager vmap sees its axis names",
        {
            "tests/traced/test_outside.py": (
                "test_a_body_is_outside_of_the_axes_around_it",
                "test_a_numpy_body_is_outside_too",
            ),
        },
    ),
    "lazy_tape": (
        "both tapes are eager",
        {
            "tests/gradients/test_lazy.py": (
                "test_a_function_that_gains_nothing_is_recorded_eagerly",
                "test_a_function_that_gains_later_is_recorded_lazily_again",
                "test_the_record_of_a_large_array_is_the_array",
                "test_stretches_are_cleared",
            ),
        },
    ),
    "devices_in_lowering": (
        "a program over several devices is refused, except in jax.shard_map",
        {
            "tests/host/test_devices.py": ("test_on_four_devices",),
            "tests/pages/test_examples.py": ("test_scripts_print_what_is_shown[docs/guide/devices.md shards.py]",),
        },
    ),
    "linearize_rule": (
        "jax.grad traces the forward mode",
        {
            "tests/gradients/test_gradients.py": ("test_reverse_mode_does_not_trace_the_jvp",),
        },
    ),
    "checkpoint_rule": (
        "the function runs again for the backward pass, with other random numbers",
        {
            "tests/gradients/test_run_again.py": (
                "test_in_a_checkpoint_the_gradient_is_that_of_the_run_that_gave_the_value",
            ),
        },
    ),
    "loop_rule": (
        "in the derivative of a loop, a stateful function runs once if its inputs are the same in each iteration",
        {
            "tests/host/test_stateful.py": (
                "test_the_derivative_of_a_loop_runs_it_in_each_iteration",
                "test_the_derivative_of_a_loop_keeps_a_call_without_results",
            )
        },
    ),
    "zero_copy": (
        "the program calls pure_callback and io_callback, which copy",
        {
            "tests/api/test_report.py": ("test_route_elements_and_bytes",),
            "tests/api/test_config.py": (
                "test_the_transport_decides_what_a_program_calls",
                "test_ordered_calls_go_the_same_way_with_a_token",
            ),
            "tests/api/test_source_lines.py": ("test_a_gradient", "test_an_op"),
            "tests/host/test_lowering_time.py": ("test_many_ops_are_lowered_as_fast_as_by",),
            "tests/host/test_ordered_programs.py": ("test_they_take_the_buffers_as_they_are",),
            "tests/host/test_out.py": ("test_nothing_is_copied",),
            **examples("docs/guide/errors.md Errors", "docs/guide/report.md Counts and times of your ops"),
        },
    ),
    "own_effects": (
        "the effect is that of io_callback, and the errors are JAX's",
        {
            "tests/host/test_batches.py": ("test_where_jax_refuses_effects",),
            "tests/host/test_stateful.py": (
                "test_logging_in_a_differentiated_loop",
                "test_the_derivative_of_a_loop_keeps_a_call_without_results",
                "test_where_jax_refuses_effects_the_error_names_the_op_and_the_cure",
            ),
            "tests/host/test_when.py": BATCHED_CONDS,
        },
    ),
    "batched_conds": (
        "JAX refuses a vmap of such a cond, with an error of its own",
        {
            "tests/host/test_batches.py": ("test_where_jax_refuses_effects",),
            "tests/host/test_stateful.py": ("test_where_jax_refuses_effects_the_error_names_the_op_and_the_cure",),
            "tests/host/test_when.py": BATCHED_CONDS,
        },
    ),
    "combiners": (
        "XLA ends the process",
        {"tests/traced/test_outside.py": ("test_a_combiner_is_refused", "test_a_combiner_is_refused_outside_of_jit")},
    ),
    "jaxpr_tools": (
        "JAX evaluates what a jitted function does not use",
        {
            "tests/gradients/test_no_compilation.py": ("test_a_number_that_comes_again_is_on_the_device",),
        },
    ),
    "hidden_frames": (
        "source lines are in the files of jaxpyop",
        {
            "tests/api/test_source_lines.py": ("test_a_gradient", "test_an_op", "test_saved_residuals"),
        },
    ),
    "quick_arrays": (
        "JAX compiles a program for a new shape",
        {
            "tests/host/test_transfer.py": ("test_a_direct_call_of_a_new_shape_compiles_nothing",),
        },
    ),
}


def reason_to_skip(path: str, test: str, case: str, off: set[str]) -> str | None:
    """Says why a test is skipped on a JAX without the capabilities `off`, None if it has to pass.

    Args:
        path: its file.
        test: its function.
        case: the function with the id of the case, as pytest shows it.
        off: the names of the capabilities.
    """
    for name in sorted(off & WITHOUT.keys()):
        reason, tests = WITHOUT[name]
        if {test, case} & set(tests.get(path, ())):
            return f"without the capability {name}: {reason}"
    return None


_HAS_FLATBUFFERS = importlib.util.find_spec("flatbuffers") is not None


def needs_flatbuffers(path: str, test: str) -> str | None:
    """Says why a test of saved programs is skipped: `jax.export` needs a package that is not here."""
    saves = path.startswith("tests/saved/") or "_saved.exported" in test or "export.md" in test
    return "pip install '.[export]': jax.export needs flatbuffers" if saves and not _HAS_FLATBUFFERS else None
