"""Options of transformers' ``generate`` that posexport does not support, with the reason."""

_ASSISTED = "assisted decoding needs a second model or draft tokens"
_CONSTRAINED = "constrained beam search is not supported"
_GROUPS = "diverse beam search in groups is not supported"
_CALLABLE = "functions are not called during generation"
_OUTPUTS = "scores, attentions and hidden states of steps are not kept"

#: by the name of the option
UNSUPPORTED: dict[str, str] = {
    "guidance_scale": "classifier-free guidance needs a second pass of the model",
    "negative_prompt_ids": "classifier-free guidance needs a second pass of the model",
    "watermarking_config": "texts are not watermarked",
    "num_beam_groups": _GROUPS,
    "diversity_penalty": _GROUPS,
    "penalty_alpha": "contrastive search is not supported",
    "dola_layers": "DoLa decoding reads the logits of other layers",
    "constraints": _CONSTRAINED,
    "force_words_ids": _CONSTRAINED,
    "token_healing": "the end of a prompt is not tokenized again",
    "max_time": "generation ends by tokens, not by time",
    "assistant_model": _ASSISTED,
    "prompt_lookup_num_tokens": _ASSISTED,
    "assistant_early_exit": _ASSISTED,
    "use_mtp": _ASSISTED,
    "speculation_type": _ASSISTED,
    "custom_generate": "custom code of a checkpoint is never run",
    "prefix_allowed_tokens_fn": _CALLABLE,
    "logits_processor": _CALLABLE,
    "stopping_criteria": _CALLABLE,
    "output_scores": _OUTPUTS,
    "output_logits": _OUTPUTS,
    "output_attentions": _OUTPUTS,
    "output_hidden_states": _OUTPUTS,
    "return_dict_in_generate": "a Generation is returned always",
    "pad_token_id": "completions are lists without padding",
    "use_cache": "the KV cache is used always",
    "cache_implementation": "the bundle's KV cache is used (convert --cache)",
    "forced_decoder_ids": "give language and task, or decoder_prompts",
    "decoder_start_token_id": "give decoder_prompts, lists of ids that begin with it",
    "bos_token_id": "the tokenizer begins prompts",
    "no_speech_threshold": "the sound is generated from as it is, without a fallback",
    "logprob_threshold": "the sound is generated from as it is, without a fallback",
    "compression_ratio_threshold": "the sound is generated from as it is, without a fallback",
    "condition_on_prev_tokens": "each window of a sound is generated from alone",
    "prompt_ids": "give decoder_prompts, lists of ids that begin with them",
    "return_token_timestamps": "timestamps of tokens need the cross attention's weights",
    "low_memory": "all beams are computed in one batch",
}
