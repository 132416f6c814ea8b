"""Properties of the processor that the operating system does not report."""

import ctypes
import mmap
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# push rbx; mov eax, 0x1d; mov ecx, 1; cpuid; pop rbx; ret -- eax: bytes of all tiles and, above bit 15, of one
_SIZE_OF_TILES = bytes.fromhex("53 b81d000000 b901000000 0fa2 5b c3")


def announces_missing_tiles(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether an x86 processor announces AMX but has no tiles to compute in, as some virtual machines do.

    oneDNN believes the announcement: its products then fail, or end the process by SIGILL
    (https://github.com/uxlfoundation/oneDNN/issues/5689). False if it cannot be determined.
    """
    try:
        with cpuinfo.open(encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
        return "amx_tile" in flags.split() and platform.machine() == "x86_64" and not _bytes_of_tiles()
    except OSError:  # another system, or one that does not run generated code
        return False


def _bytes_of_tiles() -> int:
    """Return the bytes of all tiles of AMX's first palette, from CPUID's leaf 0x1D; 0 if there is none."""
    with mmap.mmap(-1, len(_SIZE_OF_TILES), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_SIZE_OF_TILES)
        start = ctypes.c_char.from_buffer(page)
        register = ctypes.CFUNCTYPE(ctypes.c_uint32)(ctypes.addressof(start))()
        del start  # Otherwise the page could not be closed.
    return int(register) & 0xFFFF
