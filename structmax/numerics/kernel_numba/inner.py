"""How functions are compiled that only compiled functions call: no further than to what can be linked.

Numba optimises every function and makes machine code of it, and does so once more in each function it is linked into.
Here an inner function stays as it is lowered: the kernel that calls it, in the end, is optimised as a whole and once.
"""

from typing import Any

from numba import types
from numba._dynfunc import make_function
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic


class _Linkable(JITCodeLibrary):
    """A library that is linked into others and never run by itself."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        context = state.targetctx
        state.library = _Linkable(context.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        # What stands for the function in Numba's tables. It has no address: Python must not call it.
        lowered = state.cr
        module, name = lowered.fndesc.lookup_module(), state.func_id.func_name
        entry = make_function(module, name, "", 0, lowered.env, (state.library,))
        context.insert_user_function(entry, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


class InnerCompiler(Compiler):
    """Numba's compiler, up to what can be linked."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes[:] = [(_Lowering if p is NativeLowering else p, why) for p, why in passes.passes]
        passes._finalized = False
        passes.finalize()
        return [passes]


@intrinsic
def stay_apart(typingctx):
    """Keeps the function it stands in out of its callers, each of which would compile it anew."""

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen
