"""A model cut into stages, and the asynchronous pipeline that trains it."""
