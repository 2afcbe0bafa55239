"""What heads over an encoder take from it: models that read its states at indices of tokens."""

import msgspec

from posexport.base.spec import InputSpec, LengthContract
from posexport.encodings.encoding import Encoding
from posexport.models.definition import Definition


class OverEncoder(Definition):
    """A head over an encoder's hidden states; a subclass has the inputs beside the encoder's, and ``forward``.

    Args:
        encoder: returns hidden states.
    """

    def __init__(self, encoder: Definition) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def encoder_inputs(self) -> list[InputSpec]:
        """Ids and mask."""
        return [spec for spec in self.encoder.inputs if spec.role != "types"]

    @property
    def encoding(self) -> Encoding:
        return self.encoder.encoding

    @property
    def encodings(self) -> list[Encoding]:
        return self.encoder.encodings

    @property
    def limits(self) -> LengthContract:
        """The encoder's, with padding on the right: indices count a row's tokens from its start."""
        return msgspec.structs.replace(self.encoder.limits, paddings=["right", "ragged-right"])
