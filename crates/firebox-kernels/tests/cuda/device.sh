#!/bin/bash
# Times and checks everything on a machine with an NVIDIA GPU that is lent for minutes, by programs that were built
# elsewhere, in one call:
#
#     device.sh FOLDER OUT [SECONDS]
#
# FOLDER holds `bin.xz`, a tar of `bin/firebox`, `bin/cube` (the tests of that name, best built without `autotune`) and
# `bin/calls.so` (see calls.c); `torch_steps.py`, which times PyTorch; and, if kernels were compiled before on a driver
# without a device (driver.c, `[compilation] cache = true`), `env.xz`, a tar of what CubeCL keeps, NAME.db for each
# workload and precision. What it finds is put into OUT. SECONDS is when the tests stop, 540 by default.
#
# Each workload is timed in its second process: the first compiles into its hundredth step.
set -u
folder=$(realpath "$1") out=$(realpath "$2") end=$(($(date +%s) + ${3:-540})) start=$(date +%s)
work=$(mktemp -d)
cd "$work" || exit 1
say() { echo "[$(($(date +%s) - start)) s] $*"; }
mkdir -p kept
xz -dc "$folder/bin.xz" | tar -x
[ -f "$folder/env.xz" ] && xz -dc "$folder/env.xz" | tar -x -C kept
export CUDA_PATH=${CUDA_PATH:-/usr/local/cuda}
say unpacked

# bench NAME STREAMS WORKLOAD PRECISION FLAGS…: with what was kept under the name.
bench() {
    local name=$1 streams=$2 workload=$3 precision=$4
    shift 4
    mkdir -p "in/$name"
    {
        printf '[compilation]\ncache = true\n[environment]\npath = { directory = "%s/kept" }\n' "$work"
        [ "$streams" = 0 ] || printf '[streaming]\nmax_streams = %s\n' "$streams"
    } > "in/$name/cubecl.toml"
    (cd "in/$name" && CUBECL_ENVIRONMENT="$workload-$precision" timeout 60 "$work/bin/firebox" bench --json \
        --workload "$workload" --precision "$precision" --device cuda:0 "$@")
}

# short NAME FILE: the figures of a result in one line.
short() {
    python3 - "$1" "$2" << 'END'
import json, sys
for line in open(sys.argv[2]):
    try:
        found = json.loads(line)
    except ValueError:
        continue
    keys = ("step_ms", "min_ms", "max_ms", "data_ms", "resident", "last_loss", "utilisation")
    print(sys.argv[1], {key: found.get(key) for key in keys})
END
}

# timed PRECISION WORKLOAD…
timed() {
    local precision=$1 workload
    shift
    for workload in "$@"; do
        local name=$workload-$precision
        bench "$name" 0 "$workload" "$precision" --resident device --warmup 66 --steps 2 > "$out/first-$name.json" 2> "$out/first-$name.err"
        bench "$name" 0 "$workload" "$precision" --resident device --warmup 130 --steps 40 --seconds 1 > "$out/$name.json" 2> "$out/$name.err"
        short "$name" "$out/$name.json"
    done
    say "$precision"
}

timed bf16 lstm-mae lstm-forecast mlp transformer cnn-lstm bert-base
timeout 90 python3 "$folder/torch_steps.py" --all --device cuda --steps 15 --warmup 5 > "$out/torch.jsonl" 2> "$out/torch.err"
grep -hE '"(bf16|fp32)"' "$out/torch.jsonl" | grep -oE '"(workload|precision)": "[^"]*"|"step_ms": [0-9.]*' | paste - - -
say PyTorch
timed f32 bert-base transformer lstm-mae cnn-lstm

# Batches that are copied in each step: beside those that lie there, with a queue of their own and without.
for workload in lstm-mae transformer; do
    for round in 1 2; do
        for streams in 0 1; do
            name=stream-$workload-$streams-$round
            bench "$name" $streams $workload bf16 --resident stream --warmup 130 --steps 40 > "$out/$name.json" 2> "$out/$name.err"
            short "$name" "$out/$name.json"
        done
    done
    # Where threads are while nothing is launched.
    STALL=8 CALLS=$out/calls-$workload.txt LD_PRELOAD=$work/bin/calls.so \
        bench "stacks-$workload" 0 $workload bf16 --resident stream --warmup 130 --steps 40 > /dev/null 2> "$out/stacks-$workload.txt"
    grep -c 'no launch' "$out/stacks-$workload.txt"
done
say streams

mkdir -p tests
bin/cube --list 2> /dev/null | sed -n 's/: test$//p' > all.txt
{
    grep -E '^(tensor_cores|strips|recurrent)::' all.txt
    grep -vE '^(tensor_cores|strips|recurrent)::' all.txt | sed 's/::.*/::/' | sort -u
} > groups.txt
export work end
xargs -P 6 -I{} sh -c '
    left=$((end - $(date +%s)))
    name=$(echo {} | tr -c "a-z0-9_\n" -)
    [ $left -gt 3 ] && timeout $left "$work/bin/cube" --test-threads 1 --nocapture {} > "$work/tests/$name.log" 2>&1
    true' < groups.txt
cp -r tests "$out/"
say "tests: $(cat tests/*.log | grep -cE '\.\.\. ok$|^ok$') passed of $(wc -l < all.txt)"
grep -lE 'panicked|FAILED' tests/*.log | xargs -rn1 basename
grep -hE '^(test .*FAILED|.*off by|.*other bits)|panicked' -A2 tests/*.log | cut -c1-240 | head -60
