"""Mends Bochs 3.0 (a folder of its sources), so that Linux runs programs with AVX-512-BF16 and AMX on it.

1. VCVTNE2PS2BF16 read its second half from beyond the register, and VDPBF16PS its operand in memory from another place:
   its displacement was counted in numbers, where it is in vectors.
2. The state of tiles was saved with rows and bytes a row exchanged, with eight of sixteen rows, and only while no
   tile was used: after a switch between threads they were gone.
3. Extended feature disable (XFD), without which Linux does not let programs use tiles: two registers, what CPUID says
   of them, and the exception that tells the system of the first use.

Each place is named by what stands there; a version of Bochs without it ends this program.
"""

import pathlib
import sys

cpu = pathlib.Path(sys.argv[1]) / "cpu"


def mend(file, *changes):
    path = cpu / file
    text = path.read_text()
    for old, new in changes:
        if new in text:
            continue
        if text.count(old) != 1:
            sys.exit(f"{path}: {text.count(old)} times in place of once: {old!r}")
        text = text.replace(old, new)
    path.write_text(text)


mend(
    "avx/avx512_bf16.cc",
    (
        "dst.vmm16u(n) = convert_ne_fp32_to_bfloat16(op1.vmm32u(n));",
        "dst.vmm16u(n) = convert_ne_fp32_to_bfloat16(op1.vmm32u(n - DWORD_ELEMENTS(len)));",
    ),
)
opcode = "&BX_CPU_C::VDPBF16PS_MASK_VpsHdqWdqR, BX_ISA_AVX512_BF16, OP_Vps, OP_Hdq, {}, OP_NONE"
mend("decoder/ia_opcodes_evex.def", (opcode.format("OP_mVdq32"), opcode.format("OP_mVdq")))
rows = "{} = BX_CPU_THIS_PTR amx->tilecfg[n].{};"
tile = "(offset+(tile*BX_TILE_MAX_ROWS+row)*64)"
loop = "row < {}; row++) {{\n      {}_virtual_zmmword(i->seg(), " + tile
mend(
    "xsave.cc",
    (
        rows.format("tilecfg.vmm16u(8+n)   ", "rows"),
        rows.format("tilecfg.vmm16u(8+n)   ", "bytes_per_row"),
    ),
    (
        rows.format("tilecfg.vmmubyte(48+n)", "bytes_per_row"),
        rows.format("tilecfg.vmmubyte(48+n)", "rows"),
    ),
    (
        loop.format("BX_TILE_REGISTERS", "write"),
        loop.format("BX_TILE_MAX_ROWS", "write"),
    ),
    (
        loop.format("BX_TILE_REGISTERS", "read"),
        loop.format("BX_TILE_MAX_ROWS", "read"),
    ),
    ("amx->tile_use_tracker == 0);", "amx->tile_use_tracker != 0);"),
)
read = "      val64 = BX_CPU_THIS_PTR msr.ia32_xss;\n      break;\n#endif\n"
written = "        BX_CPU_THIS_PTR msr.ia32_xss = val_64;\n        break;\n      }\n#endif\n"
writing = """
    case BX_MSR_IA32_XFD:
      BX_CPU_THIS_PTR msr.ia32_xfd = val_64;
      handleAvxModeChange();
      break;
    case BX_MSR_IA32_XFD_ERROR:
      BX_CPU_THIS_PTR msr.ia32_xfd_error = val_64;
      break;
"""
reading = """
    case BX_MSR_IA32_XFD:
      val64 = BX_CPU_THIS_PTR msr.ia32_xfd;
      break;
    case BX_MSR_IA32_XFD_ERROR:
      val64 = BX_CPU_THIS_PTR msr.ia32_xfd_error;
      break;
"""
described = "  msr_desc[BX_MSR_XSS] ="
describing = """  msr_desc[BX_MSR_IA32_XFD] = new MSR_Descriptor("MSR_IA32_XFD", BX_ISA_AMX);
  msr_desc[BX_MSR_IA32_XFD_ERROR] = new MSR_Descriptor("MSR_IA32_XFD_ERROR", BX_ISA_AMX);
"""
mend(
    "msr.cc",
    (read, read + reading),
    (written, written + writing),
    (described, describing + described),
)
mend("cpu.h", ("  Bit64u ia32_xss;\n", "  Bit64u ia32_xss;\n  Bit64u ia32_xfd, ia32_xfd_error;\n"))
reset = "  BX_CPU_THIS_PTR msr.ia32_xss = 0;\n"
mend(
    "init.cc",
    (
        reset,
        reset + "  BX_CPU_THIS_PTR msr.ia32_xfd = BX_CPU_THIS_PTR msr.ia32_xfd_error = 0;\n",
    ),
)
disabled = "BX_CPU_THIS_PTR msr.ia32_xfd & BX_XCR0_XTILEDATA_MASK"
usable = "(BX_XCR0_XTILECFG_MASK | BX_XCR0_XTILEDATA_MASK)) != 0"
refused = """  if (~BX_CPU_THIS_PTR xcr0.val32 & (BX_XCR0_XTILECFG_MASK | BX_XCR0_XTILEDATA_MASK))
    exception(BX_UD_EXCEPTION, 0);
"""
refusing = f"""
  if ({disabled}) {{
    BX_CPU_THIS_PTR msr.ia32_xfd_error = BX_XCR0_XTILEDATA_MASK;
    exception(BX_NM_EXCEPTION, 0);
  }}
"""
mend(
    "proc_ctrl.cc",
    (usable + ")\n    clear_amx_ok", usable + f" || ({disabled}))\n    clear_amx_ok"),
    (refused, refused + refusing),
)
compact = "      leaf->eax |= (1<<3);\n\n    // EBX"
component = "      leaf->ecx = (cpu->ia32_xss_suppmask & (1 << subfunction)) != 0;\n"
mend(
    "cpuid.cc",
    (compact, compact.replace("\n\n", "\n    if (is_cpu_extension_supported(BX_ISA_AMX))\n      leaf->eax |= (1<<4);\n\n")),
    (component, component + "      if (subfunction == xcr0_t::BX_XCR0_XTILEDATA_BIT) leaf->ecx |= 4;\n"),
)
