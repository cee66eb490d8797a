"""The bundled model's tokenizer: open_clip's, without importing that package, which takes seconds, and 0.25 GB."""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def load_tokenizer() -> Any:
    """Load the byte pair encoding of OpenAI's CLIP: open_clip's file needs no other one of its package."""
    package = find_spec("open_clip")  # does not import it
    assert package is not None
    assert package.origin is not None
    spec = spec_from_file_location("vlmrm_gym_tokenizer", Path(package.origin).with_name("tokenizer.py"))
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SimpleTokenizer()
