"""Writes golden/scaler.json: step by step, what torch.amp.GradScaler makes of overflows.

    python golden_scaler.py

The loss is `sum(c * w + q / 2 * w * w)`, so its gradient is `c + q * w`. Gradients are unscaled,
clipped by their norm, and used by SGD. Needs PyTorch.
"""

import json
import math
import pathlib

import torch

START = [0.5, -1.5, 2.0]


def case(rows, q, rates, **settings):
    weights = torch.nn.Parameter(torch.tensor(START))
    optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", **settings)
    steps = []
    for row, rate in zip(rows, rates):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        c = torch.tensor(row, dtype=torch.float32)
        loss = (c * weights + weights * weights * (q / 2)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        found = sum(v.item() for v in scaler._found_inf_per_device(optimizer).values()) > 0
        # The norm in float64: squares of these gradients overflow f32.
        norm = torch.nn.utils.get_total_norm([weights.grad.double()])
        torch.nn.utils.clip_grads_with_norm_([weights], 1.0, norm)
        scaler.step(optimizer)
        scaler.update()
        steps.append(dict(
            coefficients=[text(x) for x in row], rate=text(rate), skipped=found,
            scale=scaler.get_scale(), good_steps=scaler._get_growth_tracker(),
            weights=[text(x) for x in weights.tolist()],
        ))
    return dict(q=q, settings=settings, steps=steps)


def text(x):
    """JSON has no infinities and no NaN."""
    return x if math.isfinite(x) else str(x)


INF, NAN = math.inf, math.nan
calm = [[0.3, -0.2, 0.1], [1e-3, 2.0, -1e-6], [0.0, 0.5, -0.5]]
# 1e34 times the scale is infinite until the scale has fallen below 34,028.
storm = [[1e34, 0.1, 0.0]] * 3 + calm * 2 + [[3e35, -3e35, 1.0]] * 6 + calm * 3
broken = calm + [[NAN, 0.1, 0.1], [INF, 0.0, 1.0], [-INF, INF, NAN]] + calm * 2
golden = dict(
    torch=torch.__version__,
    start=START,
    cases=[
        case(storm, 0.0, [0.1] * len(storm), growth_interval=3),
        case(storm, 0.1, [0.1] * len(storm), init_scale=1024.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2),
        case(broken, 0.1, [0.1] * len(broken), growth_interval=2),
        # After a step of infinite length nothing is finite any more.
        case(calm * 4, 0.1, [0.1] * 4 + [INF] + [0.1] * 7, growth_interval=4),
        # The scale cannot grow beyond f32.
        case(calm * 2, 0.0, [0.1] * 6, init_scale=2.0**126, growth_interval=1),
    ],
)
path = pathlib.Path(__file__).parent / "golden" / "scaler.json"
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(path, path.stat().st_size, "bytes")
