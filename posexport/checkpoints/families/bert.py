"""BERT, also as a decoder, and the families that kept its names: ERNIE, Megatron-BERT."""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import bert_decoder, encoder
from posexport.checkpoints.mapping import AddRow, Plan

#: without the table of absolute positions
EMBEDDINGS = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.token_type": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
POSITIONS = {"embeddings.encoding": "embeddings.position_embeddings"}
#: a layer without its normalisations, which the families put in different places, and without its positions
SUBLAYERS = {
    "attention.query": "encoder.layer.{i}.attention.self.query",
    "attention.key": "encoder.layer.{i}.attention.self.key",
    "attention.value": "encoder.layer.{i}.attention.self.value",
    "attention.output": "encoder.layer.{i}.attention.output.dense",
    "feedforward.inner": "encoder.layer.{i}.intermediate.dense",
    "feedforward.outer": "encoder.layer.{i}.output.dense",
}
RELATIVE_POSITIONS = {"attention.encoding": "encoder.layer.{i}.attention.self.distance_embedding"}
POST_NORM = {
    "attention_residual.norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "feedforward_residual.norm": "encoder.layer.{i}.output.LayerNorm",
}
FILL_MASK = encoder.FillMaskNames(
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    decoder="cls.predictions.decoder",
    bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
)
HEADS = {
    "cls.predictions.": "the fill-mask head",
    "cls.seq_relationship.": "the next-sentence head",
    "classifier.": "a classification head",
    "qa_outputs.": "the question-answering head",
}


def classifier(prefix: str) -> encoder.ClassifierNames:
    """Its first projection is the pooler."""
    return encoder.ClassifierNames(dense=f"{prefix}.pooler.dense", out="classifier")


def _names(prefix: str) -> encoder.Names:
    return encoder.Names(
        prefix=prefix,
        once=EMBEDDINGS | POSITIONS,
        layer=SUBLAYERS | RELATIVE_POSITIONS | POST_NORM,
        fill_mask=FILL_MASK,
        classifier=classifier(prefix),
    )


def _bert_or_decoder(config: Config, task: str) -> Plan:
    if bert_decoder.is_decoder(config, task):
        return bert_decoder.plan(config, task, "bert", SUBLAYERS | POST_NORM, FILL_MASK)
    return _bert(config, task)


def _bert(config: Config, task: str, prefix: str = "bert") -> Plan:
    settings = encoder.settings(config)
    encoding = encoder.by_position_type(config, settings)
    return encoder.plan(config, task, _names(prefix), settings, encoding, decides=("position_embedding_type",))


def _ernie(config: Config, task: str) -> Plan:
    """With ``use_task_id`` every token also gets row 0 of a task table: what transformers adds without task ids."""
    plan = _bert(config, task, "ernie")
    if config.flag("use_task_id", False):
        row = AddRow("ernie.embeddings.task_type_embeddings.weight", config.size("task_type_vocab_size", 3))
        types = "encoder.embeddings.token_type.weight"
        plan.origins[types] = plan.origins[types].then(row)
    return plan


def _megatron_bert(config: Config, task: str) -> Plan:
    """Normalises before each sublayer and once at the end; the embeddings are not normalised."""
    settings = encoder.settings(config, norm="pre", embedding_norm=False, final_norm=True)
    norms = {
        "attention_residual.norm": "encoder.layer.{i}.attention.ln",
        "feedforward_residual.norm": "encoder.layer.{i}.ln",
    }
    names = encoder.Names(
        prefix="bert",
        once=EMBEDDINGS | POSITIONS | {"final_norm": "encoder.ln"},
        layer=SUBLAYERS | RELATIVE_POSITIONS | norms,
        fill_mask=FILL_MASK,
        classifier=classifier("bert"),
    )
    encoding = encoder.by_position_type(config, settings)
    return encoder.plan(config, task, names, settings, encoding, decides=("position_embedding_type",))


BERT = encoder.family(
    "bert",
    _bert_or_decoder,
    "bert",
    pooler="pooler.dense",
    other_heads=HEADS,
    architectures={"LMHeadModel": bert_decoder.GENERATION, **encoder.ARCHITECTURES},
    allowed=("is_decoder",),
)
ERNIE = encoder.family("ernie", _ernie, "ernie", pooler="pooler.dense", other_heads=HEADS)
MEGATRON_BERT = encoder.family("megatron-bert", _megatron_bert, "bert", pooler="pooler.dense", other_heads=HEADS)
