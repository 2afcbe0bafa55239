"""BERT and the families that kept its names: ERNIE, Megatron-BERT."""

from posexport.sources.huggingface.families.family import ClassifierNames, Family, FillMaskNames

EMBEDDINGS = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.token_type": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "embeddings.encoding": "embeddings.position_embeddings",
}
#: a layer without its normalisations, which the families put in different places
SUBLAYERS = {
    "attention.query": "encoder.layer.{i}.attention.self.query",
    "attention.key": "encoder.layer.{i}.attention.self.key",
    "attention.value": "encoder.layer.{i}.attention.self.value",
    "attention.output": "encoder.layer.{i}.attention.output.dense",
    "attention.encoding": "encoder.layer.{i}.attention.self.distance_embedding",
    "feedforward.inner": "encoder.layer.{i}.intermediate.dense",
    "feedforward.outer": "encoder.layer.{i}.output.dense",
}
POST_NORM = {
    "attention_residual.norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "feedforward_residual.norm": "encoder.layer.{i}.output.LayerNorm",
}
FILL_MASK = FillMaskNames(
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    decoder="cls.predictions.decoder",
    bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
)
CLASSIFIER = ClassifierNames(dense="{prefix}.pooler.dense", out="classifier")
HEADS = {
    "cls.predictions.": "the fill-mask head",
    "cls.seq_relationship.": "the next-sentence head",
    "classifier.": "a classification head",
    "qa_outputs.": "the question-answering head",
}

BERT = Family(
    model_type="bert",
    prefix="bert",
    encoder=EMBEDDINGS,
    layer=SUBLAYERS | POST_NORM,
    fill_mask=FILL_MASK,
    classifier=CLASSIFIER,
    pooler="pooler.dense",
    other_heads=HEADS,
)
#: With ``use_task_id`` every token also gets row 0 of a task table: what transformers adds when no task ids are given.
ERNIE = Family(
    model_type="ernie",
    prefix="ernie",
    encoder=EMBEDDINGS,
    layer=SUBLAYERS | POST_NORM,
    fill_mask=FILL_MASK,
    classifier=CLASSIFIER,
    pooler="pooler.dense",
    other_heads=HEADS,
    task_table="embeddings.task_type_embeddings",
)
#: Normalises before each sublayer and once at the end; the embeddings are not normalised.
MEGATRON_BERT = Family(
    model_type="megatron-bert",
    prefix="bert",
    encoder={name: stem for name, stem in EMBEDDINGS.items() if name != "embeddings.norm"}
    | {"final_norm": "encoder.ln"},
    layer=SUBLAYERS
    | {
        "attention_residual.norm": "encoder.layer.{i}.attention.ln",
        "feedforward_residual.norm": "encoder.layer.{i}.ln",
    },
    fill_mask=FILL_MASK,
    classifier=CLASSIFIER,
    pooler="pooler.dense",
    other_heads=HEADS,
    arrangement={"norm": "pre", "embedding_norm": False, "final_norm": True},
)
