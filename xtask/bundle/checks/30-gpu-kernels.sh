#!/bin/sh
# The tests of the GPU kernels against float64 and the composed variant, and their times.
set -eu
"$BUNDLE/bin/cube" --nocapture
"$BUNDLE/bin/gpu_lstm_step" 512 20 f32
"$BUNDLE/bin/gpu_lstm_step" 512 20 f16 || echo "no times in f16"
"$BUNDLE/bin/gpu_lstm_step" 512 20 bf16 || echo "no times in bf16"
