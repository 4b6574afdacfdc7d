#!/bin/sh
# Compiles the kernels of recurrent layers and attention as a CUDA device would get them, on a machine without
# one: CubeCL writes them in CUDA C++ for a driver without a device (driver.c), NVRTC compiles them to PTX and
# ptxas to machine code for an H100. Prints launches, registers and what did not fit into them. Fails if
# anything does not compile or could not be launched. Times that it prints on the way mean nothing.
#
#     crates/firebox-kernels/tests/cuda/compile.sh FOLDER [batch] [type]
#
# FOLDER keeps NVIDIA's compilers between calls (PyPI has them; python3 with pip, cc and unzip are needed) and
# gets the PTX. CARGO_ARGS may hold more arguments of cargo, such as `--config patch…` where LLVM cannot be
# downloaded, which changes Cargo.lock. Without tuning, which would never end by a clock that does not run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
batch=${2:-512}
type=${3:-bf16}

if [ ! -d "$folder/nvidia" ]; then
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$folder" \
        nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-nvcc-cu12==12.9.86 \
        nvidia-cuda-cccl-cu12==12.9.27
    for wheel in "$folder"/*.whl; do unzip -q -o "$wheel" -d "$folder"; done
    mkdir -p "$folder/cuda/include"
    cp -R "$folder/nvidia/cuda_runtime/include/." "$folder/nvidia/cuda_nvcc/include/." \
        "$folder/nvidia/cuda_cccl/include/." "$folder/cuda/include"
    chmod +x "$folder/nvidia/cuda_nvcc/bin/ptxas"
    ln -sf libnvrtc.so.12 "$folder/nvidia/cuda_nvrtc/lib/libnvrtc.so"
fi
mkdir -p "$folder/driver"
cc -O1 -shared -fPIC -Wall -Wextra -o "$folder/driver/libcuda.so" "$here/driver.c"

cd "$here/../.."
set -f # CARGO_ARGS are words, not patterns
run() {
    # shellcheck disable=SC2086
    cargo "$@" -p firebox-kernels -p firebox ${CARGO_ARGS:-} --example gpu_lstm_step \
        --example gpu_attention_step --features firebox-kernels/cube,burn/cuda,firebox/nvrtc
}
run build
lstm=$(run build --message-format json | grep '"name":"gpu_lstm_step"' |
    sed 's/.*"executable":"\([^"]*\)".*/\1/')
attention=$(dirname "$lstm")/gpu_attention_step
set +f

rm -rf "$folder/ptx" "$folder/home"
mkdir -p "$folder/home"
# Runs a program, and compiles what it launched to machine code.
compile() {
    ptx="$folder/ptx/$1"
    shift
    mkdir -p "$ptx"
    env HOME="$folder/home" CUDA_PATH="$folder/cuda" PTX_OUT="$ptx" \
        LD_LIBRARY_PATH="$folder/driver:$folder/nvidia/cuda_nvrtc/lib" "$@"
    sort -u "$ptx/launches.txt" | grep -E ' (forward|backward|attend)_' > "$ptx/ours.txt"
    while read -r file launch; do
        echo "$launch"
        "$folder/nvidia/cuda_nvcc/bin/ptxas" -arch=sm_90a -v "$ptx/$file" -o "$ptx/$file.cubin" 2>&1 |
            grep -E 'registers|spill|error' | sed 's/^/    /'
        test -s "$ptx/$file.cubin"
    done < "$ptx/ours.txt"
}
compile recurrent "$lstm" "$batch" 1 "$type" 4 fused
for shape in "105 8 16" "128 12 64" "40 1 128" "40 3 33"; do
    # shellcheck disable=SC2086
    compile "attention $shape" "$attention" "$batch" 1 "$type" $shape fused
    cores=$(grep -c ' attend.*_n_[14]_' "$folder/ptx/attention $shape/ours.txt" || true)
    if [ "$type" != f32 ] && [ "$cores" != 3 ]; then
        echo "attention of $shape: $cores kernels for tensor cores, not 3" >&2
        exit 1
    fi
done
