#!/usr/bin/env python3
"""Time whole training steps beside PyTorch, case by case and in turn, and print the ratios.

    python benches/steps.py target/release/firebox ../shared/peers/torch_steps.py
    python benches/steps.py FIREBOX TORCH_STEPS --rounds 3 --case lstm-mae:bf16:64 --case lstm-mae:f32:512:eval

Each round starts both programs once, Firebox first, then PyTorch as installed and with glibc's
allocator tuned, so that whatever else the machine does falls on all of them. A figure is the median
over the rounds of each program's median step. Run it with a Python that has torch, on a quiet
machine. It prints every line that it read, then a table for LOG.md.
"""
import argparse, json, statistics, subprocess, sys

CASES = ["lstm-mae:f32:512", "lstm-mae:f32:64", "lstm-mae:bf16:512", "lstm-mae:bf16:64",
         "lstm-mae:f32:512:eval", "lstm-mae:bf16:512:eval", "lstm-forecast:f32:128"]
CASES += [f"{workload}:{precision}:{batch}{mode}"
          for workload, batch in (("cnn-lstm", 64), ("mlp", 512), ("transformer", 256), ("bert-base", 16))
          for mode in ("", ":eval") for precision in ("f32", "bf16")]
SHORT = {"lstm-forecast": 100, "mlp": 200, "cnn-lstm": 8, "transformer": 6, "bert-base": 4}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines or "step_ms" not in lines[-1]:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    print(lines[-1], flush=True)
    return json.loads(lines[-1])


def measure(case, firebox, torch_steps, rounds, device):
    workload, precision, batch, *rest = case.split(":")
    mode = ["--eval"] if rest else []
    short = SHORT.get(workload, 12 if int(batch) < 512 else 6)
    size = ["--batch", batch, "--steps", str(short), "--warmup", str(max(3, short // 5)), "--device", device]
    ours = [firebox, "bench", "--json", "--workload", workload, "--precision", precision, *size, *mode]
    theirs = [sys.executable, torch_steps, "--workload", workload, "--precision", precision.replace("f32", "fp32").replace("bfp32", "bf16"), *size, *mode]
    kinds = {"firebox": ours, "installed": theirs, "tuned": [*theirs, "--tuned"]}
    results = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, command in kinds.items():
            results[kind].append(run(command))
    middle = lambda kind, key: statistics.median(result[key] for result in results[kind])
    time = {kind: middle(kind, "step_ms") for kind in kinds}
    memory = {kind: middle(kind, "peak_mib") for kind in kinds}
    return (f"| {workload}, {precision}, batch {batch}{', inference' if mode else ''} | {time['firebox']:.4g} | {time['installed']:.4g} | {time['tuned']:.4g} "
            f"| {time['firebox'] / time['installed']:.2f} | {time['firebox'] / time['tuned']:.2f} | {memory['firebox']:.0f} / {memory['installed']:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firebox")
    parser.add_argument("torch_steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", help="workload:precision:batch[:eval]")
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    rows = [measure(case, a.firebox, a.torch_steps, a.rounds, a.device) for case in a.case or CASES]
    print("\n| case | Firebox ms | PyTorch ms | tuned ms | over PyTorch | over tuned | peak MiB, ours / theirs |\n|---|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
