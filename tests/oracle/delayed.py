"""Training with delayed and predicted weights, from the equations; shares no code with headrace.

Stage k of n is y = tanh(x W^T + b). Micro-batches q = 0, 1, ... of one segment, in flat order.
Before its forward pass of q, stage k has done the backward passes of the first
max(0, q - head_start (n - 1 - k)); before its backward pass of q, those of the first q. It has
applied a batch when all its backward passes are done.
"""

import copy
import math

import torch


class Stage:
    def __init__(self, weight, bias, make_optimizer, make_scheduler):
        self.w = [torch.nn.Parameter(weight.clone()), torch.nn.Parameter(bias.clone())]
        self.optimizer = make_optimizer(self.w)
        self.scheduler = make_scheduler(self.optimizer) if make_scheduler else None
        self.history = [[p.detach().clone() for p in self.w]]  # version -> weights
        self.states = [copy.deepcopy(self.optimizer.state_dict())]  # version -> optimizer state
        self.gradients = {}  # q -> weighted gradients
        self.forecasts = {}  # batch -> weights
        self.steps = [0]  # the versions that a step of the optimizer gave
        self.make_optimizer = make_optimizer

    def step(self, gradients):
        """None: a batch without records, which makes a version but no step."""
        if gradients is not None:
            for p, g in zip(self.w, gradients, strict=True):
                p.grad = g.clone()
            self.optimizer.step()
            self.steps.append(len(self.history))
        if self.scheduler:
            self.scheduler.step()
        self.history.append([p.detach().clone() for p in self.w])
        self.states.append(copy.deepcopy(self.optimizer.state_dict()))

    def velocity(self, version):
        """The last applied update."""
        last = max(v for v in self.steps if v <= version)
        if last == 0:
            return [torch.zeros_like(p) for p in self.history[0]]
        now, before = self.history[last], self.history[last - 1]
        return [a - b for a, b in zip(now, before, strict=True)]

    def moved(self, version, steps):
        velocity = self.velocity(version)
        return [p + steps * v for p, v in zip(self.history[version], velocity, strict=True)]

    def stepped(self, version, gradients):
        """The real optimizer, copied, stepped on the gradients from a version on."""
        w = [torch.nn.Parameter(p.clone()) for p in self.history[version]]
        optimizer = self.make_optimizer(w)
        optimizer.load_state_dict(copy.deepcopy(self.states[version]))
        for step in gradients:
            for p, g in zip(w, step, strict=True):
                p.grad = g.clone()
            optimizer.step()
        return [p.detach() for p in w]


def train(strategy, weights, batches, counts, make_optimizer, head_start=1, make_scheduler=None):
    """Returns (losses of the batches, final weights of the stages).

    weights: [(W, b)] a stage; batches: [[(x, target)] a micro-batch] with their numbers in counts.
    """
    n = len(weights)
    stages = [Stage(w, b, make_optimizer, make_scheduler) for w, b in weights]
    ends = [sum(counts[: t + 1]) for t in range(len(counts))]  # flat number after a batch's last

    def applied(num_backwards):
        return sum(end <= num_backwards for end in ends)

    # the most updates that stage 0 has yet to make when a full batch enters
    largest = math.ceil(head_start * (n - 1) / max(counts))
    flat = [(t, j) for t, count in enumerate(counts) for j in range(count)]
    losses = []
    for q, (t, j) in enumerate(flat):
        x, target = batches[t][j]
        share = [len(part[0]) for part in batches[t]]
        weight = share[j] / sum(share) if share[j] else 0.0
        xs, ys = [], []
        for k, stage in enumerate(stages):
            ahead = head_start * (n - 1 - k)
            version = applied(max(0, q - ahead))
            w, b = forward_weights(
                strategy, stage, version, t, q, ahead, n, k, batches, flat, largest
            )
            xs.append(x)
            x = torch.tanh(x @ w.T + b)
            ys.append(x)
            stage.used = (w, b)
        mean = 0.5 * ((x - target) ** 2).sum(1).sum() / max(1, len(target))
        losses.append((t, weight * mean))
        g = weight * (x - target) / max(1, len(target))
        for k, stage in reversed(list(enumerate(stages))):
            w = backward_weight(strategy, stage, t, k)
            inner = g * (1 - ys[k] ** 2)
            stage.gradients[q] = [inner.T @ xs[k], inner.sum(0)]
            g = inner @ w
        if q + 1 == ends[t]:
            for stage in stages:
                rows = range(ends[t] - counts[t], ends[t])
                has_records = any(len(part[0]) for part in batches[t])
                summed = [sum(stage.gradients[r][p] for r in rows) for p in range(2)]
                stage.step(summed if has_records else None)
    totals = [sum(loss for s, loss in losses if s == t).item() for t in range(len(counts))]
    return totals, [[p.detach() for p in stage.w] for stage in stages]


def forward_weights(strategy, stage, version, t, q, ahead, n, k, batches, flat, largest):
    steps = t - version
    if strategy in ("STASH", "STALE"):
        return stage.history[version]
    if strategy == "DOUBLE_BUFFER":
        return stage.history[max(0, t - largest)]
    if strategy == "PREDICT":
        return stage.moved(version, steps)
    if strategy == "SPECTRAIN":  # one micro-batch a batch: the ramp, then floor(k/2) + n - k - 1
        return stage.moved(version, k // 2 + min(q, n - k - 1))
    assert strategy in ("FORECAST", "FORECAST_LEAN")
    if steps == 0:
        return stage.history[version]
    if (
        t not in stage.forecasts or strategy == "FORECAST_LEAN"
    ):  # made at the batch's first forward pass, serves all early ones
        done = max(0, q - ahead)
        of_batch = [r for r in range(len(flat)) if flat[r][0] == version]
        sizes = [len(part[0]) for part in batches[version]]
        known = [r for r in of_batch if r < done]
        share = sum(sizes[flat[r][1]] for r in known) / max(1, sum(sizes))
        zero = [torch.zeros_like(p) for p in stage.history[0]]
        mean_in = [sum((stage.gradients[r][p] for r in known), zero[p]) for p in range(2)]
        earlier = [s for s in range(version) if any(len(part[0]) for part in batches[s])]
        if not earlier:
            further = first = [g / share for g in mean_in] if share else zero
        else:
            before = [r for r in range(len(flat)) if flat[r][0] == earlier[-1]]
            further = [sum(stage.gradients[r][p] for r in before) for p in range(2)]
            first = [g + (1 - share) * b for g, b in zip(mean_in, further, strict=True)]
        if not earlier and not share:
            stage.forecasts[t] = stage.history[version]
        else:
            stage.forecasts[t] = stage.stepped(version, [first] + [further] * (steps - 1))
    return stage.forecasts[t]


def backward_weight(strategy, stage, t, k):
    if strategy == "SPECTRAIN":
        return stage.moved(t, k // 2)[0]
    if strategy in ("STALE", "FORECAST_LEAN"):
        return stage.history[-1][0]
    return stage.used[0]
