// The one exception type of the native code. bindings/ translates it, once, into
// the Python exceptions of pybatcher/errors.py.
#pragma once

#include <stdexcept>
#include <string>

namespace pb {

enum class ErrorCode {
  kInvalidRequest,  // InvalidRequestError
  kRequestTooLong,  // RequestTooLongError
  kNoFreeSequence,  // NoFreeSequenceError
  kKvCacheFull,     // KvCacheFullError
  kEngine,          // EngineError
  kOutOfMemory,     // EngineError
  kModelFormat,     // ModelFormatError
  kConfig,          // ConfigError
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace pb
