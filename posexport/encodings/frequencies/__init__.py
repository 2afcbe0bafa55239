"""Frequency schedules of rotations, one file each; how the rotated pairs are stored is not their business."""

from posexport.encodings.frequencies.config import from_config as from_config
