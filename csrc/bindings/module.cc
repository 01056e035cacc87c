// pybatcher._core: the compiled engine.
#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled engine of pybatcher. Use it through pybatcher.Engine.";
  bind_errors(module);
  bind_kv(module);
  bind_masks(module);
  bind_engine(module);
  bind_quantise(module);
  bind_cores(module);
  bind_cuda(module);
}
