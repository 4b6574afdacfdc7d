#!/bin/sh
# Two steps of each workload in each precision, with losses that are numbers. Types that a device
# lacks are said.
set -eu
failed=0
for workload in lstm-mae lstm-forecast transformer mlp cnn-lstm; do
    for precision in f32 bf16; do
        line=$("$BUNDLE/bin/firebox" bench --json --workload $workload --precision $precision \
            --batch 4 --steps 2 --warmup 1 --device "${DEVICE:-auto}" 2>&1) || {
            echo "$workload in $precision: $line"
            # f32 is what every device has.
            [ $precision = f32 ] && failed=1
            continue
        }
        case $line in
        *'"last_loss":null'*) echo "$workload in $precision: its loss is no number" && failed=1 ;;
        esac
    done
done
[ $failed = 0 ] && echo "every workload took its steps"
exit $failed
