"""Hugging Face's models, which torch.export follows, against themselves, bit by bit."""

import copy

import pytest
import torch
from torch.nn import functional

from headrace.errors import ModelError
from headrace.pipeline.graph import layers
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.strategy import FLUSH, FORECAST
from headrace.shares import even_sizes
from tests.processes import run_ranks

transformers = pytest.importorskip("transformers")

# Without dropout: its random numbers come from each unit's own seed, not from one sequence.
GPT2 = {
    "n_layer": 3,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 31,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": False,
    "tie_word_embeddings": False,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
BERT = {
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 31,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
T5 = {
    "num_layers": 3,
    "d_model": 16,
    "d_kv": 8,
    "num_heads": 2,
    "d_ff": 32,
    "vocab_size": 31,
    "dropout_rate": 0.0,
}
VIT = {
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))


def t5():
    return transformers.T5EncoderModel(transformers.T5Config(**T5))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(**VIT))


def words(rows, length=9):
    generator = torch.Generator().manual_seed(rows)
    tokens = torch.randint(1, 31, (rows, length), generator=generator)
    mask = torch.ones_like(tokens)
    mask[::2, 6:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def pictures(rows):
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(rows))


def of_words(output, target):
    """The next word's cross entropy."""
    logits = output.logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


def of_class(output, target):
    return functional.cross_entropy(output.logits, target)


def of_hidden(output, target):
    return (output.last_hidden_state[:, 0, 0] - target).pow(2).mean()


def word_targets(rows):
    return words(rows)["input_ids"]


def classes(rows):
    return torch.arange(rows) % 2


def numbers(rows):
    return torch.linspace(-1, 1, rows)


MODELS = {
    "GPT-2": (gpt2, words, ("input_ids", "attention_mask"), of_words, word_targets),
    "BERT": (bert, words, ("input_ids", "attention_mask"), of_class, classes),
    "T5 encoder": (t5, words, ("input_ids", "attention_mask"), of_hidden, numbers),
    "ViT": (vit, pictures, None, of_class, classes),
}
SIZES = (8, 8, 5)


def made(name):
    torch.manual_seed(2)
    return MODELS[name][0]()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def batches_of(name):
    _, inputs, _, _, targets = MODELS[name]
    return [(inputs(size), targets(size)) for size in SIZES]


def pipeline_of(model, name, num_stages, strategy, **options):
    _, inputs, arguments, loss, _ = MODELS[name]
    return Pipeline(
        model,
        loss,
        optimizer,
        stages=num_stages,
        micro_batches=2,
        strategy=strategy,
        arguments=arguments,
        example=inputs(2),
        **options,
    )


def parts_of(value, sizes):
    if not isinstance(value, dict):
        return value.split(sizes)
    parts = {key: tensor.split(sizes) for key, tensor in value.items()}
    return [{key: parts[key][i] for key in parts} for i in range(len(sizes))]


def called(model, value):
    return model(**value) if isinstance(value, dict) else model(value)


def plainly_trained(model, name):
    """Losses of the batches; gradients of the micro-batches added up, weighted by records."""
    loss = MODELS[name][3]
    own = optimizer(model.parameters())
    model.train()
    losses = []
    for inputs, targets in batches_of(name):
        sizes = even_sizes(len(targets), 2)
        total = []
        own.zero_grad()
        for part, target in zip(parts_of(inputs, sizes), targets.split(sizes), strict=True):
            some = loss(called(model, part), target) * (len(target) / len(targets))
            some.backward()
            total.append(some.detach())
        own.step()
        losses.append(torch.stack(total).sum().item())
    return losses


@pytest.fixture(scope="module")
def plain():
    """name -> losses and state of the plain model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {}
    for name in MODELS:
        model = made(name)
        losses = plainly_trained(model, name)
        found[name] = losses, copy.deepcopy(model.state_dict())
    torch.set_num_threads(threads)
    return found


SLOW = pytest.mark.slow


@pytest.mark.parametrize("num_stages", [*(pytest.param(n, marks=SLOW) for n in (1, 2, 4)), 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_flushed_pipeline_is_the_plain_model(name, num_stages, plain):
    """Losses and all of the state, bit by bit; batches of other sizes than the example's."""
    pipeline = pipeline_of(made(name), name, num_stages, FLUSH)
    losses = []
    pipeline.train(
        batches_of(name), on_batch=lambda number, loss, records: losses.append(loss.item())
    )
    expected, state = plain[name]
    assert losses == expected
    found = pipeline.state_dict()
    assert found.keys() == state.keys()
    for key, tensor in state.items():
        assert torch.equal(found[key], tensor), key


def test_other_lengths_and_one_record():
    """What the example fixed is the number of dimensions alone; so in evaluation."""
    model = made("GPT-2")
    twin = copy.deepcopy(model)
    chain = layers(model, ("input_ids", "attention_mask"), words(2))
    for mode in (True, False):
        twin.train(mode)
        for rows, length in ((3, 5), (1, 17), (1, 1)):
            value = given = words(rows, length)
            for layer in chain:
                layer.module.train(mode)
                value = layer.module(value)
            assert torch.equal(value.logits, twin(**given).logits)


def trained_by(rank, num_ranks, name):
    from headrace.pipeline.mesh import Mesh

    pipeline = pipeline_of(
        made(name), name, num_ranks, FORECAST, mesh=Mesh.from_environment(num_ranks)
    )
    losses = []
    pipeline.train(
        batches_of(name), on_batch=lambda number, loss, records: losses.append(loss.item())
    )
    pipeline.close()
    return losses


@SLOW
def test_processes_do_what_one_process_does():
    """The mask and sizes cross the cuts; weights are predicted."""
    pipeline = pipeline_of(made("GPT-2"), "GPT-2", 2, FORECAST)
    losses = []
    pipeline.train(
        batches_of("GPT-2"), on_batch=lambda number, loss, records: losses.append(loss.item())
    )
    *_, found = run_ranks(trained_by, 2, "GPT-2")
    assert found == losses


def test_without_an_example():
    """What torch.fx cannot follow stays one step; with an example it is cut."""
    model = made("BERT")
    arguments = ("input_ids", "attention_mask")
    assert [layer.name for layer in layers(model, arguments)] == ["bert", "classifier"]
    names = [layer.name for layer in layers(model, arguments, words(2))]
    assert names[-1] == "classifier"
    assert "bert.encoder.layer.1.attention.self.query" in names


def test_tied_words():
    """GPT-2's own default: refused across a cut, with both names."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**{**GPT2, "tie_word_embeddings": True})
    )
    with pytest.raises(ModelError, match="used in two stages .*'lm_head.weight'"):
        pipeline_of(model, "GPT-2", 2, FLUSH)
