"""Feature extractors by the names of transformers' classes. A further one is a file and a line."""

from posexport.audio.ast import AudioSpectrogramTransformer
from posexport.audio.extractor import Extractor
from posexport.audio.seamless_m4t import SeamlessM4T
from posexport.audio.wav2vec2 import Wav2Vec2
from posexport.audio.whisper import Whisper

EXTRACTORS: dict[str, type[Extractor]] = {
    "ASTFeatureExtractor": AudioSpectrogramTransformer,
    "SeamlessM4TFeatureExtractor": SeamlessM4T,
    "Wav2Vec2FeatureExtractor": Wav2Vec2,
    "WhisperFeatureExtractor": Whisper,
}
#: extractors where preprocessor_config.json names none, by ``model_type``, as ``AutoFeatureExtractor`` knows
BY_MODEL_TYPE = {
    "audio-spectrogram-transformer": "ASTFeatureExtractor",
    "data2vec-audio": "Wav2Vec2FeatureExtractor",
    "hubert": "Wav2Vec2FeatureExtractor",
    "sew": "Wav2Vec2FeatureExtractor",
    "sew-d": "Wav2Vec2FeatureExtractor",
    "unispeech": "Wav2Vec2FeatureExtractor",
    "unispeech-sat": "Wav2Vec2FeatureExtractor",
    "wav2vec2": "Wav2Vec2FeatureExtractor",
    "wav2vec2-bert": "Wav2Vec2FeatureExtractor",
    "wav2vec2-conformer": "Wav2Vec2FeatureExtractor",
    "wavlm": "Wav2Vec2FeatureExtractor",
    "whisper": "WhisperFeatureExtractor",
}
