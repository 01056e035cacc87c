// Converts native errors to the exceptions of pybatcher/errors.
#include <pybind11/pybind11.h>

#include <exception>
#include <new>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/text.h"

namespace py = pybind11;

namespace {

const char* class_name(pb::ErrorCode code) {
  switch (code) {
    case pb::ErrorCode::kInvalidRequest:
      return "InvalidRequestError";
    case pb::ErrorCode::kRequestTooLong:
      return "RequestTooLongError";
    case pb::ErrorCode::kNoFreeSequence:
      return "NoFreeSequenceError";
    case pb::ErrorCode::kKvCacheFull:
      return "KvCacheFullError";
    case pb::ErrorCode::kEngine:
    case pb::ErrorCode::kOutOfMemory:
      return "EngineError";
    case pb::ErrorCode::kModelFormat:
      return "ModelFormatError";
    case pb::ErrorCode::kConfig:
      return "ConfigError";
  }
  return "EngineError";
}

// Looks the class up at each error: errors are rare, and no reference outlives the interpreter.
void set_python_error(const char* name, const char* message) {
  const py::object text = pb::bindings::to_text(message);
  py::set_error(py::module_::import("pybatcher.errors").attr(name), text);
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const pb::Error& error) {
    set_python_error(class_name(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    set_python_error("EngineError",
                     "out of memory; lower n_ctx (KV), n_ubatch (buffers) or n_parallel, or load "
                     "with dtype='bf16' (half the weights of 'f32')");
  }
}

}  // namespace

void bind_errors(py::module_&) { py::register_local_exception_translator(&translate); }
