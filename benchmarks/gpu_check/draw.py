"""The process of one renderer: writes its name, and humanoid frames in both qualities with their rates."""

import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks.gpu_check.frames import humanoid_frames
from vlmrm_gym.rendering.opengl import make_context


def main(file: str, count: int, egl_device: int | None) -> None:
    """Write an .npz: strings `renderer`, `vendor`, `version`; `fast` and `faithful` frames, `..._rate` in frames/s."""
    context = make_context(8, 8, egl_device)
    with context.as_current():
        from OpenGL import GL

        names = {"renderer": GL.GL_RENDERER, "vendor": GL.GL_VENDOR, "version": GL.GL_VERSION}
        result: dict[str, Any] = {key: bytes(GL.glGetString(name) or b"").decode() for key, name in names.items()}
    context.free()
    if count:
        for quality in ("fast", "faithful"):
            humanoid_frames(1, quality)  # loads what is loaded once
            start = time.perf_counter()
            result[quality] = humanoid_frames(count, quality)
            result[f"{quality}_rate"] = count / (time.perf_counter() - start)
    np.savez(file, **result)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
