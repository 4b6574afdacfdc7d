#!/bin/sh
# A small pipeline from data to report, a second time with nothing to do, and the same figures from a
# folder of its own.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
run() {
    "$BUNDLE/bin/firebox" run "$BUNDLE/pipelines/pretrain.toml" --device "${DEVICE:-auto}" \
        --set "run.directory=$1/runs" --set "run.cache=$1/cache" --set window.stride=60 \
        --set augment.versions=1 --set train.epochs=2 --set evaluate.seeds=2 2>"$1.log"
}
run a || { tail -n 5 a.log; exit 1; }
run a | grep "nothing to do"
run b >b.out || { tail -n 5 b.log; exit 1; }
[ -f a/runs/*/report.html ] || { echo "there is no report"; exit 1; }
cmp a/runs/*/history.jsonl b/runs/*/history.jsonl 2>/dev/null ||
    echo "two runs differ in their history (times are part of it)"
losses() { grep -o '"loss":[^,}]*' "$1"/runs/*/history.jsonl; }
[ "$(losses a)" = "$(losses b)" ] || { echo "two runs of one file have other losses"; exit 1; }
echo "trained, skipped what was there, and came to the same losses twice"
