#!/bin/bash
# Runs a program of this workspace, such as a test of the kernels, on an emulated processor with AVX-512, AVX-512-BF16
# and AMX (Intel's Sapphire Rapids) and Linux, for machines that have none of them:
#
#     run.sh BOCHS OUT PROGRAM [ARGUMENT…]
#
# BOCHS is a folder of the sources of Bochs 3.0 (Debian's source package `bochs` is one), which is mended (bochs.py) and
# built there at first. OUT is a folder for what the program prints (`out`), Bochs' log and the disk it starts from.
# FIREBOX_KERNELS is passed on. Beside a C++ compiler it takes Debian's packages bochsbios, vgabios, busybox-static,
# isolinux, syslinux-common, genisoimage and cpio, and a Linux kernel: KERNEL=FILE, or the newest in /boot (unpack
# linux-image-cloud-amd64 by `dpkg-deb -x` if there is none). The exit status is that of the program.
#
# It does about 100 million instructions a second on one processor: a hundredth of a real one. For example, what was
# not seen on a processor of its own since (20 s to start, 3 minutes in all):
#
#     run.sh bochs-3.0 emulated target/release/deps/firebox_kernels-HASH --test-threads=1 kept_gates
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(dirname "$(realpath "$0")") bochs=$(realpath "$1") program=$(realpath "$3")
mkdir -p "$2"
out=$(realpath "$2")
shift 3
screen=$(ls /usr/share/vgabios/vgabios{,-stdvga}.bin 2> /dev/null | head -n 1)
kernel=${KERNEL:-$(ls -t /boot/vmlinuz-* | head -n 1)}

if [ ! -x "$bochs/bochs" ]; then
    python3 "$here/bochs.py" "$bochs"
    (
        cd "$bochs"
        CXXFLAGS="-O3 -march=native -fno-strict-aliasing" CFLAGS="-O3 -march=native" ./configure --enable-cpu-level=6 \
            --enable-x86-64 --enable-avx --enable-evex --enable-amx --enable-all-optimizations --enable-fpu \
            --disable-plugins --disable-docbook --with-nogui
        make -j"$(nproc)"
    ) > "$out/build.log" 2>&1 || { echo "Bochs was not built: $out/build.log" >&2; exit 1; }
fi

# The first file system: the program with its libraries, what its tests read, and a shell to start it.
rm -rf "$out/files" "$out/disk"
mkdir -p "$out/files/bin" "$out/files/proc" "$out/files/sys" "$out/files/dev" "$out/files/tmp" "$out/disk/isolinux"
put() { mkdir -p "$out/files$(dirname "$1")" && cp -rL "$1" "$out/files$1"; }
for library in $(ldd "$program" 2> /dev/null | grep -o '/[^ ]*' || true); do put "$library"; done
crate=$(realpath "$here/../..")
put "$crate/tests/golden"
cp "$program" "$out/files/program"
strip "$out/files/program"
cp "$(command -v busybox)" "$out/files/bin/busybox"
{
    echo '#!/bin/busybox sh'
    echo '/bin/busybox --install -s /bin'
    echo 'mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp'
    echo "export HOME=/tmp${FIREBOX_KERNELS:+ FIREBOX_KERNELS=$FIREBOX_KERNELS}"
    echo "cd $crate"
    printf '/program'
    [ $# -eq 0 ] || printf ' %q' "$@"
    echo ' 2>&1; echo "exit status $?"; poweroff -f'
} > "$out/files/init"
chmod +x "$out/files/init"
(cd "$out/files" && find . | cpio -o -H newc --quiet | gzip -1) > "$out/disk/isolinux/initrd"
cp "$kernel" "$out/disk/isolinux/vmlinuz"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$out/disk/isolinux/"
# Five levels of pages end Bochs when its system management mode returns.
cat > "$out/disk/isolinux/isolinux.cfg" << 'END'
DEFAULT linux
PROMPT 0
LABEL linux
 KERNEL vmlinuz
 INITRD initrd
 APPEND console=ttyS0,115200 mitigations=off nokaslr no5lvl tsc=reliable panic=-1 loglevel=4 nowatchdog
END
genisoimage -quiet -o "$out/disk.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$out/disk"
rm -rf "$out/files" "$out/disk" "$out/out"

cat > "$out/bochsrc" << END
config_interface: textconfig
display_library: nogui
cpu: model=sapphire_rapids, count=1, ips=50000000, reset_on_triple_fault=0, ignore_bad_msrs=1
memory: guest=2048, host=2048
romimage: file=/usr/share/bochs/BIOS-bochs-latest, options=fastboot
vgaromimage: file=$screen
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path="$out/disk.iso", status=inserted
boot: cdrom
log: "$out/bochs.log"
panic: action=fatal
error: action=report
info: action=ignore
com1: enabled=1, mode=file, dev="$out/out"
clock: sync=none
END
# Switching the machine off is a panic to Bochs, whose status says nothing therefore.
"$bochs/bochs" -q -f "$out/bochsrc" < /dev/null > "$out/console" 2>&1 || true
cat "$out/out"
status=$(sed -n 's/^exit status \([0-9]*\).*/\1/p' "$out/out" | tail -n 1)
[ -n "$status" ] || { echo "it did not come to its end: $out/bochs.log" >&2; exit 1; }
exit "$status"
