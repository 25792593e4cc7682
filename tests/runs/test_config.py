"""A run says all that is wrong with it at once."""

import functools
import re

import pytest

import headrace
from headrace.errors import RecipeError
from headrace.runs.config import describe, identity
from tests.recipes import write_records

GIVEN = {
    "model": list,
    "data": list,
    "inputs": "x",
    "targets": "y",
    "loss": max,
    "optimizer": list,
    "batch_size": 32,
    "micro_batches": 4,
}


def problems_of(**changes):
    """The problems that a run with these values says it has."""
    with pytest.raises(RecipeError) as caught:
        headrace.Run(**{**GIVEN, **changes})
    first, *listed = str(caught.value).splitlines()
    assert first == (
        "the run has a problem:" if len(listed) == 1 else f"the run has {len(listed)} problems:"
    )
    return [line.removeprefix("  - ") for line in listed]


def test_a_run_without_problems():
    """The defaults: two stages, FORECAST on its own schedule, an order by the seed."""
    run = headrace.Run(**GIVEN, seed=3)

    assert (run.stages, run.strategy, run.schedule_name) == (2, headrace.FORECAST, "async_1f1b")
    assert run.order_of_records == headrace.RandomOrder(3)
    assert headrace.Run(**GIVEN, order=headrace.SequentialOrder()).order_of_records == (
        headrace.SequentialOrder()
    )


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"model": 3}, "model: got 3, expected a callable"),
        ({"data": None}, "data: got None, expected a callable"),
        ({"loss": "mse"}, "loss: got 'mse', expected a callable"),
        ({"optimizer": 0.1}, "optimizer: got 0.1, expected a callable"),
        ({"count": 1}, "count: got 1, expected a callable or None"),
        ({"strategy": "forecast"}, "strategy: got 'forecast', expected a headrace.Strategy"),
        ({"evaluation": list}, "metrics: got none, expected at least one to evaluate by"),
        ({"batch_size": 0}, "batch_size: got 0, expected an integer of 1 or more"),
        ({"micro_batches": 1.0}, "micro_batches: got 1.0, expected an integer of 1 or more"),
        ({"stages": True}, "stages: got True, expected an integer of 1 or more"),
        ({"epochs": -1}, "epochs: got -1, expected an integer of 1 or more"),
        ({"seed": -1}, "seed: got -1, expected an integer of 0 or more"),
        ({"threads_per_stage": 0}, "threads_per_stage: got 0, expected an integer of 1 or more"),
        ({"segment_batches": 0}, "segment_batches: got 0, expected an integer of 1 or more"),
        (
            {"batch_size": 3},
            "batch_size: got 3, expected at least micro_batches = 4, so that each micro-batch has "
            "a record; lower micro_batches",
        ),
        (
            {"schedule": "gpipes"},
            "schedule: got 'gpipes', expected gpipe or one_f_one_b or async_1f1b or "
            "async_eager_1f1b",
        ),
        (
            {"schedule": "gpipe"},
            "schedule: strategy FORECAST does not go with the schedule gpipe: "
            "expected async_1f1b or async_eager_1f1b",
        ),
        ({"cuts": (1, 2)}, "cuts: got (1, 2), expected 1 of them for 2 stages"),
        ({"cuts": (0,)}, "cuts: got (0,), expected layer numbers that rise, the first above 0"),
        (
            {"cuts": (2, 2), "stages": 3},
            "cuts: got (2, 2), expected layer numbers that rise, the first above 0",
        ),
        ({"cuts": "12"}, "cuts: got '12', expected a tuple such as (3, 6), or None"),
        ({"cuts": [1.5]}, "cuts: got [1.5], expected a tuple such as (3, 6), or None"),
        ({"order": 3}, "order: got 3, expected a headrace.RandomOrder or the like"),
        ({"inputs": 3}, "inputs: got 3, expected the name of a field"),
        ({"targets": ("y",)}, "targets: got ('y',), expected the name of a field"),
        ({"metrics": [max]}, "metrics: got [<built-in function max>], expected names -> callables"),
        ({"metrics": {"best": 1}}, "metrics: got {'best': 1}, expected names -> callables"),
        (
            {"metrics": {"loss": max}},
            "metrics: got the name 'loss', which the results have already; choose another",
        ),
    ],
)
def test_a_problem(changes, problem):
    """What is wrong, got and expected."""
    assert problems_of(**changes) == [problem]


def test_all_problems_at_once():
    """One error for values of every kind."""
    found = problems_of(model=None, batch_size=0, stages="2", seed=1.5, strategy=None)

    assert [problem.partition(":")[0] for problem in found] == [
        "model",
        "strategy",
        "batch_size",
        "stages",
        "seed",
    ]


def test_a_run_is_frozen():
    """It can be shared, and a change makes another."""
    with pytest.raises(AttributeError):
        headrace.Run(**GIVEN).epochs = 5


def test_callables_by_reference():
    """Functions, classes, partials with what they bind, and objects that can be called."""

    class Called:
        def __call__(self):
            pass

    assert describe(re.compile) == "re:compile"
    assert describe(list) == "builtins:list"
    assert describe(functools.partial(max, 1, key=len)) == "builtins:max(1, key=builtins:len)"
    assert describe(functools.partial(max, object())) == "builtins:max(<object object>)"
    assert describe(Called()).endswith("test_callables_by_reference.<locals>.Called")


def test_the_identity_is_what_defines_the_bits(tmp_path):
    """It changes with the seed, the records and the recipe, not with where things are."""
    write_records(tmp_path)
    recipe = tmp_path / "recipe.py"
    recipe.write_text("1")

    def who(**changes):
        records = headrace.open({name: tmp_path / f"{name}.npy" for name in "xy"})
        return identity(headrace.Run(**{**GIVEN, **changes}), records, recipe)

    first = who()
    assert who() == first
    assert who(seed=1) != first
    assert who(threads_per_stage=2) != first
    assert who(order=headrace.SequentialOrder())["order"] == {"kind": "sequential", "version": 1}
    assert first["order"] == {"kind": "random", "version": 1, "seed": 0}
    assert first["recipe_sha256"] == (
        "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"  # sha256sum of "1"
    )
    recipe.write_text("2")
    assert who() != first
    recipe.write_text("1")
    write_records(tmp_path, num_records=201)
    assert who() != first
