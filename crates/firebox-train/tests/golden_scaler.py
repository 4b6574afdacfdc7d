"""Writes golden/scaler.json: step by step, what torch.amp.GradScaler makes of overflows.

    python golden_scaler.py

The loss is `sum(c * w + q / 2 * w * w)`, so its gradient is `c + q * w`; where the case is in half
precision, `w` goes through float16 on its way, and its gradient comes back through it. Gradients are
unscaled, clipped by their norm, and used by SGD or AdamW. Needs PyTorch.
"""

import json
import math
import pathlib

import torch

START = [0.5, -1.5, 2.0]
# A small eps, so that gradients of 1e-8 move weights as far as others.
ADAMW = dict(betas=(0.9, 0.99), eps=1e-12, weight_decay=0.05)


def sgd(weights):
    return torch.optim.SGD([weights], lr=0.1, momentum=0.9)


def adamw(weights):
    return torch.optim.AdamW([weights], lr=0.1, **ADAMW)


def case(rows, q, rates, kind=sgd, half=False, **settings):
    weights = torch.nn.Parameter(torch.tensor(START))
    optimizer = kind(weights)
    scaler = torch.amp.GradScaler("cpu", **settings)
    steps = []
    for row, rate in zip(rows, rates):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        c = torch.tensor(row, dtype=torch.float32)
        w = weights.half().float() if half else weights
        loss = (c * w + w * w * (q / 2)).sum()
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
    # What the first cases are is left out.
    other = {} if kind is sgd else dict(adamw=ADAMW)
    other |= dict(half=True) if half else {}
    return dict(q=q, settings=settings, **other, steps=steps)


def text(x):
    """JSON has no infinities and no NaN."""
    return x if math.isfinite(x) else str(x)


INF, NAN = math.inf, math.nan
calm = [[0.3, -0.2, 0.1], [1e-3, 2.0, -1e-6], [0.0, 0.5, -0.5]]
# 1e34 times the scale is infinite until the scale has fallen below 34,028.
storm = [[1e34, 0.1, 0.0]] * 3 + calm * 2 + [[3e35, -3e35, 1.0]] * 6 + calm * 3
# The smallest number of float16 is 6e-8, and half of it is rounded to nothing.
faint = [[1e-8, -1e-8, 2e-8]] * 4 + [[2e-8, 1e-8, -1e-8]] * 4
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
        # Storms and gradients that are not finite leave the moments and their counts alone, too.
        case(storm, 0.1, [0.1] * len(storm), kind=adamw, growth_interval=3),
        case(broken, 0.1, [0.1] * len(broken), kind=adamw, growth_interval=2),
        # Gradients of 1e-8 survive float16 at a scale of 65,536 and at 4,096, and vanish at 1: then AdamW
        # decays weights and does nothing else.
        case(faint, 0.0, [0.1] * len(faint), kind=adamw, half=True, growth_interval=3),
        case(faint, 0.0, [0.1] * len(faint), kind=adamw, half=True, init_scale=4096.0, growth_interval=3),
        case(faint, 0.0, [0.1] * len(faint), kind=adamw, half=True, init_scale=1.0, growth_interval=100),
        # With a step large enough that SGD shows them.
        case(faint, 0.0, [1e6] * len(faint), half=True, growth_interval=3),
        case(faint, 0.0, [1e6] * len(faint), half=True, init_scale=1.0, growth_interval=100),
        # The scale that they need is too large for others: float16 ends at 65,504.
        case(faint[:3] + calm + faint[3:], 0.0, [0.1] * 11, kind=adamw, half=True, growth_interval=2),
    ],
)
path = pathlib.Path(__file__).parent / "golden" / "scaler.json"
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(path, path.stat().st_size, "bytes")
