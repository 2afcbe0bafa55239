"""Feature extractors: sound as ``input_values`` or ``input_features``, as preprocessor_config.json says. NumPy."""

from posexport.run.audio.processor import AudioProcessor, open_processor
from posexport.run.audio.settings import remarks

__all__ = ["AudioProcessor", "open_processor", "remarks"]
