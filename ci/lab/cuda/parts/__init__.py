"""The parts of ``ci/gpu``, the most valuable first."""

from part import Part

from parts import broken, decode, determinism, dry_run, graphs, limits, padding, parity, speed, through

PARTS: tuple[Part, ...] = (
    parity.ENCODINGS_FP16,
    parity.ENCODINGS_FP32,
    dry_run.PART,
    limits.PART,
    parity.GOLDEN_FP16,
    parity.GOLDEN_FP32,
    determinism.PART,
    graphs.PART,
    speed.PART,
    decode.PART,
    padding.PART,
    through.STATES,
    parity.TF32,
    parity.ENCODINGS_BF16,
    parity.ENCODINGS_INT4,
    parity.GOLDEN_BF16,
    parity.GOLDEN_INT4,
    through.DECODERS,
    broken.PART,
)
BY_NAME = {part.name: part for part in PARTS}
