# MuJoCo's functions and classes are compiled and come without types: to pyright, anything goes.
from typing import Any

def __getattr__(name: str) -> Any: ...
