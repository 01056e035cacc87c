// The extension module pybatcher._core: the compiled engine.
#include "bindings/bindings.h"

// The extension does not need the GIL: calls of an engine take the engine's lock, and engines share
// nothing else.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The compiled engine of pybatcher. Use it through pybatcher.Engine.";
  bind_errors(module);
  bind_config(module);
  bind_kv(module);
  bind_masks(module);
  bind_engine(module);
  bind_files(module);
  bind_quantise(module);
  bind_cores(module);
  bind_cuda(module);
}
