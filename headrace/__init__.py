"""Train through a pipeline that never drains, on records read in a truly random order."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.data.formats.format import Format
    from headrace.data.loader import Loader
    from headrace.data.mixture import mix
    from headrace.data.opening import open
    from headrace.data.order import RandomOrder, SequentialOrder
    from headrace.data.orders.block import BlockOrder
    from headrace.data.orders.bucket import BucketOrder
    from headrace.data.orders.buffer import BufferOrder
    from headrace.data.orders.page import PageOrder
    from headrace.data.orders.weighted import WeightedOrder
    from headrace.data.padding import Padding
    from headrace.data.records import Records
    from headrace.errors import HeadraceError
    from headrace.pipeline.mesh import Mesh
    from headrace.pipeline.pipeline import Batch, Pipeline
    from headrace.pipeline.strategy import (
        DOUBLE_BUFFER,
        FLUSH,
        FORECAST,
        FORECAST_LEAN,
        PREDICT,
        SPECTRAIN,
        STALE,
        STASH,
        Strategy,
    )
    from headrace.runs.config import Run
    from headrace.runs.loop import train

__all__ = [
    "Batch",
    "BlockOrder",
    "BucketOrder",
    "BufferOrder",
    "DOUBLE_BUFFER",
    "FLUSH",
    "FORECAST",
    "FORECAST_LEAN",
    "Format",
    "HeadraceError",
    "Loader",
    "Mesh",
    "PREDICT",
    "Padding",
    "PageOrder",
    "Pipeline",
    "RandomOrder",
    "Records",
    "Run",
    "SPECTRAIN",
    "STALE",
    "STASH",
    "SequentialOrder",
    "Strategy",
    "WeightedOrder",
    "__version__",
    "mix",
    "open",
    "train",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Loads the module behind a public name when it is asked for (PEP 562): torch takes seconds."""
    homes = {
        "Batch": "pipeline.pipeline",
        "BlockOrder": "data.orders.block",
        "BucketOrder": "data.orders.bucket",
        "BufferOrder": "data.orders.buffer",
        "DOUBLE_BUFFER": "pipeline.strategy",
        "FLUSH": "pipeline.strategy",
        "FORECAST": "pipeline.strategy",
        "FORECAST_LEAN": "pipeline.strategy",
        "Format": "data.formats.format",
        "HeadraceError": "errors",
        "Loader": "data.loader",
        "Mesh": "pipeline.mesh",
        "PREDICT": "pipeline.strategy",
        "Padding": "data.padding",
        "PageOrder": "data.orders.page",
        "Pipeline": "pipeline.pipeline",
        "RandomOrder": "data.order",
        "Records": "data.records",
        "Run": "runs.config",
        "SPECTRAIN": "pipeline.strategy",
        "STALE": "pipeline.strategy",
        "STASH": "pipeline.strategy",
        "SequentialOrder": "data.order",
        "Strategy": "pipeline.strategy",
        "WeightedOrder": "data.orders.weighted",
        "mix": "data.mixture",
        "open": "data.opening",
        "train": "runs.loop",
    }
    if name not in homes:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    home = import_module(f"headrace.{homes[name]}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
