"""A float32 model in float16 by a public converter: CONVERTER MODEL OUTPUT. Its inputs and outputs stay float32."""

import sys

import onnx

converter, source, target = sys.argv[1:]
model = onnx.load(source)
if converter == "onnxconverter-common":
    from onnxconverter_common.float16 import convert_float_to_float16
else:
    from onnxruntime.transformers.float16 import convert_float_to_float16
onnx.save(convert_float_to_float16(model, keep_io_types=True), target)
