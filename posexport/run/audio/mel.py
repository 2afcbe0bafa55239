"""Mel filter banks, power spectra and kaldi's filter bank features, as kaldi and librosa compute them, in float64."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]
#: frames of one Fourier transform: bounds the memory of long sounds (400 samples: 13 MB)
BLOCK_FRAMES = 4096
#: Slaney's scale (Auditory Toolbox, 1998): linear up to 1000 Hz = 15 mel, 27 logarithmic steps to 6400 Hz
_KNEE_HERTZ, _KNEE_MELS, _STEPS = 1000.0, 15.0, 27.0 / np.log(6.4)


def slaney_mels(hertz: Float64s) -> Float64s:
    """Frequencies [n] in hertz on Slaney's mel scale."""
    above = np.maximum(hertz, _KNEE_HERTZ)
    return np.where(hertz < _KNEE_HERTZ, 3.0 * hertz / 200.0, _KNEE_MELS + np.log(above / _KNEE_HERTZ) * _STEPS)


def slaney_hertz(mels: Float64s) -> Float64s:
    """Mels [n] on Slaney's scale in hertz: the inverse of `slaney_mels`."""
    above = np.maximum(mels, _KNEE_MELS)
    return np.where(mels < _KNEE_MELS, 200.0 * mels / 3.0, _KNEE_HERTZ * np.exp((above - _KNEE_MELS) / _STEPS))


def kaldi_mels(hertz: Float64s) -> Float64s:
    """Frequencies [n] in hertz on kaldi's mel scale, 1127 ln(1 + f / 700)."""
    return 1127.0 * np.log(1.0 + hertz / 700.0)


def slaney_filters(bins: int, filters: int, sampling_rate: int, highest: float) -> Float64s:
    """Triangles of equal area [bins, filters] over 0 to ``highest`` hertz: ``librosa.filters.mel``'s default."""
    corners = slaney_mels(np.array([0.0, highest]))
    centres = slaney_hertz(np.linspace(corners[0], corners[1], filters + 2))
    triangles = _triangles(np.linspace(0, sampling_rate // 2, bins), centres)
    return triangles * (2.0 / (centres[2:] - centres[:-2]))


def kaldi_filters(bins: int, filters: int, sampling_rate: int, lowest: float, highest: float) -> Float64s:
    """Triangles of height 1 in the mel domain [bins, filters], as kaldi's ``compute-fbank-feats`` has them."""
    corners = kaldi_mels(np.array([lowest, highest]))
    width = sampling_rate / ((bins - 1) * 2)
    return _triangles(
        kaldi_mels(width * np.arange(bins, dtype=np.float64)), np.linspace(corners[0], corners[1], filters + 2)
    )


def _triangles(points: Float64s, centres: Float64s) -> Float64s:
    """Triangle i, from ``centres[i]`` over ``centres[i + 1]`` to ``centres[i + 2]``, at every point."""
    widths, offsets = np.diff(centres), centres[None, :] - points[:, None]
    rising, falling = -offsets[:, :-2] / widths[:-1], offsets[:, 2:] / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling))


def frame_count(samples: int, length: int, hop: int) -> int:
    """Whole frames of ``length`` samples, ``hop`` samples apart."""
    return max(0, 1 + (samples - length) // hop)


def log_mel(
    samples: NDArray[np.float32],
    window: Float64s,
    filters: Float64s,
    *,
    hop: int,
    fft_length: int,
    floor: float,
    log: Literal["log", "log10"],
    preemphasis: float = 0.0,
    remove_dc_offset: bool = False,
) -> NDArray[np.float32]:
    """Logarithms of the mel-filtered power spectrum, [filters, frames].

    The spectrum is rounded to complex64 and everything else is float64, as in transformers' NumPy path.

    Args:
        samples: [n].
        window: of as many samples as a frame.
        filters: [fft_length // 2 + 1, filters].
        hop: samples from a frame to the next.
        fft_length: samples of the Fourier transform; frames are padded with zeros.
        floor: lower bound of the filtered power.
        log: ``log10`` or the natural ``log``.
        preemphasis: c of x[t] - c x[t - 1], within each frame.
        remove_dc_offset: subtract the mean of each frame first.
    """
    length = len(window)
    count = frame_count(len(samples), length, hop)
    frames = np.lib.stride_tricks.sliding_window_view(samples, length)[::hop][:count]
    result = np.empty((filters.shape[1], count), np.float32)
    take = np.log10 if log == "log10" else np.log
    for start in range(0, count, BLOCK_FRAMES):
        block = frames[start : start + BLOCK_FRAMES].astype(np.float64)
        if remove_dc_offset:
            block = block - block.mean(1, keepdims=True)
        if preemphasis:
            before = np.concatenate([block[:, :1], block[:, :-1]], axis=1)
            block = block - preemphasis * before
        spectrum = np.fft.rfft(block * window, fft_length).astype(np.complex64).astype(np.complex128)
        power = np.abs(spectrum) ** 2
        result[:, start : start + len(block)] = take(np.maximum(floor, filters.T @ power.T))
    return result


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
