"""Runs the PTX of recurrent layers (src/cube/fragments) on a processor, and compares them with float64.

    python3 recurrent.py FOLDER...

Each folder holds what driver.c keeps of one run of `gpu_lstm_step`, and units.txt (recurrent.sh makes them). Needs NumPy.
Each kernel runs for two directions of more samples than a cube has, of all lengths; what the device rounds to halves is
rounded here. Shared memory begins as NaN. What a kernel writes beside its results, or does not write, is an error.
"""

import re
import sys
from pathlib import Path

import numpy as np

from ptx import PAGE, Half, Kernel

DIRECTIONS, TIME = 2, 4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Layer:
    """A layer's inputs, and what float64 makes of them. Gates of a unit: input, forget, cell, output."""

    def __init__(self, units, batch, half):
        draws = np.random.default_rng(1337)
        self.units, self.batch, self.half = units, batch, half
        self.round = lambda x: half.decode(half.encode(x))
        single = lambda x: x.astype(np.float32).astype(np.float64)
        rows = (DIRECTIONS, batch, TIME, units)
        self.lengths = np.arange(batch, dtype=np.int32)[::-1] % (TIME + 1)
        self.weights = self.round(draws.standard_normal((DIRECTIONS, units, 4, units)) / units**0.5)
        self.gates_x = self.round(draws.standard_normal((*rows, 4)))
        self.state = single(draws.standard_normal((2, DIRECTIONS, batch, units)))
        self.d_output = self.round(draws.standard_normal((batch, TIME, DIRECTIONS * units)))
        self.d_last = single(draws.standard_normal((2, DIRECTIONS, batch, units)))
        self.output = np.zeros((batch, TIME, DIRECTIONS * units))
        self.gates, self.cells = np.zeros((*rows, 4)), np.zeros(rows)
        self.d_gates, self.previous = np.zeros((*rows, 4)), np.zeros(rows)
        self.last, self.d_state = self.state.copy(), self.d_last.copy()
        for direction in range(DIRECTIONS):
            for sample in range(batch):
                self.walk(direction, sample)

    def walk(self, direction, sample):
        length, units = self.lengths[sample], self.units
        at = lambda n: n if direction == 0 else length - 1 - n
        own = slice(direction * units, (direction + 1) * units)
        weights = self.weights[direction]
        h, c = self.state[:, direction, sample]
        befores = []
        for n in range(length):
            t = at(n)
            befores.append((self.round(h), c))
            sums = self.gates_x[direction, sample, t] + weights @ self.round(h)
            i, f, g, o = sigmoid(sums[:, 0]), sigmoid(sums[:, 1]), np.tanh(sums[:, 2]), sigmoid(sums[:, 3])
            c = f * c + i * g
            h = o * np.tanh(c)
            self.output[sample, t, own] = self.round(h)
            self.gates[direction, sample, t] = self.round(np.stack([i, f, g, o], 1))
            self.cells[direction, sample, t] = c.astype(np.float32)
        self.last[:, direction, sample] = h, c
        dh, dc = self.d_last[:, direction, sample]
        for n in range(length)[::-1]:
            t = at(n)
            h_before, c_before = befores[n]
            i, f, g, o = self.gates[direction, sample, t].T
            cell = np.tanh(self.cells[direction, sample, t])
            dh = dh + self.d_output[sample, t, own]
            dc = dc + dh * o * (1 - cell**2)
            d = [dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g**2), dh * cell * o * (1 - o)]
            d = self.round(np.stack(d, 1))
            self.d_gates[direction, sample, t] = d
            self.previous[direction, sample, t] = h_before
            dh, dc = np.einsum("ugk,ug->k", weights, d), dc * f
        self.d_state[:, direction, sample] = dh, dc


def run(path, launch, half, read, written, numbers):
    """Runs a kernel; `written` are shapes, and whether of halves."""
    encode = lambda x: np.ascontiguousarray(x if x.dtype.kind in "iu" else half.encode(x))
    buffers = [x if isinstance(x, np.ndarray) and x.dtype == np.float32 else encode(x) for x in read]
    fresh = [np.full(shape, np.nan) for shape, _ in written]
    fresh = [half.encode(x) if halves else x.astype(np.float32) for x, (_, halves) in zip(fresh, written)]
    buffers += fresh
    places, end = [], 0
    for buffer in buffers:
        places.append(end)
        end += -(-buffer.nbytes // 512) * 512
    memory = np.full(end, 0xA5, np.uint8)
    for place, buffer in zip(places, buffers):
        memory[place : place + buffer.nbytes] = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    before = memory.copy()
    grid, block, shared = launch
    Kernel(path).run(grid, block, [*(PAGE + place for place in places), numbers], memory, shared)
    found = []
    for place, buffer in zip(places[len(read) :], fresh):
        before[place : place + buffer.nbytes] = memory[place : place + buffer.nbytes]
    assert (before == memory).all(), f"{path}: wrote beside its results"
    for place, buffer, (shape, halves) in zip(places[len(read) :], fresh, written):
        own = memory[place : place + buffer.nbytes]
        values = half.decode(own.view(np.uint16)) if halves else own.view(np.float32).astype(np.float64)
        found.append(values.reshape(shape))
    return found


def error(found, expected):
    return np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30)


def kernels(folder, name):
    """The kernels of a name with their launches: file, cubes, threads, bytes of shared memory."""
    found = {}
    for line in (folder / "launches.txt").read_text().split("\n"):
        launch = r"(\S+) (\S+): grid (\d+) (\d+) 1, block (\d+) (\d+) 1, (\d+) bytes shared"
        parts = re.match(launch, line)
        if parts and re.match(name, parts[2]):
            found.setdefault(parts[1], tuple(map(int, parts.groups()[2:])))
    return [(folder / file, *launch) for file, launch in found.items()]


def main(folders):
    if not folders:
        sys.exit(__doc__)
    wrong, checked = 0, 0
    for folder in map(Path, folders):
        type_name, units, batch_there = (folder / "units.txt").read_text().split()
        units, half = int(units), Half(type_name)
        bound = 1e-3 if type_name == "bf16" else 2e-4
        arranged = kernels(folder, "by_lanes")
        assert len(arranged) == 2, f"{folder}: {len(arranged)} arrangements of weights"
        for index, name in enumerate(("forward", "backward")):
            tiles = [k for k in kernels(folder, f"{name}_f_{type_name}_") if "mma.sync" in k[0].read_text()]
            assert tiles, f"{folder}: no {name}"
            for path, cubes, _, lanes, planes, shared in tiles:
                samples = -(-int(batch_there) // cubes // 8) * 8
                batch = samples + 3
                layer = Layer(units, batch, half)
                by_lanes, threads = arranged[index][0], arranged[index][3]
                vectors = arranged[index][1] * threads
                sizes = DIRECTIONS * weights_of(name, units)
                assert vectors >= sizes > vectors - threads, f"{folder}: {vectors} vectors, {sizes} expected"
                launch = ((-(-sizes // threads), 1), (threads, 1), 0)
                [weights] = run(by_lanes, launch, half, [layer.weights], [((sizes, 8), True)], [sizes])
                launch = ((-(-batch // samples), DIRECTIONS), (lanes, planes), shared)
                state, single = layer.state.astype(np.float32), np.float32
                rows = layer.cells.shape
                if name == "forward":
                    read = [layer.gates_x, weights, state, layer.lengths]
                    outputs = [layer.output, layer.last, layer.gates, layer.cells]
                    halves = [True, False, True, False]
                else:
                    read = [layer.d_output, layer.d_last.astype(single), layer.output, layer.gates]
                    read += [layer.cells.astype(single), weights, state, layer.lengths]
                    outputs = [layer.d_gates, layer.previous, layer.d_state]
                    halves = [True, True, False]
                written = [(x.shape, of) for x, of in zip(outputs, halves)]
                found = run(path, launch, half, read, written, [batch, TIME])
                if name == "forward":
                    # Of steps that are padding neither gates nor cells are written.
                    valid = np.arange(TIME) < layer.lengths[:, None]
                    for x in (found[2], found[3]):
                        assert np.isnan(x[:, ~valid]).all(), f"{path}: padding was written"
                        x[:, ~valid] = 0
                # The largest, or NaN where there is one.
                most = np.max([error(*pair) for pair in zip(found, outputs)])
                verdict = "agrees" if most < bound else "IS WRONG"
                print(f"{folder.name} {name} {type_name}, {units} units, {samples} samples, {planes} planes, "
                      f"{shared} bytes shared: {verdict}, {most:.1e}", flush=True)
                checked, wrong = checked + 1, wrong + (not most < bound)
    print(f"{checked} kernels, {wrong} wrong")
    sys.exit(1 if wrong or not checked else 0)


def weights_of(name, units):
    """Vectors of eight weights that a direction has with those that are added."""
    up = lambda multiple: -(-units // multiple) * multiple
    return 4 * up(8) * up(32) // 8 if name == "forward" else up(16) * 4 * up(8) // 8


if __name__ == "__main__":
    main(sys.argv[1:])
