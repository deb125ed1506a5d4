"""A scene, as a sensor packs it, and how far a decoded image is from it."""

from __future__ import annotations

import numpy as np

Array = np.ndarray

BLACK, WHITE = 256, 4095
GAIN = 1.0 / (WHITE - BLACK)
ENOUGH_DB = 45.0


def scene(height: int = 48, width: int = 64) -> Array:
    """Gradients and edges in [0, 1]."""
    y, x = np.mgrid[0:height, 0:width]
    ramp = (x / (width - 1) + y / (height - 1)) / 2
    return np.asarray(np.where((x // 8 + y // 8) % 2 == 0, ramp, 0.5 + 0.5 * np.sin(x / 5) * np.cos(y / 7)))


def pack(image: Array) -> Array:
    """Bytes [..., 3n] of an image [..., 2n] in [0, 1]."""
    pixels = np.rint(np.clip(image, 0, 1) * (WHITE - BLACK) + BLACK).astype(np.uint16)
    first, second = pixels[..., 0::2], pixels[..., 1::2]
    return (
        np.stack([first >> 4, second >> 4, (second & 15) << 4 | (first & 15)], -1)
        .astype(np.uint8)
        .reshape(*image.shape[:-1], -1)
    )


def psnr_db(actual: Array, expected: Array) -> float:
    """10 log10(1 / mean((actual - expected)^2)), of images in [0, 1]"""
    error = np.mean((actual.astype(np.float64) - expected) ** 2)
    return float("inf") if error == 0 else float(-10 * np.log10(error))
