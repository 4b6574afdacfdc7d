#!/bin/sh
# Runs Firebox on a machine without a network, without cargo and without an installation.
#
#   ./run.sh checks                  what this build can do here      -> results/checks.json
#   ./run.sh timings [FLAGS]         how fast it is here              -> results/timings.json
#   ./run.sh all                     both, in under ten minutes       -> results/all.json
#   ./run.sh pipeline FILE [FLAGS]   a pipeline, whole, or its search -> results/RUN.tar.gz
#
# DEVICE chooses a device (auto, cpu, cuda:0, ...). PYTHON names a Python that has PyTorch; where one
# is found, PyTorch is timed beside. WORK is where runs and the cache go (work/ beside this file).
# A pipeline is a file of pipelines/ by its name, or any file. FLAGS go to `firebox bench suite`,
# `firebox run` or, for a file with a table [search], `firebox search`, such as --workers N;
# `./run.sh pipeline --resume RUN` goes on with a run, `--join STUDY` takes part in a search.
set -eu

BUNDLE=$(cd "$(dirname "$0")" && pwd)
firebox="$BUNDLE/bin/firebox"
device=${DEVICE:-auto}
work=${WORK:-$BUNDLE/work}
results="$BUNDLE/results"
export BUNDLE DEVICE="$device"

usage() {
    sed -n '2,13s/^# \{0,1\}//p' "$0"
    exit 2
}

# suite NAME FLAGS...: runs the suite and keeps its JSON under a name.
suite() {
    name=$1
    shift
    mkdir -p "$results" "$work"
    code=0
    : >"$work/begun"
    # The results say what was typed.
    FIREBOX_TYPED=$typed "$firebox" bench suite --device "$device" --output "$results/$name" "$@" || code=$?
    # What an earlier call left is no result of this one, but may be its baseline.
    if [ -n "$(find "$results/$name/performance.json" -newer "$work/begun" 2>/dev/null)" ]; then
        cp "$results/$name/performance.json" "$results/$name.json"
        echo "$results/$name.json"
    fi
    return $code
}

# The same with PyTorch beside, where it is there.
suite_beside() {
    python=${PYTHON:-python3}
    if [ -f "$BUNDLE/peers/torch_steps.py" ] && "$python" -c 'import torch' 2>/dev/null; then
        set -- "$@" --peers torch --python "$python" --torch-steps "$BUNDLE/peers/torch_steps.py"
    fi
    suite "$@"
}

pipeline() {
    [ $# -gt 0 ] || usage
    mkdir -p "$results" "$work"
    verb=run
    case $1 in
    -*)
        for flag; do
            case $flag in --join | --join=*) verb=search ;; esac
        done
        ;;
    *)
        file=$1
        shift
        [ -f "$file" ] || file="$BUNDLE/pipelines/${file%.toml}.toml"
        file=$(cd "$(dirname "$file")" && pwd)/$(basename "$file")
        set -- "$file" "$@"
        # The table may be written as [search] or [ search.space ], or before the first one as search = {...} or
        # search.trials = ...
        table="^[[:space:]]*\\[+[[:space:]]*[\"']?search[\"']?[[:space:]]*[].]"
        key="^[[:space:]]*[\"']?search[\"']?[[:space:]]*[.=]"
        ! grep -Eq "$table" "$file" 2>/dev/null || verb=search
        ! sed '/^[[:space:]]*\[/q' "$file" 2>/dev/null | grep -Eq "$key" || verb=search
        ;;
    esac
    cd "$work"
    code=0
    : >"$work/begun"
    "$firebox" $verb "$@" --device "$device" --set "run.directory=$work/runs" \
        --set "run.cache=$work/cache" || code=$?
    # Also what was interrupted or failed is worth a look; what an earlier call made is not.
    run=$(ls -1t "$work/runs" 2>/dev/null | grep -v '\.search$' | head -n 1)
    # A search is its study, and the run of its best trial.
    study=
    [ $verb = run ] || study=$(ls -1t "$work/runs" 2>/dev/null | grep '\.search$' | head -n 1)
    [ -n "$run" ] || exit $code
    [ $code = 0 ] || [ -n "$(find "$work/runs/$run" -newer "$work/begun" | head -n 1)" ] || exit $code
    tar -czf "$results/$run.tar.gz" -C "$work/runs" "$run" ${study:+"$study"}
    echo "$results/$run.tar.gz"
    return $code
}

[ $# -gt 0 ] || usage

# Programs travel packed, in one archive.
if [ -f "$BUNDLE/programs.tar.gz" ]; then
    tar -xzf "$BUNDLE/programs.tar.gz" -C "$BUNDLE"
    rm "$BUNDLE/programs.tar.gz"
elif [ -f "$BUNDLE/programs.tar.xz" ]; then
    { command -v xz >/dev/null && xz -dc "$BUNDLE/programs.tar.xz" | tar -x -C "$BUNDLE"; } ||
        python3 -c 'import lzma, sys, tarfile
with lzma.open(sys.argv[1]) as packed, tarfile.open(fileobj=packed, mode="r|") as programs:
    programs.extractall(sys.argv[2])' "$BUNDLE/programs.tar.xz" "$BUNDLE" ||
        { echo "unpacking needs xz or python3" >&2; exit 2; }
    rm "$BUNDLE/programs.tar.xz"
fi

typed="./run.sh $*"
command=$1
shift
case $command in
checks) suite checks --checks "$BUNDLE/checks" --checks-only "$@" ;;
timings) suite_beside timings --quick --minutes 8 "$@" ;;
all) suite_beside all --checks "$BUNDLE/checks" --quick --minutes 9 "$@" ;;
pipeline) pipeline "$@" ;;
*) usage ;;
esac
