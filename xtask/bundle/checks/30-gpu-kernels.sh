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
"$BUNDLE/bin/gpu_product_step" bf16 1x2048x3072x768 1x26880x512x128 1x2048x768x3072:nt 32x128x512x840:tn ||
    echo "no times of products in bf16"
