"""Grey images: idx files, as those of MNIST and Fashion-MNIST are, or the digits that come with scikit-learn."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from structmax.recipes.data import text
from structmax.training import DataError, RunError, Settings, option

# of the digits, those to test on; and the seed that shuffles what has no order of its own
DIGITS_TO_TEST, SHUFFLE = 360, 1_000_001


@dataclass(frozen=True, kw_only=True)
class ImageSettings(Settings):
    """Which images; digits of 8 by 8 pixels by default."""

    least: ClassVar[dict[str, float]] = Settings.least | {"valid_size": 1}
    train_images: str = option("", "idx file of images to train on, also .gz or .xz; by default scikit-learn's digits")
    test_images: str = option("", "idx file of images to test on")
    valid_size: int = option(237, "number of training images that are held out for validation, chosen at random")

    def __post_init__(self) -> None:
        super().__post_init__()
        text.together(self, "train_images", "test_images")


@dataclass(frozen=True)
class Images:
    """Pixels (N, P), whole numbers from 0 to levels − 1, and how they form a picture; labels (N,), −1 if unknown."""

    pixels: Tensor
    labels: Tensor
    height: int
    width: int
    levels: int

    def __len__(self) -> int:
        return len(self.pixels)

    def at(self, rows: Tensor | slice) -> "Images":
        return Images(self.pixels[rows], self.labels[rows], self.height, self.width, self.levels)

    def to(self, device: torch.device) -> "Images":
        return Images(self.pixels.to(device), self.labels.to(device), self.height, self.width, self.levels)

    def shades(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Pixels from 0 to 1: (N, P)."""
        return self.pixels[rows].float() / (self.levels - 1)

    def drawable(self, shades: Tensor) -> list[list[int]]:
        """Pixels from 0 to 1, (P,), as a drawing of kind "images" takes them."""
        return (255 * shades.clamp(0, 1)).round().int().view(self.height, self.width).tolist()


def splits(settings: ImageSettings, labels: tuple[str, str] = ("", "")) -> dict[str, Images]:
    """Images to train on, shuffled, and those of "valid", held out of them, and "test".

    Args:
        settings: the files of images, and how many are held out.
        labels: files of the labels of those to train on and to test on.
    """
    shuffle = torch.Generator().manual_seed(SHUFFLE)
    if settings.train_images:
        known, test = read(settings.train_images, labels[0]), read(settings.test_images, labels[1])
        if (known.height, known.width) != (test.height, test.width):
            reason = f"should be of {known.height} by {known.width} pixels, as those of {settings.train_images}"
            raise DataError(settings.test_images, None, f"{reason}, but are of {test.height} by {test.width}")
    else:
        every = digits()
        every = every.at(torch.randperm(len(every), generator=shuffle))
        known, test = every.at(slice(DIGITS_TO_TEST, None)), every.at(slice(DIGITS_TO_TEST))
    if settings.valid_size >= len(known):
        raise RunError(
            f"`valid_size` should leave some of the {len(known)} images to train on, but is {settings.valid_size}."
        )
    known = known.at(torch.randperm(len(known), generator=shuffle))
    held_out = slice(settings.valid_size)
    return {"train": known.at(slice(settings.valid_size, None)), "valid": known.at(held_out), "test": test}


def digits() -> Images:
    """1 797 handwritten digits of 8 by 8 pixels with 17 levels: those of the UCI test set."""
    try:
        from sklearn import datasets
    except ImportError:
        raise RunError("The digits need the package scikit-learn. Try pip install structmax[recipes].") from None
    found = datasets.load_digits()
    return Images(torch.tensor(found.data).to(torch.uint8), torch.tensor(found.target), 8, 8, 17)


def read(path: str | Path, labels: str | Path = "") -> Images:
    """The images of an idx file, and their labels from another, if there is one.

    Args:
        path: of a file of unsigned bytes with three dimensions, also packed as .gz or .xz.
        labels: path of one with as many labels.

    Reference: LeCun, Cortes & Burges, The MNIST database of handwritten digits.
    """
    pixels = idx(path, "images", 3)
    if not pixels.numel():
        raise DataError(path, None, f"should have images, but has {' by '.join(map(str, pixels.shape))} pixels")
    count, height, width = pixels.shape
    named = idx(labels, "labels", 1).long() if labels else torch.full((count,), -1)
    if len(named) != count:
        raise DataError(
            labels, None, f"should have a label for each of the {count} images of {path}, but has {len(named)}"
        )
    return Images(pixels.reshape(count, height * width), named, height, width, 256)


def idx(path: str | Path, what: str, dims: int) -> Tensor:
    """The unsigned bytes of an idx file with so many dimensions: two zeros, 8, that number, the sizes, the values."""
    with text.opened(path, what, "rb") as file:
        content = file.read()
    start = 4 + 4 * dims
    magic = bytes([0, 0, 8, dims])
    if content[:4] != magic or len(content) < start:
        reason = f"should be an idx file of {what} and begin with the bytes {magic.hex(' ')}, but begins with"
        raise DataError(path, None, f"{reason} {content[:4].hex(' ') or 'none'}, and has {len(content)} bytes")
    sizes = struct.unpack(f">{dims}I", content[4:start])
    expected = start + math.prod(sizes)
    if len(content) != expected:
        reason = f"should have {expected} bytes for {' by '.join(map(str, sizes))} values, but has {len(content)}"
        raise DataError(path, None, reason)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:].view(sizes)
