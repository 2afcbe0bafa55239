"""Sentences for the user on what transformers computes in another way than a definition, whatever config.json says.

Differences that depend on a value of config.json are remarked where it is read (`Config.remark`);
``docs/papers-and-code.md`` lists all.
"""

from posexport.checkpoints.families.family import Family
from posexport.models.definition import Definition
from posexport.nn.heads import SequenceClassification

#: families in which padded tokens attend to different keys in transformers, visible if a head reads a padded token
_OTHER_PADDED_TOKENS = ("deberta", "deberta-v2", "modernbert", "xlnet")


def difference_remarks(family: Family, model: Definition) -> list[str]:
    return [*_by_length(model), *_padded(family, model)]


def _by_length(model: Definition) -> list[str]:
    """Rotations that depend on the length of the input: their state and the batch's longest row count there."""
    if not any(encoding.length_dependent for encoding in model.encodings):
        return []
    return [
        "rotations depend on the length of each row in the call at hand; transformers takes the longest row of the "
        "batch, and with dynamic scaling what it has seen in earlier calls, so there a row in a batch differs from the "
        "same row alone"
    ]


def _padded(family: Family, model: Definition) -> list[str]:
    """A head that reads its output at a padded token.

    The proof leaves these outputs out.
    """
    if model.reads_first_token and family.model_type in _OTHER_PADDED_TOKENS:
        return [
            f"{family.model_type} is answered at token 0: pad texts on the right, as the bundle does; padded on the "
            "left both transformers and the bundle read a padded token there, and their answers differ"
        ]
    if family.model_type == "xlnet" and isinstance(getattr(model, "head", None), SequenceClassification):
        return [
            f"{family.model_type} is answered at the last token that is not padding; transformers reads the last one, "
            "which is the same where padding stands on the left, as its tokenizer puts it, and a padded token where it "
            "stands on the right"
        ]
    return []
