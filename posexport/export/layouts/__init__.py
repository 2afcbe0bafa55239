"""What the directory of a bundle looks like: ``--layout``. A layout is a record in a file of its own."""

import msgspec

from posexport.export.layouts.genai import GENAI
from posexport.export.layouts.layout import Layout
from posexport.export.layouts.optimum import OPTIMUM
from posexport.export.layouts.sentence_transformers import SENTENCE_TRANSFORMERS
from posexport.export.layouts.transformers_js import TRANSFORMERS_JS
from posexport.options.recipe import LayoutName
from posexport.sources.source import Source
from posexport.targets.precisions import FP32, Precision

LAYOUTS: dict[LayoutName, Layout] = {
    "bundle": Layout(),
    "genai": GENAI,
    "optimum": OPTIMUM,
    "sentence-transformers": SENTENCE_TRANSFORMERS,
    "transformers.js": TRANSFORMERS_JS,
}


def arranged(source: Source, name: LayoutName, precision: Precision = FP32, *, alone: bool = False) -> Source:
    """``source`` as the layout ``name`` cuts it. ``alone``: for a lone .onnx, which is no part of a directory.

    Raises:
        PosexportError: the layout is not for such a model.
    """
    source = LAYOUTS[name].arranged(source, precision)
    return msgspec.structs.replace(source, parts=[]) if alone and len(source.parts) == 1 else source
