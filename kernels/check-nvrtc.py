"""Compiles kernels as an engine built without nvcc does at its first start: check-nvrtc.py ARCHITECTURE FILE...

No GPU is needed. The compiler is the one in this interpreter's packages; it takes less than nvcc
does, so what nvcc compiles may still fail here.
"""

import ctypes
import os
import re
import site
import sys

folder = os.path.join(site.getsitepackages()[0], "nvidia", "cu13", "lib")
ctypes.CDLL(os.path.join(folder, "libnvrtc-builtins.so.13.0"), mode=ctypes.RTLD_GLOBAL)
nvrtc = ctypes.CDLL(os.path.join(folder, "libnvrtc.so.13"))


def whole(path, seen):
    """The source with its headers in their places, each once."""
    lines = []
    for line in open(path):
        header = re.match(r'#include "(.*)"', line)
        if header and header[1] not in seen:
            seen.add(header[1])
            lines.append(whole(os.path.join(os.path.dirname(path), header[1]), seen))
        elif not header and line.strip() != "#pragma once":
            lines.append(line)
    return "".join(lines)


architecture, *paths = sys.argv[1:]
failed = False
for path in paths:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), whole(path, set()).encode(), b"kernels", 0, None, None)
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture=compute_{architecture}".encode(), b"--std=c++17")
    if nvrtc.nvrtcCompileProgram(program, 2, options) != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        print(f"{path} for {architecture}:\n{log.value.decode()}", file=sys.stderr)
        failed = True
sys.exit(failed)
