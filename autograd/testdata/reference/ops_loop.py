"""Learning rates of schedules. See cases.py."""
import torch
from torch import nn

from cases import cases, seed, write

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


schedules()
write()
