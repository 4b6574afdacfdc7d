"""Runs the PTX of products on tensor cores (src/cube/tiled.rs) on a processor, and compares them with float64.

    python3 ptx.py FOLDER...

Each folder holds what driver.c keeps of one run of `gpu_product_step` (products.sh makes them). recurrent.py runs recurrent
layers by what is here. Needs NumPy. Threads of a
block run together as far as they are at the same instruction, the ones behind first; those at a barrier wait for all
others, so that a barrier which is missing is not found out. Instructions are those that these kernels have: any other is an error. Reads and writes beside the buffers, or at
addresses that the device would refuse, are errors, too. Registers of `ldmatrix` and `mma` lie as the PTX ISA says
("Warp-level matrix load instruction" and "Matrix Fragments for mma.m16n8k16").
"""

import re
import sys
from pathlib import Path

import numpy as np

U64 = np.uint64
PAGE = 1 << 20


def mask(bits):
    return U64((1 << bits) - 1)


def bits_of(kind):
    return 1 if kind == "pred" else int(re.search(r"(\d+)$", kind).group(1))


def split(text):
    """Operands, those in brackets in one piece."""
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return parts + ([part.strip()] if part.strip() else [])


def several(operand):
    return [one.strip() for one in operand.strip("{}").split(",")]


def single(bits):
    return bits.astype(np.uint32).view(np.float32)


def arithmetic(name, *operands):
    """An operation of f32: in float64, and rounded."""
    a, *others = (operand.astype(np.float64) for operand in operands)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        match name:
            case ["fma", *_]:
                exact = a * others[0] + others[1]
            case ["add", *_]:
                exact = a + others[0]
            case ["sub", *_]:
                exact = a - others[0]
            case ["mul", *_]:
                exact = a * others[0]
            case ["ex2", *_]:
                exact = np.exp2(a)
            case ["rcp", *_]:
                exact = 1 / a
            case ["abs", *_]:
                exact = np.abs(a)
            case ["neg", *_]:
                exact = -a
            case ["cvt", "sat", *_]:
                exact = np.where(np.isnan(a), 0, np.clip(a, 0, 1))
            case _:
                raise ValueError(f"not known here: {name}")
        rounded = exact.astype(np.float32)
        if "rm" in name:
            above = rounded.astype(np.float64) > exact
            rounded = np.where(above, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    return rounded


class Half:
    """A half-precision type: from float64 to its bits and back."""

    def __init__(self, name):
        self.name = name

    def encode(self, x):
        if self.name == "f16":
            return x.astype(np.float16).view(np.uint16)
        bits = x.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def decode(self, bits):
        if self.name == "f16":
            return bits.astype(np.uint16).view(np.float16).astype(np.float64)
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class Kernel:
    def __init__(self, path):
        self.instructions, self.labels = [], {}
        text = Path(path).read_text()
        for line in text[text.index("{", text.index(".entry")) :].split("\n"):
            line = line.split("//")[0].strip()
            if re.match(r"^\$?\w+:$", line):
                self.labels[line[:-1]] = len(self.instructions)
            elif line and not line.startswith(".") and line not in "{}":
                inner = line[1:-1] if line.startswith("{") and line.endswith("}") else line
                for one in filter(None, (part.strip() for part in inner.split(";"))):
                    found = re.match(r"^(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)$", one)
                    if not found:
                        raise ValueError(f"{path}: cannot read {one!r}")
                    negated, predicate, name, operands = found.groups()
                    self.instructions.append((negated == "!", predicate, name, split(operands), one))

    def run(self, grid, block, parameters, memory, shared_bytes):
        for x in range(grid[0]):
            for y in range(grid[1]):
                Block(self, (x, y), block, parameters, memory, shared_bytes).run()


class Block:
    def __init__(self, kernel, cube, block, parameters, memory, shared_bytes):
        self.kernel, self.parameters, self.memory = kernel, parameters, memory
        self.count = block[0] * block[1]
        thread = np.arange(self.count)
        constant = {"%ctaid.x": cube[0], "%ctaid.y": cube[1], "%ctaid.z": 0}
        self.registers = {name: np.full(self.count, value, U64) for name, value in constant.items()}
        self.registers["%tid.x"] = (thread % block[0]).astype(U64)
        self.registers["%tid.y"] = (thread // block[0]).astype(U64)
        # No number: whoever adds what it has not put there finds out.
        self.shared = np.full(shared_bytes, 0xFF, np.uint8)

    def run(self):
        at = np.zeros(self.count, int)
        ended, waits = np.zeros(self.count, bool), np.zeros(self.count, bool)
        while not ended.all():
            ready = ~ended & ~waits
            if not ready.any():
                waits[:] = False
                continue
            now = at[ready].min()
            active = ready & (at == now)
            negated, predicate, name, operands, text = self.kernel.instructions[now]
            at[active] = now + 1
            if predicate:
                active = active & ((self.get(predicate) != 0) != negated)
            if name.startswith("bra"):
                at[active] = self.kernel.labels[operands[0]]
            elif name == "ret":
                ended |= active
            elif name.startswith("bar.sync"):
                waits |= active
            else:
                self.step(name.split("."), operands, active, text)

    def get(self, operand):
        if operand.startswith("%"):
            return self.registers.setdefault(operand, np.full(self.count, 0xDEAD, U64))
        if operand.startswith("0f"):
            return np.full(self.count, int(operand[2:], 16), U64)
        if re.match(r"^-?\d+$", operand):
            return np.full(self.count, int(operand) & (2**64 - 1), U64)
        # The name of what lies in shared memory, which begins there.
        return np.zeros(self.count, U64)

    def put(self, operand, value, active, bits):
        self.get(operand)[active] = (value & mask(bits))[active]

    def address(self, operand):
        name, offset = re.match(r"^\[(.*?)(?:\+(\d+))?\]$", operand).groups()
        return self.get(name) + U64(offset or 0)

    def signed(self, operand, bits):
        value = (self.get(operand) & mask(bits)).astype(np.int64)
        return np.where(value >= 1 << (bits - 1), value - (1 << bits), value) if bits < 64 else value

    def compared(self, operand, kind):
        if kind == "f32":
            return single(self.get(operand))
        bits = bits_of(kind)
        return self.signed(operand, bits) if kind[0] == "s" else self.get(operand) & mask(bits)

    def step(self, name, operands, active, text):
        kind = name[-1]
        if name[:2] == ["ld", "param"]:
            index, offset = re.match(r".*_param_(\d+)(?:\+(\d+))?\]", operands[1]).groups()
            value = self.parameters[int(index)]
            value = value[int(offset or 0) // 4] if isinstance(value, list) else value
            self.put(operands[0], np.full(self.count, value, U64), active, bits_of(kind))
        elif name[0] in ("ld", "st"):
            self.move(name, operands, active, text)
        elif name[0] in ("ldmatrix", "mma"):
            assert active.all(), f"threads are apart: {text}"
            (self.read_matrices if name[0] == "ldmatrix" else self.multiply)(name, operands)
        elif name[0] == "mov" and operands[0].startswith("{"):
            parts = several(operands[0])
            bits = bits_of(kind) // len(parts)
            for index, part in enumerate(parts):
                self.put(part, self.get(operands[1]) >> U64(index * bits), active, bits)
        elif name[0] == "mov" and operands[1].startswith("{"):
            parts = several(operands[1])
            bits = bits_of(kind) // len(parts)
            value = sum((self.get(p) & mask(bits)) << U64(i * bits) for i, p in enumerate(parts))
            self.put(operands[0], value, active, bits_of(kind))
        elif name[0] == "setp":
            a, b = (self.compared(x, kind) for x in operands[1:3])
            compare = {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b}
            self.put(operands[0], compare[name[1]].astype(U64), active, 1)
        else:
            values = [self.get(operand) for operand in operands[1:]]
            to, value = self.value(name, operands, values, text)
            self.put(operands[0], value, active, to)

    def value(self, name, operands, values, text):
        """The width of a result, and the result."""
        kind = name[-1]
        bits = bits_of(kind) if name[0] != "cvta" else 64
        low = [value & mask(bits) for value in values]
        match name:
            case ["mov", _] | ["cvta", *_]:
                return bits, values[0]
            case ["selp", _]:
                return bits, np.where(values[2] != 0, values[0], values[1])
            case ["mul", "wide", _]:
                return 2 * bits, low[0] * low[1]
            case ["mul", "lo", _]:
                return bits, values[0] * values[1]
            case ["mad", "lo", _]:
                return bits, values[0] * values[1] + values[2]
            case (
                ["ex2" | "rcp" | "fma" | "add" | "sub" | "mul" | "abs" | "neg", *_, "f32"]
                | ["cvt", "sat", "f32", "f32"]
            ):
                return 32, arithmetic(name, *map(single, values)).view(np.uint32).astype(U64)
            case ["max", "u32"]:
                return 32, np.maximum(*low)
            case ["min", "u32"]:
                return 32, np.minimum(*low)
            case ["cvt", "f32", "bf16" | "f16" as of]:
                wide = Half(of).decode((values[0] & mask(16)).astype(np.uint16)).astype(np.float32)
                return 32, wide.view(np.uint32).astype(U64)
            case ["cvt", "rn", "f32", "u32"]:
                return 32, low[0].astype(np.float32).view(np.uint32).astype(U64)
            case ["add", _]:
                return bits, values[0] + values[1]
            case ["sub", _]:
                return bits, values[0] - values[1]
            case ["neg", _]:
                return bits, U64(0) - values[0]
            case ["div", _]:
                return bits, low[0] // low[1]
            case ["rem", _]:
                return bits, low[0] % low[1]
            case ["shl", _]:
                return bits, values[0] << values[1]
            case ["shr", _] if kind[0] in "ub":
                return bits, low[0] >> values[1]
            case ["and", _]:
                return bits, values[0] & values[1]
            case ["or", _]:
                return bits, values[0] | values[1]
            case ["xor", _]:
                return bits, values[0] ^ values[1]
            case ["not", _]:
                return bits, ~values[0]
            case ["bfi", "b32"]:
                place, length = int(operands[3]), int(operands[4])
                field = U64(((1 << length) - 1) << place)
                return 32, (values[1] & ~field) | ((values[0] << U64(place)) & field)
            case ["cvt", to, kind] if to[0] in "us" and kind[0] == "u":
                return bits_of(to), low[0]
            case ["cvt", "rn", "bf16" | "f16" as to, "s32"]:
                return 16, Half(to).encode(self.signed(operands[1], 32).astype(float)).astype(U64)
            case ["cvt", "rn", "bf16" | "f16" as to, "f32"]:
                x = values[0].astype(np.uint32).view(np.float32)
                return 16, Half(to).encode(x).astype(U64)
        raise ValueError(f"not known here: {text}")

    def move(self, name, operands, active, text):
        loads = name[0] == "ld"
        register, place = operands if loads else operands[::-1]
        vector = any(re.match(r"^v\d$", part) for part in name)
        parts = several(register) if vector else [register]
        size = bits_of(name[-1]) // 8
        memory, begin = (self.shared, 0) if "shared" in name else (self.memory, PAGE)
        at = self.address(place).astype(np.int64)[active] - begin
        assert (at % (size * len(parts)) == 0).all(), f"begins where it may not: {text}"
        assert (at >= 0).all() and (at + size * len(parts) <= len(memory)).all(), f"outside: {text}"
        for index, part in enumerate(parts):
            value = np.zeros(self.count, U64) if loads else self.get(part)
            for byte in range(size):
                here = at + index * size + byte
                if loads:
                    value[active] |= memory[here].astype(U64) << U64(8 * byte)
                else:
                    memory[here] = (value[active] >> U64(8 * byte)).astype(np.uint8)
            if loads:
                self.put(part, value, active, 8 * size)

    def read_matrices(self, name, operands):
        at = self.address(operands[1]).astype(np.int64)
        lane = np.arange(32)
        row, column = lane // 4, lane % 4 * 2
        for warp in range(0, self.count, 32):
            for index, register in enumerate(several(operands[0])):
                rows = at[warp + 8 * index : warp + 8 * index + 8]
                assert (rows % 16 == 0).all() and (rows + 16 <= len(self.shared)).all()
                matrix = np.stack([self.shared[row : row + 16].view(np.uint16) for row in rows])
                matrix = (matrix.T if "trans" in name else matrix).astype(U64)
                pair = matrix[row, column] | matrix[row, column + 1] << U64(16)
                self.get(register)[warp : warp + 32] = pair

    def of_warp(self, register, warp):
        return self.get(register)[warp : warp + 32].astype(np.uint32)

    def multiply(self, name, operands):
        half = Half("bf16" if "bf16" in name else "f16")
        lane = np.arange(32)
        group, own = lane // 4, lane % 4 * 2
        to, a, b, c = (several(operand) for operand in operands)
        for warp in range(0, self.count, 32):
            left, right, sums = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
            for which in range(2):
                for index, register in enumerate(a):
                    place = (group + 8 * (index % 2), own + which + 8 * (index // 2))
                    left[place] = half.decode(self.of_warp(register, warp) >> (16 * which) & 0xFFFF)
                for index, register in enumerate(b):
                    place = (own + which + 8 * index, group)
                    right[place] = half.decode(self.of_warp(register, warp) >> (16 * which) & 0xFFFF)
            places = [(group + 8 * (index // 2), own + index % 2) for index in range(4)]
            for place, register in zip(places, c):
                sums[place] = self.of_warp(register, warp).view(np.float32)
            found = (left @ right + sums).astype(np.float32)
            for place, register in zip(places, to):
                self.get(register)[warp : warp + 32] = found[place].view(np.uint32).astype(U64)


def error(path, launch, half, sizes, turned):
    """The relative error of a product, beside that of a result which is rounded once."""
    rows, columns, inner = sizes
    draws = np.random.default_rng(1337)
    left = half.encode(draws.standard_normal((rows, inner)))
    right = half.encode(draws.standard_normal((inner, columns)))
    operands = [(x.T if t else x).reshape(-1) for x, t in zip((left, right), turned)]
    result = half.encode(np.full(rows * columns, np.nan))
    places, end = [], 0
    for buffer in (*operands, result):
        places.append(end)
        end += -(-buffer.nbytes // 512) * 512
    # Behind the result there is nothing.
    memory = np.zeros(places[2] + result.nbytes, np.uint8)
    for place, buffer in zip(places, (*operands, result)):
        memory[place : place + buffer.nbytes] = np.ascontiguousarray(buffer).view(np.uint8)
    strides = [rows if turned[0] else inner, inner if turned[1] else columns]
    numbers = [rows, columns, inner, 1, 1, 0, strides[0], 0, 0, strides[1], 0, 0]
    buffers = [PAGE + places[index] for index in (0, 1, 2, 2)]
    grid, block, shared = launch
    Kernel(path).run(grid, block, [*buffers, numbers], memory, shared)
    found = half.decode(memory[places[2] :].view(np.uint16))
    exact = (half.decode(left) @ half.decode(right)).reshape(-1)
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


def main(folders):
    if not folders:
        sys.exit(__doc__)
    wrong, checked = 0, 0
    for folder in map(Path, folders):
        cases = [line.split() for line in (folder / "cases.txt").read_text().split("\n") if line]
        half = Half((folder / "type.txt").read_text().strip())
        shape = r"(\S+) product_f_\S*: grid (\d+) (\d+) 1, block (\d+) (\d+) 1, (\d+) bytes shared"
        launches = {}
        for line in (folder / "launches.txt").read_text().split("\n"):
            if found := re.match(shape, line):
                name, *numbers = found.groups()
                gx, gy, bx, by, shared = map(int, numbers)
                launches.setdefault(name, ((gx, gy), (bx, by), shared))
        assert len(launches) == len(cases), f"{folder}: {len(launches)} kernels for {len(cases)} cases"
        for (name, launch), (case,) in zip(launches.items(), cases):
            sizes, _, layout = case.partition(":")
            _, rows, columns, inner = map(int, sizes.split("x"))
            turned = (layout == "tn", layout == "nt")
            found = error(folder / name, launch, half, (rows, columns, inner), turned)
            bound = 4e-3 if half.name == "bf16" else 5e-4
            verdict = "agrees" if found < bound else "IS WRONG"
            print(f"{folder.name} {half.name} {case}: {verdict}, {found:.1e}")
            checked, wrong = checked + 1, wrong + (not found < bound)
    print(f"{checked} kernels, {wrong} wrong")
    sys.exit(1 if wrong or not checked else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
