"""The training loop: headrace.train."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from headrace.data.records import Records
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.progress import Progress, Silent
from headrace.runs.busy import BusyBoard
from headrace.runs.checkpoint import Shard, write_index, write_shard
from headrace.runs.config import Run, identity
from headrace.runs.feed import Feed
from headrace.runs.folder import Claim, claim, write_config, write_results
from headrace.runs.gather import gathered
from headrace.runs.launch import is_launched, reporting
from headrace.runs.metrics import Meter, overall
from headrace.runs.placement import Placement, place
from headrace.runs.prepare import Prepared, prepare

__all__ = ["train"]


def train(
    run: Run, out: Path | str, *, progress: Progress | None = None, recipe: Path | None = None
) -> Mapping[str, object]:
    """Trains a run and leaves its configuration, metrics and weights in a folder.

    A process that a launcher has started (`headrace train`, torchrun) drives its own stage; any
    other drives all stages, one after another, with the same bits.

    Args:
        run: what to train.
        out: the folder. One that holds the finished run is left as it is; an unfinished run of the
            same identity starts again; a different run is refused.
        progress: who is told, in the process of the last stage.
        recipe: the file that the run comes from; its hash is part of the run's identity.

    Returns:
        epochs, batches, records, left_out (those of them that were not trained on: damaged, or left
        out by a transform), seconds, samples_per_s and bytes_read (by stage) of the whole run;
        loss, busy (by stage) and the evaluation's metrics by their names of the last epoch; as in
        `results.json`. Empty in a process without the last stage.

    Raises:
        InputError: what is wrong with the run, before it starts.
        RunError: what went wrong while it ran.
    """
    folder = Path(out)
    with reporting(folder):
        prepared = prepare(run)
        who = identity(run, prepared.records, recipe)
        held = claim(folder, who)
        mesh = Mesh.from_environment(run.stages) if is_launched() else None
        is_last = mesh is None or mesh.stage == mesh.num_stages - 1
        told = progress if progress is not None and is_last else Silent()
        if held.results is not None:
            told.say(f"{folder} holds this run, finished; choose another --out to train again")
            if mesh:
                mesh.close()
            return held.results if is_last else {}

        def placed() -> dict[str, object]:
            placement = _placed(run, prepared, held, mesh)
            write_config(folder, who, recipe=recipe, placement=placement)
            return placement

        given = mesh.from_stage(0, "placement", placed) if mesh else placed()
        placement = Placement.from_json(given)
        if not held.is_new:
            told.say(f"{folder} holds this run, unfinished; it starts again")
        told.say(f"{_title(run, prepared)}\n{placement}")
        pipeline = _pipeline(run, prepared, placement, mesh)
        results = _trained(run, prepared, pipeline, mesh, folder, told)
        _save(folder, pipeline, mesh)
        if is_last:
            write_results(folder, results)
        if mesh:
            mesh.barrier()
        pipeline.close()
        if mesh:
            mesh.close()
        return results


def _placed(run: Run, prepared: Prepared, held: Claim, mesh: Mesh | None) -> dict[str, object]:
    device = torch.device("cpu") if mesh is None else mesh.device
    return place(run, prepared, cuts=run.cuts or held.cuts, device=device).to_json()


def _title(run: Run, prepared: Prepared) -> str:
    """One line that says what is trained and how."""
    stages = f"{run.stages} stage{'s' if run.stages > 1 else ''}"
    return (
        f"{len(prepared.records):,} records in batches of {run.batch_size}, {stages}, "
        f"{run.micro_batches} micro-batches, {run.strategy.name} on {run.schedule_name}"
    )


def _pipeline(run: Run, prepared: Prepared, placement: Placement, mesh: Mesh | None) -> Pipeline:
    return Pipeline(
        prepared.layers,
        run.loss,
        run.optimizer,
        scheduler=run.scheduler,
        autocast=run.autocast,
        stages=run.stages,
        micro_batches=run.micro_batches,
        strategy=run.strategy,
        schedule=run.schedule,
        cuts=placement.cuts,
        segment_batches=run.segment_batches,
        seed=run.seed,
        threads_per_stage=run.threads_per_stage,
        count=run.count,
        mesh=mesh,
    )


def _trained(
    run: Run,
    prepared: Prepared,
    pipeline: Pipeline,
    mesh: Mesh | None,
    folder: Path,
    progress: Progress,
) -> dict[str, object]:
    """Trains all epochs; the results in the process of the last stage, elsewhere nothing."""
    board = BusyBoard(mesh, pipeline.busy_s)
    lines = []
    with ExitStack() as stack:
        feed = stack.enter_context(Feed(run, prepared.records, _stages(pipeline)))
        meter = None
        if pipeline.is_last:
            meter = Meter(folder / "metrics.jsonl", progress, len(feed), board.shares)
            stack.callback(meter.close)
        for epoch in range(1, run.epochs + 1):
            board.start_epoch()
            if meter:
                meter.start_epoch(epoch)
            read, known = feed.bytes_read(), len(feed.damage())
            summary = pipeline.train(_telling(feed, board), meter.on_batch if meter else None)
            own = {k: (summary.busy[k], now - read[k]) for k, now in feed.bytes_read().items()}
            damage = feed.damage()[known:]
            figures, damage_there = _evaluated(run, prepared.evaluation, pipeline)
            if epoch == 1:  # it is the same in each evaluation
                damage += damage_there
            stages = gathered(mesh, f"epoch/{epoch}", own)
            told = gathered(mesh, f"damage/{epoch}", {min(own): damage})
            if meter:
                lines.append(meter.end_epoch(summary, stages, figures))
                progress.say(_line(lines[-1], figures))
                for message in _first(told.values()):
                    progress.say(f"left out: {message}")
    return overall(lines) if lines else {}


def _stages(pipeline: Pipeline) -> list[int]:
    """Those that this process drives."""
    return list(pipeline.busy_s())


def _telling(feed: Feed, board: BusyBoard) -> Iterator[Batch]:
    """The batches; on the way says how busy this process's stages are."""
    for batch in feed:
        board.tell()
        yield batch


def _line(facts: Mapping[str, object], figures: Mapping[str, float]) -> str:
    """One line that says how an epoch went."""
    loss = facts["loss"]
    shown = ["no loss" if loss is None else f"loss {loss:.4f}"]
    shown.append(f"{facts['samples_per_s']:,.0f} samples/s")
    shown += [f"{name} {value:.4f}" for name, value in figures.items()]
    if left_out := facts["left_out"]:
        shown.append(f"{left_out:,} of {facts['records']:,} records left out")
    return f"epoch {facts['epoch']}: {', '.join(shown)}"


def _first(messages: Iterable[Sequence[str]]) -> list[str]:
    """The first ten of all stages' messages, each once."""
    return list(dict.fromkeys(message for some in messages for message in some))[:10]


def _evaluated(
    run: Run, records: Records | None, pipeline: Pipeline
) -> tuple[dict[str, float], list[str]]:
    """The metrics' means over the evaluation's records, empty without them or without the last
    stage; and what was wrong with damaged ones."""
    if records is None:
        return {}, []
    with Feed(run, records, _stages(pipeline), evaluates=True) as feed:
        return pipeline.evaluate(feed, run.metrics), feed.damage()


def _save(folder: Path, pipeline: Pipeline, mesh: Mesh | None) -> None:
    """Writes each stage's weights where the stage is, then the index where the last stage is."""
    number, num_shards = (mesh.stage, mesh.num_stages) if mesh else (0, 1)
    shard = write_shard(folder, pipeline.state_dict(), number, num_shards)
    own = {number: (shard.file, shard.names, shard.num_bytes)}
    shards = gathered(mesh, "shard", own).values()
    if pipeline.is_last:
        write_index(folder, [Shard(file, tuple(names), size) for file, names, size in shards])
