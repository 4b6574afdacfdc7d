#!/bin/sh
# Compiles recurrent layers in f16 and bf16 as a CUDA device would get them, on a machine without one, tells registers and
# what did not fit into them, and runs each on the processor beside float64 (recurrent.py).
#
#     crates/firebox-kernels/tests/cuda/recurrent.sh FOLDER PROGRAM
#
# FOLDER is that of compile.sh, which brings NVIDIA's compilers there and builds the driver; PROGRAM the example
# gpu_lstm_step, built with burn's feature cuda. PYTHON may name a Python with NumPy; CASES types, units and batches.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
program=$(realpath "$2")
rm -rf "$folder/recurrent"
mkdir -p "$folder/recurrent" "$folder/home"
cc -O1 -shared -fPIC -Wall -Wextra -o "$folder/driver/libcuda.so" "$here/driver.c"
cd "$folder/recurrent" # CubeCL looks for its settings here
for case in ${CASES:-bf16:5:64 f16:100:64 bf16:128:700 f16:200:64 bf16:256:64}; do
    IFS=: read -r type units batch <<END
$case
END
    ptx="$folder/recurrent/$type-$units-$batch"
    mkdir -p "$ptx"
    echo "$type $units $batch" > "$ptx/units.txt"
    # Only the first variant has what is looked for: those after it are cut off.
    env HOME="$folder/home" CUDA_PATH="$folder/cuda" PTX_OUT="$ptx" \
        LD_LIBRARY_PATH="$folder/driver:$folder/nvidia/cuda_nvrtc/lib" \
        CUBECL_AUTOTUNE_CACHE=0 CUBECL_THROUGHPUT_CACHE=0 \
        "$program" "$batch" 1 "$type" 4 fused "$units" > "$ptx/times.txt" 2>&1 || true
    grep -E ' (forward|backward)_f_' "$ptx/launches.txt" | sort -u | while read -r file launch; do
        grep -q mma.sync "$ptx/$file" || continue
        echo "$case, $launch"
        "$folder/nvidia/cuda_nvcc/bin/ptxas" -arch=sm_90a -v "$ptx/$file" -o "$ptx/$file.cubin" 2>&1 |
            grep -E 'registers|spill|error' | sed 's/^/    /'
        test -s "$ptx/$file.cubin"
    done
done
"${PYTHON:-python3}" "$here/recurrent.py" "$folder"/recurrent/*/
