// In place of csrc/cuda/driver/no_emulation.cc: the emulated GPU, and what tests in Python tell and
// ask it.
#include "cuda/driver/emulation.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "emulated_driver.h"

namespace pb::cuda {
namespace {

// Plants the failure in the file that PYBATCHER_EMULATED_FAILURE names, if there is one: "FUNCTION
// NTH CODE", as fail_call() takes them. The file is removed first, and only by one process: those
// that start later, with the same environment, are spared.
void plant_failure() {
  const char* const path = std::getenv("PYBATCHER_EMULATED_FAILURE");
  if (path == nullptr) return;
  std::ifstream file(path);
  std::string function;
  int nth = 0;
  Result code = kSuccess;
  if (file >> function >> nth >> code && std::remove(path) == 0) {
    cuda_on_cpu::fail_call(function, nth, code);
  }
}

// Whoever waits for the GPU calls it again and again: a failure can be planted at any moment.
Result query_stream(StreamHandle stream) {
  plant_failure();
  return cuda_on_cpu::emulated_driver().query_stream.call(stream);
}

}  // namespace

const Emulation* emulation() {
  static const DriverApi driver = [] {
    DriverApi api = cuda_on_cpu::emulated_driver();
    api.query_stream.call = query_stream;
    return api;
  }();
  static const Emulation emulated{.driver = &driver};
  return &emulated;
}

}  // namespace pb::cuda

// For ctypes: see not_given_back(). The text is good until the next call.
extern "C" __attribute__((visibility("default"))) const char* emulated_gpu_not_given_back() {
  static std::string text;
  text = cuda_on_cpu::not_given_back();
  return text.c_str();
}

// For ctypes: see count_calls().
extern "C" __attribute__((visibility("default"))) int emulated_gpu_calls_of(const char* function) {
  return cuda_on_cpu::count_calls(function);
}
