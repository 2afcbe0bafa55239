"""All rules of `posexport audit`; a package adds one by an entry point of the group ``posexport.rules``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from posexport.base.registry import Registry

if TYPE_CHECKING:
    from posexport.inspect.audit.repairs.repair import Repair
    from posexport.inspect.audit.rule import Rule

#: by the first digit of a code
GROUPS: Mapping[str, str] = {
    "1": "sizes of the example that stayed in the graph",
    "2": "positions",
    "3": "values and precision",
    "4": "kernels and speed",
    "5": "files of the folder against the graph",
    "6": "the checkpoint against the graph",
    "7": "outputs of calls that should agree",
}

#: code -> the module in `posexport.inspect.audit.rules` with the attribute RULE
_MODULES = {
    "PX101": "baked_size",
    "PX102": "baked_batch",
    "PX103": "fixed_axis",
    "PX104": "constant_output_size",
    "PX105": "unfit_sizes",
    "PX201": "position_table",
    "PX202": "ignored_past",
    "PX203": "first_row",
    "PX204": "missing_offset",
    "PX301": "half_positions",
    "PX302": "half_norm",
    "PX303": "empty_rows",
    "PX304": "unscaled_mask",
    "PX305": "constant_output",
    "PX306": "dead_state",
    "PX307": "frozen_noise",
    "PX308": "lost_epsilon",
    "PX309": "quantized_positions",
    "PX310": "unfit_types",
    "PX311": "mask_axes",
    "PX312": "odd_gelu",
    "PX401": "missing_kernel",
    "PX402": "taken_apart",
    "PX403": "saturating_int8",
    "PX404": "half_on_cpu",
    "PX405": "unfused_attention",
    "PX406": "fixed_input",
    "PX407": "copied_to_cpu",
    "PX408": "too_new",
    "PX409": "open_sizes",
    "PX410": "wide_integers",
    "PX501": "broken_file",
    "PX502": "other_config",
    "PX503": "position_limit",
    "PX504": "rope_frequencies",
    "PX505": "mrope_positions",
    "PX506": "sliding_window",
    "PX507": "other_pooling",
    "PX508": "missing_module",
    "PX509": "causal_embedder",
    "PX510": "unused_features",
    "PX511": "variant",
    "PX512": "short_vocabulary",
    "PX513": "attention_scale",
    "PX514": "unshifted_windows",
    "PX601": "lost_weight",
    "PX602": "unknown_weight",
    "PX603": "differing_weight",
    "PX604": "unlike_checkpoint",
    "PX701": "dependent_rows",
    "PX702": "padding_read",
    "PX703": "failing_size",
    "PX704": "unlike_calls",
    "PX705": "unchanging_output",
    "PX706": "unlike_providers",
    "PX707": "unlike_variant",
}
#: by code, imported on first use
RULES: "Registry[Rule]" = Registry(
    "rules",
    of="posexport.inspect.audit.rule:Rule",
    references={code: f"posexport.inspect.audit.rules.{module}:RULE" for code, module in _MODULES.items()},
)

#: code of a rule -> the module in `posexport.inspect.audit.repairs` with the attribute REPAIR
_REPAIRS = {
    "PX101": "reshape",
    "PX102": "reshape",
    "PX103": "example_constant",
    "PX201": "position_guard",
    "PX301": "half_positions",
    "PX302": "half_norm",
    "PX303": "empty_rows",
    "PX304": "unscaled_mask",
    "PX405": "fused_attention",
}
#: by the rule's code
REPAIRS: "Registry[Repair]" = Registry(
    "repairs",
    of="posexport.inspect.audit.repairs.repair:Repair",
    references={code: f"posexport.inspect.audit.repairs.{module}:REPAIR" for code, module in _REPAIRS.items()},
)
