"""All tasks of posexport. Of a class in ``architectures`` the first with a matching suffix, and its keys, is chosen."""

from posexport.base.spec import BATCH, HEIGHT, LABELS, SEQUENCE, WIDTH, WORDS
from posexport.base.tasks.task import ANY, OF_BATCH, OF_PIXELS, OF_TOKENS, PipelineTask, Task

#: class names of encoder-decoders, which models of images and sounds share
_SEQ2SEQ = ("ForConditionalGeneration", "MTModel", "ForTextToText")
_FEATURE_EXTRACTION = PipelineTask("feature-extraction", "feature_extraction:FeatureExtraction")

TABLE = (
    Task(
        name="fill-mask",
        what="logits over the vocabulary at every token",
        outputs={"logits": OF_TOKENS},
        ends=("ForMaskedLM",),
        auto="AutoModelForMaskedLM",
        pipelines=(PipelineTask("fill-mask", "fill_mask:FillMask"),),
    ),
    Task(
        name="text-generation",
        what="logits over the vocabulary of the next token, at every token",
        outputs={"logits": OF_TOKENS},
        ends=("ForCausalLM", "LMHeadModel"),
        auto="AutoModelForCausalLM",
        pipelines=(PipelineTask("text-generation", "text_generation:TextGeneration"),),
    ),
    # before text2text-generation: classes with the same suffixes
    # The text in an image (TrOCR, arXiv:2109.10282; Donut, arXiv:2111.15664), or about it (BLIP, arXiv:2201.12086).
    Task(
        name="image-to-text",
        what="an image's states, and logits of the next token by a decoder that reads them",
        outputs={"logits": OF_TOKENS},
        ends=("VisionEncoderDecoderModel", "BlipForConditionalGeneration"),
        auto="AutoModelForImageTextToText",
        pipelines=(PipelineTask("image-to-text", "image_to_text:ImageToText", "images"),),
    ),
    Task(
        name="image-text-to-text",
        what="features of images, and logits of the next token by a decoder of embeddings",
        outputs={"logits": OF_TOKENS},
        ends=_SEQ2SEQ,
        auto="AutoModelForImageTextToText",
        needs=("vision_config",),
        pipelines=(
            PipelineTask(
                "image-text-to-text", "image_text_to_text:ImageTextToText", takes="images", rules="picture_rules"
            ),
        ),
    ),
    Task(
        name="audio-text-to-text",
        what="features of sounds, and logits of the next token by a decoder of embeddings",
        outputs={"logits": OF_TOKENS},
        ends=_SEQ2SEQ,
        auto="AutoModelForMultimodalLM",
        needs=("audio_config", "text_config"),
    ),
    # A text from a sound, by an encoder and a decoder (Whisper; Moonshine, arXiv:2410.15608).
    Task(
        name="automatic-speech-recognition",
        what="logits of the next token, by a decoder that reads an encoder of audio",
        outputs={"logits": OF_TOKENS},
        ends=("MoonshineForConditionalGeneration", "SpeechEncoderDecoderModel"),
        auto="AutoModelForSpeechSeq2Seq",
        pipelines=(
            PipelineTask(
                "automatic-speech-recognition",
                "whisper_recognition:WhisperRecognition",
                "audio",
                reads="input_features",
            ),
            PipelineTask("automatic-speech-recognition", "speech_to_text:SpeechToText", "audio", reads="input_values"),
        ),
    ),
    Task(
        name="text2text-generation",
        what="an encoder's states, and logits of the next token by a decoder that reads them",
        outputs={"logits": OF_TOKENS},
        ends=_SEQ2SEQ,
        auto="AutoModelForSeq2SeqLM",
        pipelines=(
            PipelineTask("text2text-generation", "text2text_generation:Text2TextGeneration"),
            PipelineTask("summarization", "text2text_generation:Summarization"),
            PipelineTask("translation", "text2text_generation:Translation"),
        ),
    ),
    Task(
        name="sequence-classification",
        what="logits over labels for a text",
        outputs={"logits": OF_BATCH},
        ends=("ForSequenceClassification",),
        auto="AutoModelForSequenceClassification",
        pipelines=(
            PipelineTask("text-classification", "text_classification:TextClassification"),
            PipelineTask("zero-shot-classification", "zero_shot_classification:ZeroShotClassification"),
        ),
    ),
    Task(
        name="text-ranking",
        what="a score of a pair of texts, by a decoder's logits of yes and no",
        outputs={"logits": OF_BATCH},
    ),
    Task(
        name="token-classification",
        what="logits over labels at every token",
        outputs={"logits": OF_TOKENS},
        ends=("ForTokenClassification",),
        auto="AutoModelForTokenClassification",
        pipelines=(PipelineTask("token-classification", "token_classification:TokenClassification"),),
    ),
    Task(
        name="question-answering",
        what="start and end scores at every token",
        outputs={"start_logits": (BATCH, SEQUENCE), "end_logits": (BATCH, SEQUENCE)},
        ends=("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
        auto="AutoModelForQuestionAnswering",
        pipelines=(PipelineTask("question-answering", "question_answering:QuestionAnswering"),),
    ),
    Task(
        name="image-classification",
        what="logits over labels for an image",
        outputs={"logits": OF_BATCH},
        ends=("ForImageClassification",),
        auto="AutoModelForImageClassification",
        pipelines=(PipelineTask("image-classification", "images:ImageClassification", "images"),),
    ),
    # before object-detection: classes with the same suffixes
    # Boxes of objects that texts describe (OWL-ViT, arXiv:2205.06230).
    Task(
        name="zero-shot-object-detection",
        what="boxes of every image, and how well each fits every text",
        outputs={
            "logits": (BATCH, "boxes", "texts"),
            "pred_boxes": (BATCH, "boxes", "edges"),
            "objectness_logits": (BATCH, "boxes"),
        },
        ends=("ForObjectDetection",),
        auto="AutoModelForZeroShotObjectDetection",
        needs=("text_config",),
        pipelines=(
            PipelineTask("zero-shot-object-detection", "zero_shot_object_detection:ZeroShotObjectDetection", "images"),
        ),
    ),
    # Boxes with labels (DETR, arXiv:2005.12872).
    Task(
        name="object-detection",
        what="a box and logits over labels for every object query of an image",
        outputs={"logits": (BATCH, "queries", "labels"), "pred_boxes": (BATCH, "queries", "edges")},
        sizes_vary=True,
        ends=("ForObjectDetection",),
        auto="AutoModelForObjectDetection",
        pipelines=(PipelineTask("object-detection", "object_detection:ObjectDetection", "images"),),
    ),
    # Pixels that a text describes (CLIPSeg, arXiv:2112.10003).
    Task(
        name="zero-shot-image-segmentation",
        what="how well every pixel of an image fits its text",
        outputs={"logits": (BATCH, HEIGHT, WIDTH)},
        ends=("ForImageSegmentation",),
        needs=("text_config",),
    ),
    # Labels of pixels, or masks with labels (MaskFormer, arXiv:2107.06278).
    Task(
        name="image-segmentation",
        what="logits over labels for every pixel of an image, or a mask and logits for every query",
        outputs={
            # of pixels, or of DETR's queries
            "logits": ANY,
            "pred_boxes": (BATCH, "queries", "edges"),
            "pred_masks": (BATCH, "queries", HEIGHT, WIDTH),
            "class_queries_logits": (BATCH, "queries", "labels"),
            "masks_queries_logits": (BATCH, "queries", HEIGHT, WIDTH),
        },
        sizes_vary=True,
        ends=("ForSemanticSegmentation", "ForInstanceSegmentation", "ForUniversalSegmentation", "ForSegmentation"),
        auto="AutoModelForSemanticSegmentation",
        pipelines=(PipelineTask("image-segmentation", "image_segmentation:ImageSegmentation", "images"),),
    ),
    Task(
        name="depth-estimation",
        what="the depth of every pixel of an image",
        outputs={"predicted_depth": OF_PIXELS},
        sizes_vary=True,
        ends=("ForDepthEstimation",),
        auto="AutoModelForDepthEstimation",
        pipelines=(PipelineTask("depth-estimation", "depth_estimation:DepthEstimation", "images"),),
    ),
    # Points of a body (ViTPose, arXiv:2204.12484).
    Task(
        name="keypoint-detection",
        what="a heat map of an image for every keypoint",
        outputs={"heatmaps": (BATCH, "keypoints", HEIGHT, WIDTH)},
        sizes_vary=True,
        ends=("ForPoseEstimation", "ForKeypointDetection"),
        auto="AutoModelForKeypointDetection",
    ),
    Task(
        name="ctc",
        what="logits over labels at every frame",
        outputs={"logits": OF_TOKENS},
        ends=("ForCTC",),
        auto="AutoModelForCTC",
        pipelines=(PipelineTask("automatic-speech-recognition", "audio:AutomaticSpeechRecognition", "audio"),),
    ),
    Task(
        name="audio-classification",
        what="logits over labels of a whole sound",
        outputs={"logits": OF_BATCH},
        # other classes have names of text classifiers
        ends=("ForAudioClassification",),
        auto="AutoModelForAudioClassification",
        pipelines=(PipelineTask("audio-classification", "audio:AudioClassification", "audio"),),
    ),
    # before features: the shortest suffixes
    # Masks of objects at points of an image (SAM, arXiv:2304.02643; SAM 2, arXiv:2408.00714).
    Task(
        name="mask-generation",
        what="masks of an image for groups of points, each with a score, and the image's features",
        outputs={
            "iou_scores": (BATCH, "groups", "masks"),
            "pred_masks": (BATCH, "groups", "masks", HEIGHT, WIDTH),
            "object_score_logits": (BATCH, "groups", "scores"),
        },
        ends=("SamModel", "Sam2Model"),
        auto="AutoModelForMaskGeneration",
        pipelines=(PipelineTask("mask-generation", "mask_generation:MaskGeneration", "images"),),
    ),
    # Images compared with texts (CLIP, arXiv:2103.00020).
    Task(
        name="zero-shot-image-classification",
        what="how well every image fits every text, and the vectors of both",
        outputs={
            "logits_per_image": ("images", "texts"),
            "logits_per_text": ("texts", "images"),
            "text_embeds": ("texts", "channels"),
            "image_embeds": ("images", "channels"),
        },
        ends=("Model",),
        auto="AutoModelForZeroShotImageClassification",
        needs=("text_config", "vision_config"),
        pipelines=(
            PipelineTask(
                "zero-shot-image-classification", "zero_shot_image_classification:ZeroShotImageClassification", "images"
            ),
        ),
    ),
    # Sounds compared with texts (CLAP, arXiv:2211.06687).
    Task(
        name="zero-shot-audio-classification",
        what="how well every sound fits every text, and the vectors of both",
        outputs={
            "logits_per_audio": ("sounds", "texts"),
            "logits_per_text": ("texts", "sounds"),
            "text_embeds": ("texts", "channels"),
            "audio_embeds": ("sounds", "channels"),
        },
        ends=("Model",),
        needs=("text_config", "audio_config"),
    ),
    # Entities of labels that the caller names (GLiNER, arXiv:2311.08526).
    Task(
        name="zero-shot-token-classification",
        what="how well the spans of a text, or its words, fit labels that are written before it",
        outputs={"logits": (BATCH, WORDS, LABELS, "spans or edges")},
        pipelines=(
            PipelineTask(
                "zero-shot-token-classification", "zero_shot_token_classification:ZeroShotTokenClassification"
            ),
        ),
    ),
    # Labels of texts that the caller names (GLiClass, arXiv:2508.07662).
    Task(
        name="zero-shot-classification",
        what="how well a text fits labels that are written beside it",
        outputs={"logits": (BATCH, LABELS)},
        pipelines=(PipelineTask("zero-shot-classification", "labels_beside_text:LabelsBesideText"),),
    ),
    # The next action of a trajectory (Decision Transformer, arXiv:2106.01345).
    Task(
        name="reinforcement-learning",
        what="the next state, action and return at every step of a trajectory",
        outputs=dict.fromkeys(("state_preds", "action_preds", "return_preds"), (BATCH, SEQUENCE, "channels")),
        ends=("DecisionTransformerModel",),
    ),
    Task(
        name="features",
        what="the hidden states",
        outputs={"text_embeds": ANY, "image_embeds": ANY, "last_hidden_state": ANY, "pooler_output": ANY},
        ends=("ModelWithProjection", "Model", "Encoder"),
        pipelines=(
            _FEATURE_EXTRACTION,
            PipelineTask("image-feature-extraction", "images:ImageFeatureExtraction", "images"),
        ),
    ),
    Task(
        name="sentence-embedding",
        what="one vector a text",
        outputs={"sentence_embedding": (BATCH, "channels")},
        pipelines=(_FEATURE_EXTRACTION,),
    ),
    # A vector for each token (ColBERT, arXiv:2004.12832).
    Task(
        name="token-embedding",
        what="a vector for each token, compared by MaxSim (ColBERT)",
        outputs={"token_embeddings": (BATCH, SEQUENCE, "channels")},
    ),
    # Pages as pictures, found by texts: a vector for each token (ColPali, arXiv:2407.01449).
    Task(
        name="visual-document-retrieval",
        what="a vector for each token of a text or of a page's picture, compared by MaxSim (ColPali)",
        outputs={
            "embeddings": (BATCH, SEQUENCE, "channels"),
            "image_features": (BATCH, "image_tokens", "channels"),
        },
        ends=("ForRetrieval",),
        auto="AutoModelForPreTraining",
        needs=("vlm_config",),
    ),
    # The next steps of a series (PatchTST, arXiv:2211.14730).
    Task(
        name="time-series-forecasting",
        what="the next steps of all channels of a series",
        outputs={
            "prediction_outputs": (BATCH, "steps", "channels"),
            "mean_predictions": (BATCH, "steps"),
            "full_predictions": (BATCH, "steps", "quantiles"),
            "quantile_preds": (BATCH, "quantiles", "steps"),
        },
        ends=("ForPrediction",),
        auto="AutoModelForTimeSeriesPrediction",
    ),
    Task(
        name="tensors",
        what="all tensors that the model returns, under their names",
        sizes_vary=True,
    ),
)
