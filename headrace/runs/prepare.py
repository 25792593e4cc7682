"""What a run needs before it starts: its records and its model, with all their faults at once."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from headrace.data.records import Records
from headrace.errors import DataError, HeadraceError, InputError, ModelError, RecipeError
from headrace.pipeline.graph import Layer, is_chain, layers, require_untied
from headrace.pipeline.partition import partition, require_cuts
from headrace.runs.config import Run
from headrace.runs.feed import sample_of

__all__ = ["Prepared", "prepare"]

T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """What was opened and made.

    Args:
        records: to train on.
        evaluation: to evaluate on.
        model: with its first weights, the same in every process of the run.
        layers: of the model.
    """

    records: Records
    evaluation: Records | None
    model: nn.Module
    layers: list[Layer]


def prepare(run: Run) -> Prepared:
    """Opens the records and makes the model.

    Raises:
        InputError: what is wrong with them; with several faults, all of them in one RecipeError.
    """
    faults: list[InputError] = []

    def attempt(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except InputError as fault:
            faults.append(fault)
            return None

    records = attempt(lambda: _opened("data", run.data, run))
    evaluate_on = run.evaluation
    evaluation = (
        None if evaluate_on is None else attempt(lambda: _opened("evaluation", evaluate_on, run))
    )
    model = attempt(lambda: _made(run))
    chain = None if model is None else attempt(lambda: _chain(model, run, records))
    if faults or records is None or model is None or chain is None:
        raise _all_of(faults)
    return Prepared(records, evaluation, model, chain)


def _all_of(faults: list[InputError]) -> InputError:
    """One error for all faults."""
    if len(faults) == 1:
        return faults[0]
    listed = "\n".join(f"  - {fault}" for fault in faults)
    return RecipeError(f"the run has {len(faults)} problems:\n{listed}")


def _opened(role: str, opening: Callable[[], Records], run: Run) -> Records:
    """The records of one role, with the fields that the run names, and not empty."""
    records = _called(role, opening, DataError)
    if not isinstance(records, Records):
        raise DataError(
            f"{role} of the run gave something else",
            got=type(records).__name__,
            expected="headrace.open(...)",
        )
    for use, name in (("inputs", run.inputs), ("targets", run.targets)):
        if name not in records.fields:
            raise DataError(
                f"the {use} name a field that the records lack",
                got=repr(name),
                expected=" or ".join(map(repr, records.fields)),
                where=f"{role} of the run",
            )
    if len(records) == 0:
        raise DataError("no records", got=0, expected="at least 1", where=f"{role} of the run")
    num_positions = run.order_of_records.num_positions(len(records))
    if role == "data" and run.drop_last and num_positions < run.batch_size:
        raise DataError(
            "no full batch, and drop_last leaves out one that is not full",
            got=f"{num_positions} records",
            expected=f"at least batch_size = {run.batch_size}",
            where=f"{role} of the run",
            remedy="lower batch_size, or drop_last=False",
        )
    return records


def _made(run: Run) -> nn.Module:
    """The model with its first weights, which the seed decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = _called("model", run.model, ModelError)
    if not isinstance(model, nn.Module):
        raise ModelError(
            "model of the run gave something else",
            got=type(model).__name__,
            expected="an nn.Module",
        )
    return model


def _called(role: str, make: Callable[[], T], kind: type[HeadraceError]) -> T:
    """Calls what the user gave; what it raises becomes a fault that says where."""
    try:
        return make()
    except InputError:
        raise
    except Exception as error:
        raised = traceback.extract_tb(error.__traceback__)[-1]
        raise kind(
            f"{role} of the run failed",
            got=f"{type(error).__name__}: {error}".removesuffix(": "),
            where=f"{raised.filename}, line {raised.lineno}",
        ) from error


def _chain(model: nn.Module, run: Run, records: Records | None) -> list[Layer]:
    """The model's layers, enough of them; where the cuts are known, none in two stages."""
    example = None
    if records is not None and not is_chain(model):
        some = sample_of(run, records)
        example = some if len(some) > 1 else some.repeat(2, *[1] * (some.ndim - 1))
    chain = layers(model, example=example)
    if run.cuts is None:
        partition([1.0] * len(chain), run.stages)
    else:
        require_untied(chain, require_cuts(run.cuts, len(chain), run.stages))
    return chain
