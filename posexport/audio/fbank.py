"""Kaldi's filter bank features: frames of 25 ms every 10 ms, logarithms of mel energies."""

import numpy as np
from numpy.typing import NDArray

from posexport.audio.mel import Float64s, frame_count, kaldi_filters, log_mel

#: samples of a frame, from one to the next, and of the Fourier transform
FRAME, HOP, FFT = 400, 160, 512
#: float32's epsilon, kaldi's floor of energies
FLOOR = 1.192092955078125e-07


def hann() -> Float64s:
    """The symmetric Hann window of a frame."""
    return np.hanning(FRAME)


def povey() -> Float64s:
    """Kaldi's window: a Hann window to the power of 0.85."""
    return np.power(np.hanning(FRAME), 0.85)


def filters(mel_bins: int, sampling_rate: int) -> Float64s:
    """The mel filters [FFT // 2 + 1, mel_bins], from 20 Hz to half the sampling rate."""
    return kaldi_filters(FFT // 2 + 1, mel_bins, sampling_rate, 20, sampling_rate // 2)


def frames_of(samples: int) -> int:
    """How many frames a sound has."""
    return frame_count(samples, FRAME, HOP)


def samples_of(frames: int) -> int:
    """The fewest samples that have that number of frames."""
    return FRAME + HOP * (frames - 1)


def fbank(samples: NDArray[np.float32], window: Float64s, mel_filters: Float64s) -> NDArray[np.float32]:
    """Features [frames, mel_bins] of samples [n]."""
    features = log_mel(
        samples,
        window,
        mel_filters,
        hop=HOP,
        fft_length=FFT,
        floor=FLOOR,
        log="log",
        preemphasis=0.97,
        remove_dc_offset=True,
    )
    return features.T
