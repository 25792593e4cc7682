"""The pages on the loader, resuming and other loaders: their code runs, on files of that kind."""

import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.data.order import SequentialOrder
from headrace.data.pack import pack
from headrace.progress import Silent

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """An array, tar shards of two fields, TFRecord files."""
    monkeypatch.chdir(tmp_path)
    np.save("train.npy", np.arange(3000, dtype=np.float32).reshape(1000, 3))
    Path("lines.txt").write_text("one\ntwo\nthree\n")
    for shard in range(2):
        with tarfile.open(f"train-{shard:03}.tar", "w") as tar:
            for name in ("a.jpg", "a.cls", "b.jpg", "b.cls"):
                member = tarfile.TarInfo(f"{shard}{name}")
                member.size = 3
                tar.addfile(member, io.BytesIO(b"xyz"))
        lines = headrace.open("lines.txt")
        pack(lines, Path(f"train-{shard}.tfrecord"), "tfrecord", SequentialOrder(), Silent())


@pytest.mark.parametrize("page", ["loader", "resume", "coming-from"])
def test_the_code_runs(shelf, page, capsys):
    """Block after block, in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    namespace = {"__name__": page}
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), namespace)
    printed = capsys.readouterr().out
    if page == "resume":
        assert printed == "0 160\n"
        seen = np.concatenate([batch["data"] for batch in namespace["rest"]])
        assert len(seen) == 840
    elif page == "loader":
        assert printed == "0\n" and namespace["loader"].num_damaged == 0
    else:
        assert (len(blocks), printed) == (6, "256\n")
