"""What the bytes of a member of a tar archive mean by its extension, as WebDataset has it."""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RunError

__all__ = ["value_of"]


def value_of(field: str, content: bytes) -> Any:
    """The value of a member.

    Its last extension says: txt, text, transcript are text in UTF-8; cls, cls2, class, count,
    index, inx, id are whole numbers in decimal digits; json, jsn what JSON says; npy an array; jpg,
    jpeg, png, ppm, pgm, pbm, pnm, webp images: uint8[height, width, 3]. All others are bytes.

    Args:
        field: all extensions, such as "seg.png".
        content: the member's bytes.

    Raises:
        ValueError: the bytes are not what the extension says.
        RunError: the field is an image, and there is no Pillow.

    Source: webdataset/autodecode.py, basichandlers and imagespecs["rgb8"].
    """
    make = _VALUES.get(field.rpartition(".")[2])
    return make(content) if make else content


def _array(content: bytes) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (EOFError, OSError, SyntaxError, TypeError) as error:
        raise ValueError(f"no .npy array: {error}") from error
    return array


def _image(content: bytes) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise RunError(
            "images cannot be decoded without Pillow",
            remedy="pip install pillow, or take the bytes (decoded=False)",
        ) from error
    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.array(image.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"no image: {error}") from error


_VALUES: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp"), _image),
    "npy": _array,
}
