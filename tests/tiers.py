"""Which tests that show what a shorter one shows too are left to the long tier, so that the short one stays short.

What is of the long tier by its nature (installs, every combination) is marked ``all`` where it is written. Here are
those that only time keeps out of every change: each commit's `--sample` draws some of them.
"""

from pathlib import Path

import pytest

#: by file: the test, and of a test with parameters the parts of ids that stay in the short tier
LONG: dict[str, dict[str, tuple[str, ...]]] = {
    "test_agreement": {
        "test_an_encoding_is_compared_in_every_precision": (),
        "test_the_manifest_says_what_a_precision_costs": (),
        "test_verify_proves_by_the_weights_in_the_file": (),
    },
    "test_all_padding": {
        "test_bundles": ("decoder-rope-cpu-fp32",),
    },
    "test_api": {
        "test_umask_is_never_touched": (),
    },
    "test_as_transformers": {
        "test_the_graph_rounds_as_transformers_does": ("[cpu]",),
    },
    "test_axes": {
        "test_bundles_answer_as_the_module_at_other_sizes": ("sound",),
    },
    "test_bad_input": {
        "test_a_limit_that_equals_the_table_is_kept": (),
    },
    "test_bad_modules": {
        "test_a_bad_module_is_told_its_line_and_what_to_write": ("fails_at_run_time",),
        "test_what_torch_follows_today_is_right": (),
    },
    "test_banned": {
        "test_a_configuration_that_is_unsound_is_refused": (),
        "test_a_manifest_lists_the_encodings_of_layers_that_differ": (),
        "test_generation_obeys_the_configuration": (),
    },
    "test_biases": {
        "test_lowerings_agree_with_pytorch_past_a_block": (),
    },
    "test_blocks": {
        "test_a_tied_head_is_stored_once_in_8_bits": (),
    },
    "test_branches": {
        "test_a_branch_that_no_input_reaches_is_not_written": (),
        "test_control_flow_has_names_that_are_unique_in_the_file": (),
    },
    "test_caching": {
        "test_a_static_cache_is_proven_for_terms_of_attention": (),
        "test_each_way_is_proven_against_its_own_definition": (),
        "test_the_graph_refuses_a_mask_that_is_not_over_past_and_new": (),
        "test_the_graph_refuses_more_tokens_than_places": (),
        "test_the_graph_refuses_positions_beyond_the_table": ("static",),
    },
    "test_canine": {
        "test_one_graph_is_right_at_every_length": (),
    },
    "test_chain": {
        "test_a_cache_of_fixed_size": (),
        "test_a_decoder_alone_takes_no_decoder_prompts": (),
        "test_a_full_table_lets_rows_go_on_alone": (),
        "test_it_answers_as_pytorch_does": (),
    },
    "test_cli": {
        "test_a_source_that_cannot_be_the_bundles_is_told_so": (),
    },
    "test_compare": {
        "test_every_form_shows_every_kind_of_row": (),
        "test_positions_are_learned_and_nothing_is_learned_without": (),
        "test_questions_that_do_not_come_up_are_no_loss_and_no_accuracy": (),
    },
    "test_convert": {
        "test_a_model_of_every_other_encoding_is_checked": ("encoder-dynamic-bias", "encoder-t5"),
        "test_beyond_the_trained_length": ("encoder-absolute",),
        "test_every_kind_of_attention_is_checked_on_both_sides_of_its_switches": (),
    },
    "test_criterion_power": {
        "test_a_loss_at_every_point_is_found_though_no_point_exceeds_its_tolerance": (),
        "test_a_wrong_number_is_found": ("bucket_edge",),
        "test_another_order_of_summation_is_accepted": (),
        "test_positions_of_one_layer_off_by_one_are_found": (),
        "test_wrong_attention_of_one_layer_is_found": (),
    },
    "test_drop_in": {
        "test_a_file_that_is_there_stays_where_the_proof_misses": (),
        "test_a_limit_of_a_dim_is_a_limit_of_the_file": (),
        "test_a_renamed_graph_is_compared_with_the_proven_one": (),
        "test_the_form_gives_the_module_s_values_under_the_names_that_were_asked_for": ("nested cache",),
        "test_weights_stand_beside_the_file_where_that_is_asked_for": (),
    },
    "test_emulation": {
        "test_positions_in_half_are_found": (),
        "test_verify_emulates_a_float32_bundle": (),
    },
    "test_encoder_decoder": {
        "test_a_step_does_not_read_the_encoder": (),
        "test_a_wrong_number_in_either_graph_is_located": (),
        "test_an_encoder_of_features": (),
        "test_large_weights_stand_beside_their_graph": (),
        "test_swapped_feeds_fail": (),
        "test_the_whole_grid_with_limits_in_both_parts": (),
    },
    "test_explain": {
        "test_an_encoder_by_blocks": (),
        "test_parts_are_told_apart": (),
        "test_weights_in_a_file_of_their_own": (),
    },
    "test_export": {
        "test_blockwise_at_the_edges_of_its_blocks": (),
        "test_functions_are_visible_and_standard_inside": ("shaw-kv",),
        "test_opsets_that_the_runtime_takes": (),
    },
    "test_generate": {
        "test_a_batch_gives_what_each_prompt_gives_alone": ("[absolute-options1",),
        "test_a_bundle_that_is_no_decoder_says_what_it_is": (),
        "test_a_row_that_outgrows_longrope_is_read_again": (),
        "test_no_recompute_refuses_what_would_need_it": (),
        "test_the_tokens_are_those_of_full_passes_by_pytorch": ("[rope",),
    },
    "test_gptq": {
        "test_convert": (),
        "test_several_precisions_in_a_layout": (),
    },
    "test_gpu_suite": {
        "test_without_cuda_it_says_what_is_missing": (),
    },
    "test_greedy": {
        "test_every_token_is_pytorchs": (),
    },
    "test_guard": {
        "test_an_encoder_input_has_a_guard_of_its_own": (),
    },
    "test_half_padding": {
        "test_rows_of_padding_are_right_in_half_precision": (),
    },
    "test_half_precision": {
        "test_a_cache_is_stored_in_half_precision": (),
        "test_as_exact_as_pytorch_with_float32_positions": (),
        "test_two_layers_convert": ("decoder-rope-fp16-cuda",),
    },
    "test_half_proof": {
        "test_a_foreign_graph_is_judged_by_what_it_stores": (),
        "test_what_overflows_in_pytorch_too_is_not_proven": (),
    },
    "test_hub": {
        "test_a_cached_id_is_converted_without_network": (),
    },
    "test_int8_rows": {
        "test_encoder": (),
        "test_position_projections_stay_and_tied_embeddings_are_stored_once": (),
        "test_static_scales_must_fit_texts": (),
    },
    "test_int8_smoothing": {
        "test_a_default_conversion_looks_at_random_tokens": (),
    },
    "test_keep_float": {
        "test_a_part_of_a_packed_projection": (),
        "test_what_leaves_nothing": (),
        "test_word_embeddings": ("int8",),
    },
    "test_large": {
        "test_a_bundle_with_weights_outside_is_proven_and_works_elsewhere": (),
        "test_a_weight_that_is_used_twice_is_outside_once": (),
    },
    "test_layouts": {
        "test_a_manifest_whose_later_part_gives_something_else_is_refused": (),
        "test_calls_go_to_the_graph_that_is_for_them": (),
        "test_optimum_s_files_and_names": (),
        "test_weights_stand_once": (),
    },
    "test_longformer": {
        "test_one_graph_is_right_at_every_length": (),
    },
    "test_lowering": {
        "test_a_cache_of_fixed_size_for_every_head": (),
        "test_a_head_of_an_odd_size_is_refused_to_the_operator": (),
        "test_every_lowering_of_a_cache_of_fixed_size": ("decoder-rope",),
        "test_every_lowering_of_a_decoder": ("decoder-cope",),
        "test_every_lowering_of_an_encoder": ("encoder-nezha",),
    },
    "test_median": {
        "test_an_error_at_one_length_that_is_rounding_passes": (),
        "test_the_same_error_beyond_a_switch_fails": (),
    },
    "test_packed_heads": {
        "test_heads_apart_behind_a_cache": (),
        "test_left_as_it_is": ("encoder-rope-settings0-options0",),
        "test_no_axis_is_turned_around_attention": ("decoder-rope",),
    },
    "test_parity": {
        "test_another_failure_is_no_guard": (),
        "test_cross_attention_is_proven_with_a_second_length": (),
        "test_numbering_by_ids_is_no_failure": (),
        "test_padding_that_is_attended_to_fails_where_there_is_padding": (),
        "test_rows_that_are_mixed_up_fail_in_batches": (),
    },
    "test_parity_locate": {
        "test_a_wrong_end_is_not_blamed_on_the_modules": (),
        "test_layers_that_share_weights_are_told_apart": (),
    },
    "test_passes": {
        "test_onnx_runtime_knows_the_order_that_portable_graphs_get": (),
        "test_same_numbers_of_a_whole_model": ("transformer-xl", "llama, static"),
    },
    "test_plain_decoders": {
        "test_an_encoder_is_no_decoder_and_nothing_is_said_of_it": (),
    },
    "test_plain_variants": {
        "test_the_graph_has_kv_heads_once": (),
        "test_they_convert_with_proof_and_generate": (),
    },
    "test_plain_windows": {
        "test_other_calls_in_long_inputs_leave_the_cache_out": (),
        "test_the_users_own_forward_judges_the_decoder_made_of_it": ("none", "ragged"),
    },
    "test_position_bias": {
        "test_it_is_a_term": (),
        "test_what_is_nearly_so_is_left": (),
    },
    "test_position_rounding": {
        "test_a_rounding_of_positions_is_seen": ("slopes", "log buckets of DeBERTa"),
        "test_right_graphs_have_none": (),
    },
    "test_projections_quantized": {
        "test_a_weight_that_is_stored_and_there_as_it_is_too": (),
        "test_heads_of_definitions": (),
        "test_nothing_shrinks": (),
    },
    "test_provenance": {
        "test_nothing_of_the_machine_is_in_a_checkpoint_s_bundle": (),
        "test_weights_in_a_file_of_their_own_are_the_same_bytes": (),
    },
    "test_quantized_mutants": {
        "test_right_graphs_pass_and_mistakes_are_found": ("encoder-absolute-int8-cpu",),
    },
    "test_range": {
        "test_the_figure_is_the_largest_of_the_modules_activations": (),
    },
    "test_rates": {
        "test_a_round_has_every_builtin_model_and_every_family": (),
    },
    "test_recipe": {
        "test_a_lone_file_has_its_recipe_too": (),
        "test_the_recipe_stands_in_manifest_and_graph": (),
        "test_verify_rebuilds_every_option_alone_and_in_pairs": ("static+target",),
        "test_verify_rebuilds_the_task": (),
        "test_verify_rebuilds_what_happens_beyond_the_table": ("clip",),
    },
    "test_recognised": {
        "test_it_is_recognised_and_right": ("Eager-cpu",),
        "test_what_is_left_says_why": (),
    },
    "test_recognised_positions": {
        "test_a_portable_graph_keeps_the_weights": (),
        "test_a_projection_that_is_read_elsewhere_stays": (),
        "test_joint_projections_pack": (),
        "test_parts_of_a_weight_are_weights": (),
        "test_scores_by_distance_are_ours": ("KeyQuery",),
        "test_their_values_are_right": (),
        "test_they_are_right_up_to_the_end_and_around_it": (),
        "test_what_is_left_as_a_mask_is_right": (),
        "test_what_is_nearly_so_is_left": (),
    },
    "test_recognised_values": {
        "test_what_is_nearly_so_is_left": (),
    },
    "test_relative_terms": {
        "test_layers_share_the_table_and_not_the_maps": (),
        "test_lowerings_agree_with_the_definition": (),
    },
    "test_replace": {
        "test_a_bias_is_attention_s_own": (),
    },
    "test_rotary_by_hand": {
        "test_it_is_a_rotation": ("Signed",),
        "test_what_is_nearly_so_is_left": (),
    },
    "test_rotation_graphs": {
        "test_a_model_of_float32_runs_without_casts_around_rotations": (),
        "test_images_are_proven_with_the_operators": (),
        "test_inlined_without_operators_that_few_runtimes_know": (),
        "test_one_node_a_rotation_and_one_set_of_cosines": (),
        "test_proven_with_every_way": (),
    },
    "test_sampling": {
        "test_probabilities_are_those_of_the_definition": (),
    },
    "test_sinks": {
        "test_blocks_of_queries_have_the_sink_too": (),
        "test_sinks_and_windows_are_proven": (),
    },
    "test_steps": {
        "test_a_decoders_proof_has_64_steps": (),
        "test_a_drift_that_only_many_steps_show_is_found": ("1.0",),
        "test_an_encoder_that_promises_it_fails": (),
        "test_fewer_steps_where_the_table_ends": (),
        "test_other_weights_fail_both": (),
        "test_without_logits_or_a_cache_there_are_no_steps": (),
    },
    "test_twelve_modules": {
        "test_it_is_recognised_and_right": ("sequence_first",),
    },
    "test_unused_slots": {
        "test_a_buffer_that_nobody_cleared_is_written_in_place": (),
        "test_the_proof_finds_a_graph_that_reads_unused_slots": ("used_context",),
        "test_what_unused_slots_hold_never_matters": (),
    },
    "test_user_modules": {
        "test_a_limit_can_be_made_smaller_not_larger": (),
        "test_the_limit_is_proven_and_guarded": ("table",),
        "test_what_fails_later_is_one_sentence_too": ("one_length", "grows_later", "many_calls", "branches"),
        "test_without_a_limit_the_verdict_says_how_far_it_goes": (),
    },
    "test_verdict": {
        "test_chosen_lengths_are_checked_and_not_proven": (),
        "test_the_thread_s_denormals_are_as_before_around_every_run": (),
    },
    "test_vision": {
        "test_the_graph_takes_other_sizes": (),
    },
    "test_windowed": {
        "test_a_graph_for_any_image": (),
    },
}


def mark(items: list[pytest.Item]) -> None:
    """Mark ``all`` what is named here.

    Raises:
        UsageError: of the whole suite, a name that no test has or a part that no id has.
    """
    named = {(stem, test, part) for stem, tests in LONG.items() for test, kept in tests.items() for part in ("", *kept)}
    used: set[tuple[str, str, str]] = set()
    for item in items:
        stem, test = item.path.stem, getattr(item, "originalname", item.name)
        kept = LONG.get(stem, {}).get(test)
        if kept is not None:
            here = [part for part in kept if part in item.name]
            used |= {(stem, test, part) for part in ("", *here)}
            if not here:
                item.add_marker(pytest.mark.all)
    whole = {item.path for item in items} >= set(Path(__file__).parent.rglob("test_*.py"))
    if whole and named != used:
        raise pytest.UsageError(f"tests/tiers.py names what is no test: {sorted(named - used)}")
