"""Pictures inside of HTML, and colours of numbers."""

import base64
import io

import numpy as np
from markupsafe import Markup

from vlmrm_gym.audit.results import Frame

QUALITY = 85
"""Of JPEG."""
AUC_COLORS = {0.0: (140, 45, 4), 0.5: (246, 240, 228), 1.0: (8, 69, 148)}
"""RGB of an AUC; colours between are interpolated."""


def embed(frame: Frame, side: int, alt: str) -> Markup:
    """A frame as an element of HTML that holds the picture, as JPEG.

    Args:
        frame: uint8 (H, W, 3).
        side: The longest height or width in pixels; larger frames are scaled.
        alt: What it shows.
    """
    from PIL import Image

    picture = Image.fromarray(frame)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY, optimize=True)
    uri = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    return Markup('<img src="{}" width="{}" height="{}" alt="{}">').format(uri, *picture.size, alt)


def auc_style(auc: float) -> str:
    """Style of a table's cell: the colour of an AUC, and black or white for the number on it."""
    channels = zip(*AUC_COLORS.values(), strict=True)
    color = [round(float(np.interp(auc, list(AUC_COLORS), channel))) for channel in channels]
    luminance = float((np.array(color) / 255) ** 2.2 @ [0.2126, 0.7152, 0.0722])
    # Black and white contrast equally with a luminance of 0.179, by the Web Content Accessibility Guidelines.
    return f"background: rgb({' '.join(map(str, color))}); color: {'#000' if luminance > 0.179 else '#fff'}"
