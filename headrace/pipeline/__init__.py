"""A model cut into stages, and the asynchronous pipeline that trains it."""

__all__: list[str] = []
