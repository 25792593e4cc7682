"""A recipe trained by the command line, in processes of its own and otherwise, gives one result."""

import json

import numpy
import pytest
import torch
from safetensors import safe_open
from torch import nn

import headrace as library
from headrace.runs.checkpoint import load_model
from headrace.runs.recipe import load_recipe
from tests.commands import headrace, torchrun
from tests.recipes import INPUT_BYTES, NUM_RECORDS, TARGET_BYTES, write_recipe, write_records

EPOCHS, BATCH, MICRO_BATCHES = 2, 32, 4
EVALUATION = "evaluation=data, metrics={'accuracy': num_correct}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe, its records, and the folders of its runs."""
    folder = tmp_path_factory.mktemp("train")
    write_records(folder)
    write_recipe(folder, options=EVALUATION)
    return folder


@pytest.fixture(scope="module")
def processes(folder):
    """Three processes that headrace has started."""
    return headrace("train", "recipe.py", "--stages", 3, "--out", "processes", "--json", cwd=folder)


@pytest.fixture(scope="module")
def cuts(folder, processes):
    """Those that the processes have measured."""
    cuts = json.loads((folder / "processes" / "config.json").read_text())["cuts"]
    return ",".join(map(str, cuts))


@pytest.fixture(scope="module")
def simulated(folder, cuts):
    """The same in one process."""
    options = ("--stages", 3, "--cuts", cuts, "--simulate", "--json", "--out", "simulated")
    return headrace("train", "recipe.py", *options, cwd=folder)


@pytest.fixture(scope="module")
def flush(folder):
    """Two processes that drain at each update."""
    options = ("--strategy", "flush", "--cuts", "2", "--out", "flush", "--json")
    return headrace("train", "recipe.py", *options, cwd=folder)


def weights(folder):
    """name -> array, read from the shards by the safetensors library alone."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for name, file in index["weight_map"].items():
        with safe_open(folder / file, "numpy") as shard:
            found[name] = shard.get_tensor(name)
    return found


def lines(folder, kind):
    """The lines of one kind in metrics.jsonl."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if line["kind"] == kind]


def losses(folder):
    """(epoch, batch, loss, records) of each batch."""
    names = ("epoch", "batch", "loss", "records")
    return [tuple(line[name] for name in names) for line in lines(folder, "batch")]


def same_bits(one, other):
    """Whether two runs have the same weights, bit for bit."""
    one, other = weights(one), weights(other)
    assert one.keys() == other.keys()
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_the_last_line_is_the_results(folder, processes):
    """--json: one JSON object with the figures of the run, as in results.json."""
    assert (processes.status, processes.err) == (0, "")
    results = processes.results
    assert results == json.loads((folder / "processes" / "results.json").read_text())
    assert results["epochs"] == EPOCHS
    assert results["batches"] == EPOCHS * 7
    assert results["records"] == EPOCHS * NUM_RECORDS
    assert results["samples_per_s"] == pytest.approx(results["records"] / results["seconds"], 0.01)
    assert list(results["busy"]) == ["0", "1", "2"]
    assert all(0 < share <= 1 for share in results["busy"].values())


def test_what_is_printed(processes):
    """What is trained and how, the placement once, a line for each epoch, the results."""
    printed = processes.out.splitlines()
    assert printed[0] == (
        "200 records in batches of 32, 3 stages, 4 micro-batches, FORECAST on async_1f1b"
    )
    assert printed[1].split() == ["stage", "layers", "parameters", "share", "of", "time"]
    assert [row.split()[0] for row in printed[2:5]] == ["0", "1", "2"]
    assert [line.split(":")[0] for line in printed[5:7]] == ["epoch 1", "epoch 2"]
    assert all("loss" in line and "accuracy" in line for line in printed[5:7])
    assert len(printed) == 8


def test_the_folder_of_a_run(folder, processes):
    """Configuration, metrics, results, a shard a stage with the index; nothing else."""
    names = sorted(path.name for path in (folder / "processes").iterdir())
    shards = [f"model-{k:05}-of-00003.safetensors" for k in (1, 2, 3)]
    others = ["config.json", "metrics.jsonl", "model.safetensors.index.json", "results.json"]
    assert names == sorted([*shards, *others])
    config = json.loads((folder / "processes" / "config.json").read_text())
    assert config["recipe"] == str(folder / "recipe.py")
    assert config["identity"]["order"] == {"kind": "random", "version": 1, "seed": 0}
    assert [part["num_layers"] for part in config["parts"]] == [
        stop - start for start, stop in zip((0, *config["cuts"]), (*config["cuts"], 5), strict=True)
    ]
    assert sum(part["num_parameters"] for part in config["parts"]) == 7 * 16 + 17 * 12 + 13 * 3


def test_the_losses_of_an_epoch(folder, processes):
    """The epoch's loss is the mean of its batches', weighted by their records."""
    for epoch in lines(folder / "processes", "epoch"):
        batches = [line for line in losses(folder / "processes") if line[0] == epoch["epoch"]]
        assert [records for *_, records in batches] == [32] * 6 + [8]
        mean = sum(loss * records for _, _, loss, records in batches) / NUM_RECORDS
        assert epoch["loss"] == pytest.approx(mean, rel=1e-6)
    assert [batch for _, batch, *_ in losses(folder / "processes")] == list(range(EPOCHS * 7))


def test_each_stage_reads_only_what_it_needs(folder, processes, simulated):
    """The first stage the inputs' bytes, the last the targets', the middle one nothing."""
    an_epoch = {"0": NUM_RECORDS * INPUT_BYTES, "1": 0, "2": NUM_RECORDS * TARGET_BYTES}
    for run, ended in (("processes", processes), ("simulated", simulated)):
        assert [line["bytes_read"] for line in lines(folder / run, "epoch")] == [an_epoch] * EPOCHS
        assert ended.results["bytes_read"] == {k: EPOCHS * n for k, n in an_epoch.items()}


def test_one_process_gives_the_same_bits(folder, processes, simulated):
    """--simulate: the losses and the weights of three processes."""
    assert (simulated.status, simulated.err) == (0, "")
    assert losses(folder / "simulated") == losses(folder / "processes")
    assert same_bits(folder / "simulated", folder / "processes")
    assert simulated.results["accuracy"] == processes.results["accuracy"]


def test_torchrun_gives_the_same_bits(folder, processes, cuts):
    """The same recipe under torch's own launcher."""
    options = ("train", "recipe.py", "--stages", 3, "--cuts", cuts, "--out", "torchrun", "--json")
    quiet = {"OMP_NUM_THREADS": "1"}

    ended = headrace(*options, cwd=folder, command=torchrun(3), environment=quiet)

    assert ended.status == 0
    assert ended.results["loss"] == processes.results["loss"]
    assert losses(folder / "torchrun") == losses(folder / "processes")
    assert same_bits(folder / "torchrun", folder / "processes")


def test_draining_equals_the_plain_model(folder, flush):
    """FLUSH in two processes: the losses and weights of a plain loop over the micro-batches."""
    x, y = (torch.from_numpy(numpy.load(folder / f"{name}.npy")) for name in "xy")
    torch.manual_seed(0)
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    order = library.RandomOrder(seed=0)
    expected = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for epoch in range(EPOCHS):
        indices = order.indices(numpy.arange(NUM_RECORDS), NUM_RECORDS, epoch)
        for start in range(0, NUM_RECORDS, BATCH):
            batch = torch.from_numpy(indices[start : start + BATCH])
            optimizer.zero_grad()
            total = []
            for part in batch.split(-(-len(batch) // MICRO_BATCHES)):
                loss = nn.functional.cross_entropy(model(x[part]), y[part])
                loss = loss * (len(part) / len(batch))
                loss.backward()
                total.append(loss.detach())
            optimizer.step()
            number = len(expected)
            expected.append((epoch + 1, number, torch.stack(total).sum().item(), len(batch)))
    torch.set_num_threads(threads)

    assert (flush.status, flush.err) == (0, "")
    assert losses(folder / "flush") == expected
    trained = weights(folder / "flush")
    assert trained.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert trained[name].tobytes() == tensor.numpy().tobytes(), name


def plain_model():
    """The recipe's, without headrace."""
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)
    )


def test_the_metric_is_the_plain_models(folder, flush, processes):
    """Evaluated through the pipeline: the accuracy of the plain model with the run's weights."""
    x, y = (torch.from_numpy(numpy.load(folder / f"{name}.npy")) for name in "xy")
    for run, ended in (("flush", flush), ("processes", processes)):
        model = plain_model()
        model.load_state_dict({k: torch.from_numpy(v) for k, v in weights(folder / run).items()})
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        assert ended.results["accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert accuracy > 0.5


def test_a_finished_run_says_so_and_stops(folder, processes):
    """The same command again: nothing is trained, the results are those that are there."""
    before = (folder / "processes" / "metrics.jsonl").stat().st_mtime_ns
    options = ("--stages", 3, "--out", "processes", "--json")

    again = headrace("train", "recipe.py", *options, cwd=folder)

    assert (again.status, again.err) == (0, "")
    first, *_ = again.out.splitlines()
    assert first == "processes holds this run, finished; choose another --out to train again"
    assert again.results == processes.results
    assert (folder / "processes" / "metrics.jsonl").stat().st_mtime_ns == before


class Told:
    """A progress that remembers what it was told."""

    def __init__(self):
        self.said, self.updates = [], []

    def say(self, text):
        self.said.append(text)

    def update(self, facts):
        self.updates.append(facts)


def test_train_as_a_function(tmp_path):
    """headrace.train gives the results; an unfinished run starts again, its cuts as they were."""
    write_records(tmp_path)
    run = load_recipe(write_recipe(tmp_path, options="stages=2, epochs=1"))
    out = tmp_path / "out"
    results = library.train(run, out)
    before = weights(out)
    config = json.loads((out / "config.json").read_text())
    (out / "results.json").unlink()
    (out / "error-stage-1.txt").write_text("left")
    (out / "config.json").write_text(json.dumps({**config, "cuts": [3]}))
    told = Told()

    again = library.train(run, str(out), progress=told)

    assert results.keys() == again.keys()
    assert json.loads((out / "results.json").read_text()) == again
    assert told.said[0] == f"{out} holds this run, unfinished; it starts again"
    assert "given" in told.said[1]
    assert json.loads((out / "config.json").read_text())["cuts"] == [3]
    assert not (out / "error-stage-1.txt").exists()
    assert weights(out).keys() == before.keys()


def test_one_stage_is_one_process(tmp_path):
    """The two fields are read by one stage; a run of one stage has no cuts."""
    write_records(tmp_path)
    run = load_recipe(write_recipe(tmp_path, options="stages=1, epochs=1, strategy=headrace.FLUSH"))

    results = library.train(run, tmp_path / "out")

    assert results["bytes_read"] == {"0": NUM_RECORDS * (INPUT_BYTES + TARGET_BYTES)}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["cuts"] == []


def test_a_last_batch_that_is_not_full_is_left_out(tmp_path):
    """drop_last: 6 full batches of 200 records, in training; the evaluation sees them all."""
    write_records(tmp_path)
    options = f"stages=2, epochs=1, drop_last=True, {EVALUATION}"
    run = load_recipe(write_recipe(tmp_path, options=options))

    results = library.train(run, tmp_path / "out")

    assert (results["batches"], results["records"]) == (6, 192)
    assert results["bytes_read"] == {"0": 192 * INPUT_BYTES, "1": 192 * TARGET_BYTES}
    assert (results["accuracy"] * NUM_RECORDS) % 1 == pytest.approx(0, abs=1e-9)


ORDINARY = """

def model():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 16)
            self.norm = nn.BatchNorm1d(16)
            self.middle = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
            self.last = nn.Linear(16, 3)

        def forward(self, x):
            x = self.norm(self.first(x))
            for layer in self.middle:
                x = x + torch.tanh(layer(x))
            return self.last(x)

    return Net()
"""


@pytest.mark.slow
def test_an_ordinary_module(tmp_path):
    """Two processes train what one does; the plain model takes the weights."""
    write_records(tmp_path)
    path = write_recipe(tmp_path, more=ORDINARY)
    for out, options in (("two", ()), ("one", ("--simulate",))):
        headrace("train", path.name, "--cuts", 2, "--out", out, *options, cwd=tmp_path)

    assert same_bits(tmp_path / "two", tmp_path / "one")
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    model = load_recipe(path).model()
    model.load_state_dict(load_model(tmp_path / "two"))
    assert lines(tmp_path / "two", "epoch")[-1]["loss"] < 1.0
