"""The pipeline in a training loop of one's own: torchrun --nproc-per-node 2 examples/own_loop.py"""

import sys

import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

import headrace
from headrace.recipes.models import next_byte_loss
from headrace.recipes.stdlib_gpt import data, model


def main(num_batches: int) -> None:
    torch.manual_seed(0)  # the same first weights in every process
    mesh = headrace.Mesh.from_environment()
    pipe = headrace.Pipeline(
        model(),
        next_byte_loss,
        optimizer=AdamW,
        scheduler=lambda optimizer: OneCycleLR(optimizer, 2e-3, total_steps=num_batches),
        stages=mesh.num_stages,
        micro_batches=4,
        mesh=mesh,
    )
    needs_data = pipe.is_first or pipe.is_last
    losses = []
    for number, batch in enumerate(headrace.Loader(data(), 16, tensors=True)):
        if number == num_batches:
            break
        losses += pipe.step((batch["window"], batch["next"]) if needs_data else None)
    losses += pipe.drain()
    if pipe.is_last:
        first, last = torch.stack(losses[:10]).mean(), torch.stack(losses[-10:]).mean()
        print(f"{len(losses)} batches: loss {first:.2f} -> {last:.2f}")
    pipe.close()
    mesh.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
