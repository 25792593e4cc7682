"""Of all that processes report, the launcher shows the cause, and ends all of them."""

import json
import signal
import socket

import pytest

from headrace.errors import LaunchError, ModelError, PeerLostError, StageError
from headrace.runs import launch
from headrace.runs.launch import End, cause, is_launched, is_launched_by_headrace, reporting

LOST = "PeerLostError"


def report(kind, time, text="text", *, is_ours=True, notes=()):
    """What a process writes of its error."""
    return {
        "kind": kind,
        "time": time,
        "message": {"message": text},
        "is_ours": is_ours,
        "notes": list(notes),
    }


def test_the_first_error_is_the_cause():
    """Of two reports the earlier; with its kind, text and notes."""
    ends = [
        End(0, 10, 1, report("ModelError", 5.0)),
        End(1, 11, 1, report("StageError", 4.0, "stage 1 raised", notes=["the line"])),
        End(2, 12, -signal.SIGTERM),
    ]

    error = cause(ends)

    assert type(error) is StageError
    assert str(error) == "stage 1 raised"
    assert error.__notes__ == ["the line"]


def test_a_lost_peer_is_a_consequence():
    """Whatever else there is comes before it, however late it was reported."""
    lost = End(0, 10, 1, report(LOST, 1.0, "stage 0 lost stage 1"))
    assert type(cause([lost])) is PeerLostError
    assert type(cause([lost, End(1, 11, 1, report("StageError", 9.0))])) is StageError
    assert "exit status 3" in str(cause([lost, End(1, 11, 3)]))
    assert "SIGKILL" in str(cause([lost, End(1, 11, -signal.SIGKILL)]))
    assert "SIGSEGV" in str(cause([lost, End(1, 11, -signal.SIGSEGV)]))
    assert "SIGABRT" in str(cause([lost, End(1, 11, -signal.SIGABRT)]))


def test_a_killed_process_is_the_cause():
    """Before a report, which can only follow from it; but an abort may itself follow."""
    ends = [End(0, 10, 1, report("StageError", 1.0)), End(1, 11, -signal.SIGKILL)]
    assert str(cause(ends)) == (
        "stage 1 (process 11) was killed by signal 9 (SIGKILL); if nobody did it, the system may "
        "have run out of memory"
    )
    ends = [End(0, 10, 1, report("ModelError", 1.0)), End(1, 11, -signal.SIGABRT)]
    assert type(cause(ends)) is ModelError


def test_what_is_not_ours():
    """An exception of the user's, and a process that said nothing."""
    ends = [End(1, 11, 1, report("LaunchError", 1.0, "KeyError: 'a'", is_ours=False))]
    assert str(cause(ends)) == "stage 1 (process 11) failed: KeyError: 'a'"
    assert str(cause([End(0, 10, 7)])) == (
        "stage 0 (process 10) ended with exit status 7 and did not say why"
    )


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """The report of a process that a launcher has started; its timers and waits are short."""
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(launch, "WAIT_FOR_CAUSE_S", 0.0)
    monkeypatch.setattr(launch, "_exit_soon", lambda: None)
    return file


def raised_inside(error, folder=None):
    """Raises inside of `reporting`."""
    with pytest.raises(type(error)), reporting(folder):
        raise error


def test_an_error_of_ours_is_reported(reported, tmp_path):
    """Its message alone; nothing is written into the run's folder for a mistake of the user."""
    raised_inside(ModelError("too many stages"), tmp_path / "run")

    written = json.loads(reported.read_text())
    assert written["kind"] == "ModelError"
    assert written["message"]["message"] == "too many stages"
    assert not (tmp_path / "run").exists()


def test_a_users_exception_is_reported(reported, tmp_path):
    """Where it was raised, in short; the whole traceback is in a file of the run's folder."""
    error = StageError("layer 2 raised ValueError: boo")
    error.__cause__ = ValueError("boo")
    raised_inside(error, tmp_path / "run")

    written = json.loads(reported.read_text())
    whole = tmp_path / "run" / "error-stage-1.txt"
    assert written["notes"][0].endswith(f"ValueError: boo\nThe whole traceback is in {whole}")
    assert "Traceback (most recent call last)" in whole.read_text()
    assert "layer 2 raised ValueError: boo" in whole.read_text()


def test_the_first_report_stays(reported):
    """What follows from an error does not hide it."""
    raised_inside(StageError("first"))
    raised_inside(PeerLostError("second"))

    assert json.loads(reported.read_text())["message"]["message"] == "first"


def test_an_end_is_no_error(reported):
    """sys.exit, by which the command line ends, is not reported."""
    raised_inside(SystemExit(0))

    assert not reported.exists()


def test_without_a_launcher_the_line_is_noted(tmp_path, monkeypatch):
    """The error itself says where it was raised."""
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    error = ZeroDivisionError("by accident")
    raised_inside(error, tmp_path)

    (note,) = error.__notes__
    assert "test_launch.py" in note and "raised_inside" in note
    assert note.endswith(f"The whole traceback is in {tmp_path}/error-stage-0.txt")


def test_who_has_started_a_process(monkeypatch):
    """Nobody, torchrun, or headrace."""
    for name in ("RANK", "WORLD_SIZE", "HEADRACE_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    assert not is_launched() and not is_launched_by_headrace()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_launched() and not is_launched_by_headrace()
    monkeypatch.setenv("HEADRACE_LAUNCHER", "123")
    assert is_launched_by_headrace()


@pytest.mark.parametrize("port", ["http", "-1", "70000"])
def test_what_is_no_port(monkeypatch, port):
    """A word, or a number out of range."""
    monkeypatch.setenv("MASTER_PORT", port)

    with pytest.raises(LaunchError, match=f"port {port} is not a port: .*in MASTER_PORT; set ano"):
        launch._port()


def test_a_port_that_is_set(monkeypatch):
    """It is taken where it is free, and refused where something listens on it."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        listener.listen()
        with pytest.raises(LaunchError, match=f"port {port} is in use: got Address already in use"):
            launch._port()
    assert launch._port() == port
    monkeypatch.delenv("MASTER_PORT")
    assert launch._port() == 0
