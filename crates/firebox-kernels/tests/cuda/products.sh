#!/bin/sh
# Compiles the tiles of products in f16 and bf16 as a CUDA device would get them, on a machine without one, tells registers
# and what did not fit into them, and runs each on the processor beside float64 (ptx.py).
#
#     crates/firebox-kernels/tests/cuda/products.sh FOLDER PROGRAM
#
# FOLDER is that of compile.sh, which brings NVIDIA's compilers there and builds the driver; PROGRAM the example
# gpu_product_step, built with burn's feature cuda. PYTHON may name a Python with NumPy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
program=$(realpath "$2")
cases="1x128x128x64 1x128x128x64:nt 1x128x128x64:tn 1x100x132x72"
rm -rf "$folder/products"
mkdir -p "$folder/products" "$folder/home"
cc -O1 -shared -fPIC -Wall -Wextra -o "$folder/driver/libcuda.so" "$here/driver.c"
cd "$folder/products" # CubeCL looks for its settings here
for type in bf16 f16; do
    # The tiles follow the kernels of cubek, of which there are 14.
    for kernel in 14 15 16 17 18; do
        ptx="$folder/products/$type-$kernel"
        mkdir -p "$ptx"
        # shellcheck disable=SC2086
        env HOME="$folder/home" CUDA_PATH="$folder/cuda" PTX_OUT="$ptx" KERNEL="$kernel" \
            LD_LIBRARY_PATH="$folder/driver:$folder/nvidia/cuda_nvrtc/lib" \
            CUBECL_AUTOTUNE_CACHE=0 CUBECL_THROUGHPUT_CACHE=0 "$program" "$type" $cases > "$ptx/times.txt"
        echo "$type" > "$ptx/type.txt"
        printf '%s\n' $cases > "$ptx/cases.txt"
        grep -E ' product_f_' "$ptx/launches.txt" | sort -u | while read -r file launch; do
            echo "$type, $launch"
            "$folder/nvidia/cuda_nvcc/bin/ptxas" -arch=sm_90a -v "$ptx/$file" -o "$ptx/$file.cubin" 2>&1 |
                grep -E 'registers|spill|error' | sed 's/^/    /'
            test -s "$ptx/$file.cubin"
        done
    done
done
"${PYTHON:-python3}" "$here/ptx.py" "$folder"/products/*-*/
