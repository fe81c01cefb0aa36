"""Compiles for a GPU what Triton's interpreter ran: `python tests/launched.py file`, a launch in each line.

The interpreter takes what the compiler refuses, such as operands of two types, or a loop that changes the type of a
variable. The compiler needs no GPU, but another process, since a kernel is defined for one of the two.
"""

import contextlib
import importlib
import inspect
import json
import os
import subprocess
import sys

# Hopper, and the bytes of shared memory that a program may have there
ARCHITECTURE, SHARED = 90, 232_448


@contextlib.contextmanager
def every_kernel_compiled(path):
    """What is interpreted here is compiled at the end, each kernel once for each of the types it was given.

    Args:
        path: of a file to note the launches in.
    """
    from triton.runtime.interpreter import InterpretedFunction

    run, launches = InterpretedFunction.run, {}

    def noting(self, *arguments, num_warps=4, **options):
        # kernels of the tests themselves are in files that are run, not imported
        if self.fn.__module__.startswith("structmax."):
            module, name, types, constants = described(self.fn, arguments)
            launches.setdefault((module, name, *types), [module, name, types, constants, num_warps])
        return run(self, *arguments, num_warps=num_warps, **options)

    InterpretedFunction.run = noting
    try:
        yield
    finally:
        InterpretedFunction.run = run
    if not launches:
        return
    path.write_text("".join(f"{json.dumps(launch)}\n" for launch in launches.values()))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    compiled = subprocess.run([sys.executable, __file__, str(path)], env=environment, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr[-3000:]


def described(function, arguments):
    """A launch: module, name, types of the arguments, and values of those that are constants."""
    import triton.language as tl
    from triton.runtime.jit import mangle_type

    def kind(value, annotation):
        if annotation is tl.constexpr:
            return "constexpr"
        return "fp64" if annotation is tl.float64 else mangle_type(value)

    parameters = inspect.signature(function).parameters.values()
    types = [kind(value, each.annotation) for value, each in zip(arguments, parameters, strict=True)]
    constants = [
        None if spoken != "constexpr" else f"tl.{value}" if isinstance(value, tl.dtype) else value
        for value, spoken in zip(arguments, types, strict=True)
    ]
    return function.__module__, function.__name__, types, constants


def compile_for_gpu(module, name, types, constants, warps):
    """Raises what the compiler has to say."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(module), name)
    values = {
        (place,): tl.dtype(value[3:]) if isinstance(value, str) and value.startswith("tl.") else value
        for place, (value, spoken) in enumerate(zip(constants, types, strict=True))
        if spoken == "constexpr"
    }
    source = ASTSource(kernel, dict(zip(kernel.arg_names, types, strict=True)), values, {})
    compiled = triton.compile(source, target=GPUTarget("cuda", ARCHITECTURE, 32), options={"num_warps": warps})
    if compiled.metadata.shared > SHARED:
        raise RuntimeError(f"{compiled.metadata.shared} bytes of shared memory are more than {SHARED}")


def main(path):
    with open(path) as file:
        for line in file:
            module, name, *rest = json.loads(line)
            try:
                compile_for_gpu(module, name, *rest)
            except Exception as error:
                raise RuntimeError(f"{module}.{name} does not compile with {rest}") from error


if __name__ == "__main__":
    main(sys.argv[1])
