#!/bin/sh
# The tests of the GPU kernels against float64 and the composed variant, and their times.
set -eu
"$BUNDLE/bin/cube" --nocapture
"$BUNDLE/bin/gpu_lstm_step" 512 20 f32
"$BUNDLE/bin/gpu_lstm_step" 512 20 f16 || echo "no times in f16"
"$BUNDLE/bin/gpu_lstm_step" 512 20 bf16 || echo "no times in bf16"
for type in f32 f16 bf16; do
    "$BUNDLE/bin/gpu_attention_step" 512 20 $type 105 8 16 || echo "no times in $type"
    "$BUNDLE/bin/gpu_attention_step" 64 20 $type 128 12 64 || echo "no times in $type"
done
