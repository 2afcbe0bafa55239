"""What transformers computes otherwise where a head reads its answer at a padded token, as sentences for the user."""

from posexport.models.definition import Definition
from posexport.models.xlnet import LastTokenClassification
from posexport.sources.huggingface.families.base import AnyFamily

#: families whose padded tokens attend to others in transformers than here, which shows where a head reads one
_OTHER_PADDED_TOKENS = ("deberta", "deberta-v2", "modernbert")


def padding_remarks(family: AnyFamily, model: Definition) -> list[str]:
    """One sentence where the model's answer depends on the side of padding and transformers' would be another one.

    The proof leaves these answers out: no tokenizer of these families pads on that side by default.
    """
    if model.reads_first_token and family.model_type in _OTHER_PADDED_TOKENS:
        return [
            f"{family.model_type} is answered at token 0: pad texts on the right, as its tokenizer does; padded on the "
            "left both transformers and the bundle read a padded token there, and their answers differ"
        ]
    if isinstance(getattr(model, "head", None), LastTokenClassification):
        return [
            f"{family.model_type} is answered at the last token that is not padding; transformers reads the last one, "
            "which is the same where padding stands on the left, as its tokenizer puts it, and a padded token where it "
            "stands on the right"
        ]
    return []
