"""Learning rates of schedules, metrics, and averages of models. See cases.py."""
import torch
from torch import nn

from cases import cases, flat, seed, shape, write

seed()


def number(low, high):
    return round(float(torch.rand(())) * (high - low) + low, 4)


def whole(low, high):
    return int(torch.randint(low, high + 1, ()))


def some(*of):
    return of[whole(0, len(of) - 1)]


def optimizer(rates):
    """SGD with a group for each rate."""
    return torch.optim.SGD([dict(params=[nn.Parameter(torch.zeros(1))], lr=lr) for lr in rates], lr=1.0, momentum=0.5)


def record(op, values, **args):
    cases.append(dict(op=op, args=args, inputs={}, output=[[len(values)], [v if abs(v) < float("inf") else str(v) for v in values]], grads={}))


def schedules():
    lr = torch.optim.lr_scheduler
    for i in range(20):
        args = dict(T_0=whole(1, 9), T_mult=whole(1, 3), eta_min=some(0, number(0, 0.05)))
        opt = optimizer([0.1])
        s = lr.CosineAnnealingWarmRestarts(opt, **args)
        rates = []
        for _ in range(30):
            rates.append(opt.param_groups[0]["lr"])
            opt.step()
            s.step()
        record("schedule", rates, name="CosineAnnealingWarmRestarts(%s)" % ", ".join("%s=%s" % a for a in args.items()), lr=0.1)
    for i in range(20):
        n, groups = whole(4, 30), whole(1, 3)
        greatest = [number(0.1, 2) for _ in range(groups)]
        low, high = [number(0.5, 0.8) for _ in range(groups)], [number(0.8, 0.99) for _ in range(groups)]
        rest = dict(total_steps=n, pct_start=number(0.3, 0.45), anneal_strategy=some("cos", "linear"), three_phase=some(True, False), div_factor=number(2, 30))
        opt = optimizer([0.1] * groups)
        s = lr.OneCycleLR(opt, max_lr=greatest, base_momentum=low, max_momentum=high, **rest)
        values = []
        for k in range(n):
            for g in opt.param_groups:
                values += [g["lr"], g["momentum"]]
            opt.step()
            if k + 1 < n:
                s.step()
        names = ["OneCycleLR(max_lr=%s, base_momentum=%s, max_momentum=%s, %s)" % (a, b, c, ", ".join("%s=%s" % x for x in rest.items()))
                 for a, b, c in zip(greatest, low, high)]
        record("schedule_groups", values, names=names)
    for i in range(30):
        groups = whole(1, 3)
        rates = [number(0.01, 1) for _ in range(groups)]
        args = dict(mode=some("min", "max"), factor=number(0.1, 0.9), patience=whole(0, 3), threshold=some(1e-4, number(0, 0.2)),
                    threshold_mode=some("rel", "abs"), cooldown=whole(0, 3), min_lr=some(0, [number(0, 0.2) for _ in range(groups)]), eps=some(1e-8, 0.02))
        if i == 0:
            args = {}
        opt = optimizer(rates)
        s = lr.ReduceLROnPlateau(opt, **args)
        metrics, values = [], []
        for _ in range(30):
            at = number(-1, 1) if i % 2 else round(1 / (1 + len(metrics)) + number(0, 0.1), 4)
            metrics.append("nan" if whole(0, 12) == 0 else "inf" if args.get("mode") != "max" and whole(0, 12) == 0 else at)
            s.step(float(metrics[-1]))
            values += [g["lr"] for g in opt.param_groups]
        record("plateau", values, name="ReduceLROnPlateau(%s)" % ", ".join("%s=%s" % a for a in args.items()), lr=rates, metrics=metrics)


def metrics():
    """Accuracy, the mean loss, perplexity and the confusion matrix of some batches."""
    for i in range(20):
        classes, rest, ignore = whole(1, 7), shape(2, 3) if i % 3 == 0 else [], some(None, -100, 0)
        inputs, right, all, loss = {}, 0, 0, 0.0
        confusion = torch.zeros(classes, classes, dtype=torch.int64)
        for k in range(whole(1, 3)):
            n = whole(1, 9)
            x = torch.randn(n, classes, *rest)
            if k == 0:
                x = x.round()  # ties
            y = torch.randint(0, classes, (n, *rest))
            if ignore is not None:
                y[torch.rand(y.shape) < 0.3] = ignore
            counted = y != ignore if ignore is not None else torch.ones_like(y, dtype=torch.bool)
            # The first of equal ones, which torch.argmax does not promise.
            best = (x == x.amax(1, keepdim=True)).to(torch.int64).argmax(1)
            right, all = right + int((best == y)[counted].sum()), all + int(counted.sum())
            if counted.any():
                loss += float(nn.functional.cross_entropy(x, y, ignore_index=ignore if ignore is not None else -100)) * int(counted.sum())
            confusion.view(-1).index_add_(0, (y * classes + best)[counted], torch.ones(int(counted.sum()), dtype=torch.int64))
            for name, v in (("logits%d" % k, x), ("labels%d" % k, y)):
                inputs[name] = dict(shape=list(v.shape), values=flat(v), int=not v.is_floating_point())
        mean = torch.tensor(loss) / all
        values = [float(torch.tensor(float(right)) / all), float(mean), float(mean.exp())] + flat(confusion)
        values = [v if abs(v) < float("inf") else str(v) for v in values]
        cases.append(dict(op="metrics", args=dict(ignore=ignore, classes=classes), inputs=inputs, output=[[len(values)], values], grads={}))


def averages():
    """Averages of a model's parameters and buffers (swa_utils), as an exponential mean of the steps."""
    for i in range(20):
        decay = number(0, 1)
        model = nn.Module()
        model.p = nn.Parameter(torch.randn(shape()))
        model.register_buffer("b", torch.randn(shape()))
        average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda a, p, n: decay * a + (1 - decay) * p, use_buffers=True)
        average.update_parameters(model)
        steps = []
        for _ in range(1 + whole(1, 4)):
            steps.append([flat(model.p), flat(model.b)])
            model.p.data = torch.randn_like(model.p)
            model.b.copy_(torch.randn_like(model.b))
            average.update_parameters(model)
        steps.append([flat(model.p), flat(model.b)])
        values = flat(average.module.p) + flat(average.module.b)
        cases.append(dict(op="average", args=dict(decay=decay, shapes=[list(model.p.shape), list(model.b.shape)]), inputs={}, output=[[len(values)], values],
                          step_grads=steps, grads={}))


schedules()
metrics()
averages()
write()
