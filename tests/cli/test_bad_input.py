"""A mistake of the user is one clear message; nothing is started, no traceback is shown."""

import socket

import numpy
import pytest

from tests.commands import headrace, torchrun
from tests.recipes import LAYERS, write_recipe, write_records


@pytest.fixture
def folder(tmp_path):
    """A recipe and its records, in order."""
    write_records(tmp_path)
    write_recipe(tmp_path)
    return tmp_path


def message_of(folder, *options, **more):
    """What `headrace train recipe.py` says, which is all that it says."""
    ended = headrace("train", "recipe.py", *options, cwd=folder, **more)
    assert ended.status == 2, ended.err
    assert ended.out == ""
    assert ended.err.startswith("error: ") and ended.err.count("error: ") == 1
    assert ended.err.endswith("\n") and "Traceback" not in ended.err
    assert not (folder / "runs").exists()
    return ended.err.removeprefix("error: ").removesuffix("\n")


def test_no_such_recipe(folder):
    """The recipes that there are."""
    (folder / "recipe.py").unlink()
    assert message_of(folder) == (
        "no such recipe: got recipe.py, expected a Python file, or one of fashion_mnist, stdlib_gpt"
    )


def test_a_recipe_without_run(folder):
    """Where, and what to write."""
    (folder / "recipe.py").write_text("import headrace\n")
    assert message_of(folder) == (
        "a recipe without run(): got no function of that name, expected def run() -> headrace.Run; "
        "in recipe.py; write a function run that returns a headrace.Run(...)"
    )


def test_a_recipe_that_raises(folder):
    """The exception and its line; the line of the recipe, not that of the library it called."""
    write_recipe(folder, more="\n\ndef run():\n    return {}['batch_size']\n")
    lines = (folder / "recipe.py").read_text().splitlines()
    assert message_of(folder) == (
        f"run() of the recipe failed: got KeyError: 'batch_size'; in recipe.py, line {len(lines)}"
    )


def test_an_unknown_strategy(folder):
    """All that there are, and the one that may have been meant."""
    assert message_of(folder, "--strategy", "forcast") == (
        "unknown strategy: got forcast, expected one of FLUSH, STALE, STASH, DOUBLE_BUFFER, "
        "PREDICT, SPECTRAIN, FORECAST, FORECAST_LEAN, or package.module:NAME; in --strategy; "
        "did you mean FORECAST?"
    )


def test_a_batch_smaller_than_the_micro_batches(folder):
    """Both numbers."""
    assert message_of(folder, "--micro-batches", "64") == (
        "the run has a problem:\n"
        "  - batch_size: got 32, expected at least micro_batches = 64, so that each micro-batch "
        "has a record; lower micro_batches"
    )


def test_several_problems_at_once(folder):
    """Each option that is wrong, in one message."""
    assert message_of(folder, "--epochs", "0", "--stages", "0", "--seed", "-1") == (
        "the run has 3 problems:\n"
        "  - stages: got 0, expected an integer of 1 or more\n"
        "  - epochs: got 0, expected an integer of 1 or more\n"
        "  - seed: got -1, expected an integer of 0 or more"
    )


def test_a_missing_file_and_too_many_stages(folder):
    """What is wrong with the records and with the model, in one message."""
    (folder / "y.npy").unlink()
    message = message_of(folder, "--stages", "6")
    first, records, model = message.splitlines()
    assert first == "the run has 2 problems:"
    assert records == f"  - no such file: got '{folder}/y.npy'; in {folder}"
    assert model.startswith("  - there are more stages than layers: got 6 stages for 5 layers")


def test_a_truncated_file(folder):
    """Both sizes in bytes, and the file."""
    whole = (folder / "x.npy").read_bytes()
    (folder / "x.npy").write_bytes(whole[:-5])
    message = message_of(folder)
    assert f"got {len(whole) - 5}" in message and f"{len(whole)}" in message
    assert f"in {folder}/x.npy" in message


def test_fields_of_different_lengths(folder):
    """Each field's length."""
    numpy.save(folder / "y.npy", numpy.zeros(199, numpy.int64))
    assert message_of(folder) == (
        "fields differ in length: got x 200, y 199, expected as many records in each"
    )


def test_a_dtype_that_cannot_be_trained_on(folder):
    """Its name, those that can, and the file."""
    numpy.save(folder / "x.npy", numpy.zeros((200, 6), "<U1"))
    assert message_of(folder) == (
        "a dtype that cannot be trained on: got <U1, expected bool, an integer, float16 to "
        f"float64, complex64 or complex128; in {folder}/x.npy; store the numbers as one of these"
    )


def test_a_dtype_that_the_model_does_not_take(folder):
    """Integers for a Linear layer: the layer's name, before any process is started."""
    numpy.save(folder / "x.npy", numpy.zeros((200, 6), numpy.uint8))
    message = message_of(folder)
    assert "layer '0' (Linear)" in message and "dtype" in message, message


def test_the_same_module_in_two_places(folder):
    """Both places."""
    layers = LAYERS.replace("nn.Linear(6, 16)", "nn.Linear(6, 12), *[twice := nn.Linear(12, 12)]")
    layers = layers.replace("nn.Linear(16, 12)", "twice")
    write_recipe(folder, layers=layers, options="cuts=(3,)")
    message = message_of(folder)
    assert "one tensor is used in two stages" in message
    assert "'1.weight' of stage 0 is '3.weight' of stage 1" in message
    assert "cut so that both uses lie in one stage" in message


def test_the_same_module_at_both_ends(folder):
    """Wherever the measured cut is, it parts the two; nothing is said of a placement."""
    layers = "twice := nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), twice"
    write_recipe(folder, layers=layers)
    ended = headrace("train", "recipe.py", cwd=folder)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("error: one tensor is used in two stages")
    assert "'0.weight' of stage 0 is '4.weight' of stage 1" in ended.err
    assert ended.err.count("error: ") == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--strategy=forcast", "error: unknown strategy: got forcast"),
        ("--stagse=2", "Error: No such option: --stagse"),
    ],
)
def test_under_torchrun_one_process_speaks(folder, option, message):
    """All find the mistake, the first says it, with nothing of it lost; torchrun's words follow."""
    ended = headrace("train", "recipe.py", option, cwd=folder, command=torchrun(3))

    assert ended.status != 0
    assert ended.err.count(message) == 1, ended.err
    assert ended.err.index(message) < ended.err.index("failed (exitcode: 2)")


def test_a_port_in_use(folder):
    """MASTER_PORT, and what to do about it."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        listener.listen()
        port = listener.getsockname()[1]
        ended = headrace("train", "recipe.py", cwd=folder, environment={"MASTER_PORT": str(port)})
    assert ended.status == 1
    assert ended.err == (
        f"error: port {port} is in use: got Address already in use; in MASTER_PORT; set another, "
        "or unset it to take any free one\n"
    )
    assert ended.out == ""


def test_cuts_that_are_no_numbers(folder):
    """An example of some that are."""
    assert message_of(folder, "--cuts", "3,x") == (
        "not a list of layer numbers: got 3,x, expected such as 3,6; in --cuts"
    )


@pytest.mark.parametrize("arguments", [("trane",), ("train", "recipe.py", "--stages", "two")])
def test_words_that_the_command_line_does_not_know(folder, arguments):
    """The command line's own message, on stderr."""
    ended = headrace(*arguments, cwd=folder)
    assert ended.status == 2
    assert ended.out == ""
    assert arguments[-1] in ended.err or "--stages" in ended.err
    assert "Traceback" not in ended.err
