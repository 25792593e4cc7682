"""The training loop: headrace.train."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from headrace.data.loader import Loader
from headrace.data.order import SequentialOrder
from headrace.data.records import Records
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.progress import Progress, Silent
from headrace.runs.busy import BusyBoard
from headrace.runs.checkpoint import Shard, write_index, write_shard
from headrace.runs.config import Run, identity
from headrace.runs.folder import claim, write_config, write_results
from headrace.runs.launch import is_launched, reporting
from headrace.runs.metrics import Meter
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
        epochs, batches, records, loss (of the last epoch), samples_per_s, seconds, busy, and the
        evaluation's metrics by their names, as in `results.json`. Empty in a process without the
        last stage.

    Raises:
        InputError: what is wrong with the run, before it starts.
        RunError: what went wrong while it ran.
    """
    folder = Path(out)
    with ExitStack() as stack, reporting(folder):
        prepared = prepare(run)
        who = identity(run, prepared.records, recipe)
        held = claim(folder, who)
        mesh = Mesh.from_environment(run.stages) if is_launched() else None
        is_last = mesh is None or mesh.stage == mesh.num_stages - 1
        progress = progress if progress is not None and is_last else Silent()
        if held.results is not None:
            progress.say(f"{folder} holds this run, finished; choose another --out to train again")
            return held.results

        def placed() -> dict[str, object]:
            device = torch.device("cpu") if mesh is None else mesh.device
            placement = place(run, prepared, cuts=run.cuts or held.cuts, device=device).to_json()
            write_config(folder, who, recipe=recipe, placement=placement)
            return placement

        placement = Placement.from_json(mesh.from_stage(0, "placement", placed) if mesh else placed())
        if not held.is_new:
            progress.say(f"{folder} holds this run, unfinished; it starts again")
        progress.say(f"{_title(run, prepared)}\n{placement}")

        pipeline = Pipeline(
            prepared.model,
            run.loss,
            run.optimizer,
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
        loader = stack.enter_context(_loader(run, prepared.records, pipeline))
        board = BusyBoard(mesh, pipeline.busy_s)
        meter = None
        if is_last:
            meter = Meter(folder / "metrics.jsonl", progress, len(loader), board.shares)
            stack.callback(meter.close)

        results: dict[str, object] = {}
        seconds = num_records = num_batches = 0.0
        for epoch in range(1, run.epochs + 1):
            board.start_epoch()
            if meter:
                meter.start_epoch(epoch)
            summary = pipeline.train(_batches(run, loader, board), meter and meter.on_batch)
            busy = board.final(epoch, summary.busy)
            figures = _evaluated(run, prepared.evaluation, pipeline)

            seconds += summary.seconds
            num_records += summary.num_records
            num_batches += summary.num_batches
            facts: dict[str, object] = {
                "batches": summary.num_batches,
                "records": summary.num_records,
                "loss": summary.loss,
                "seconds": round(summary.seconds, 3),
                "samples_per_s": round(summary.num_records / summary.seconds, 2),
                "busy": {str(stage): round(share, 4) for stage, share in busy.items()},
                **figures,
            }
            if meter:
                meter.end_epoch(facts)
                progress.say(_line(epoch, facts, figures))
                results = {
                    "epochs": epoch,
                    **facts,
                    "batches": int(num_batches),
                    "records": int(num_records),
                    "seconds": round(seconds, 3),
                    "samples_per_s": round(num_records / seconds, 2),
                }

        _save(folder, pipeline, mesh)
        if is_last:
            write_results(folder, results)
        if mesh:
            mesh.barrier()
        pipeline.close()
        if mesh:
            mesh.close()
        return results


def _title(run: Run, prepared: Prepared) -> str:
    """One line that says what is trained and how."""
    stages = f"{run.stages} stage{'s' if run.stages > 1 else ''}"
    return (
        f"{len(prepared.records):,} records in batches of {run.batch_size}, {stages}, "
        f"{run.micro_batches} micro-batches, {run.strategy.name} on {run.schedule_name}"
    )


def _line(epoch: int, facts: Mapping[str, object], figures: Mapping[str, float]) -> str:
    """One line that says how an epoch went."""
    shown = [f"loss {facts['loss']:.4f}", f"{facts['samples_per_s']:,.0f} samples/s"]
    shown += [f"{name} {value:.4f}" for name, value in figures.items()]
    return f"epoch {epoch}: {', '.join(shown)}"


def _loader(run: Run, records: Records, pipeline: Pipeline, *, evaluates: bool = False) -> Loader:
    """Reads only what the stages of this process need: inputs first, targets last, else nothing."""
    wanted = [run.inputs] * pipeline.is_first + [run.targets] * pipeline.is_last
    return Loader(
        records,
        run.batch_size,
        order=SequentialOrder() if evaluates else run.order_of_records,
        fields=list(dict.fromkeys(wanted)),
        drop_last=run.drop_last and not evaluates,
        num_micro_batches=run.micro_batches,
        tensors=True,
    )


def _batches(run: Run, loader: Loader, board: BusyBoard | None = None) -> Iterator[Batch]:
    """An epoch's batches, for the stages of this process; on the way says how busy they are."""
    for num_records, fields in zip(loader.batch_sizes(), loader, strict=True):
        if board:
            board.tell()
        yield Batch(num_records, fields.get(run.inputs), fields.get(run.targets))


def _evaluated(run: Run, records: Records | None, pipeline: Pipeline) -> dict[str, float]:
    """The metrics' means over the evaluation's records; empty without them, or without the last
    stage."""
    if records is None:
        return {}
    with _loader(run, records, pipeline, evaluates=True) as loader:
        return pipeline.evaluate(_batches(run, loader), run.metrics)


def _save(folder: Path, pipeline: Pipeline, mesh: Mesh | None) -> None:
    """Writes each stage's weights where the stage is, then the index where the last stage is."""
    if mesh is None:
        write_index(folder, [write_shard(folder, pipeline.state_dict(), 0, 1)])
        return
    shard = write_shard(folder, pipeline.state_dict(), mesh.stage, mesh.num_stages)
    mesh.publish(f"shard/{mesh.stage}", [shard.file, shard.names, shard.num_bytes])
    if mesh.stage == mesh.num_stages - 1:
        told = [mesh.read(f"shard/{stage}") for stage in range(mesh.num_stages)]
        write_index(folder, [Shard(file, tuple(names), size) for file, names, size in told])
