"""The parts of ``ci/gpu``, the most valuable first."""

from part import Part

from parts import broken, determinism, dry_run, graphs, limits, padding, parity, speed

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
    padding.PART,
    parity.TF32,
    parity.ENCODINGS_BF16,
    parity.ENCODINGS_INT4,
    parity.GOLDEN_BF16,
    parity.GOLDEN_INT4,
    broken.PART,
)
BY_NAME = {part.name: part for part in PARTS}
