"""Progress is one live line on a terminal, elsewhere a plain line every few seconds."""

import os
import pty
import re
import subprocess
import sys

from headrace.cli.progress import PlainLines, line
from tests.recipes import write_recipe, write_records

FACTS = {
    "epoch": 2,
    "batch": 30,
    "batches": 120,
    "samples_per_s": 1234.5,
    "loss": 0.123456,
    "busy": {0: 0.987, 1: 0.5},
}


def test_the_line():
    """Epoch, batches, records per second, loss, the share of time that each stage was busy."""
    assert line(FACTS) == "epoch 2  batch 30/120  1,234 samples/s  loss 0.1235  busy 99% 50%"
    assert line({**FACTS, "loss": None, "busy": {}}) == "epoch 2  batch 30/120  1,234 samples/s"


def test_plain_lines(capsys, monkeypatch):
    """What is said comes at once, figures every ten seconds."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with PlainLines() as progress:
        progress.say("two\nlines")
        for second in (1.0, 9.9, 10.0, 15.0, 20.5):
            now[0] = second
            progress.update({**FACTS, "batch": second})

    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["two", "lines"]
    assert [text.split()[3] for text in said[2:]] == ["10.0/120", "20.5/120"]


def on_a_terminal(command, folder):
    """The bytes that a command writes to a terminal of 100 columns."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        command, cwd=folder, stdout=its, stdin=subprocess.DEVNULL, stderr=its, env=environment
    )
    os.close(its)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0, written.decode()
    return written.decode()


def test_a_live_line_on_a_terminal(tmp_path):
    """Two processes: the placement stays, the line changes in place and is gone at the end."""
    write_records(tmp_path)
    slow = "\n\nimport time\n\nimport torch\n\n\nclass Slow(torch.nn.Module):\n"
    slow += "    def forward(self, x):\n        time.sleep(0.04)\n        return x\n"
    write_recipe(
        tmp_path, layers="nn.Linear(6, 4), Slow(), nn.Linear(4, 3)", options="cuts=(2,)", more=slow
    )

    written = on_a_terminal([sys.executable, "-m", "headrace", "train", "recipe.py"], tmp_path)

    lines = re.findall(
        r"epoch \d  batch \d/7  [\d,]+ samples/s  loss \d\.\d+  busy [^\x1b\r]*", written
    )
    assert lines, repr(written)
    assert all(re.search(r"busy \d+%( \d+%)?\s*$", line) for line in lines)
    assert any(re.search(r"busy \d+% \d+%", line) for line in lines)  # of both processes
    assert written.count("share of time") == 1
    assert len(re.findall(r"epoch [12]: loss", written)) == 2
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # hides the cursor once
    ending = written[written.rindex("epoch 2: loss") :]
    assert "\x1b[2K" in ending  # wiped
    assert "batch" not in ending.rpartition("\x1b[2K")[2]
