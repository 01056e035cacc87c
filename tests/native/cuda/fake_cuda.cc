// A stand-in for libcuda.so.1: it says what the environment tells it to, for the tests of the
// probe.
//   FAKE_CUDA_VERSION  what it is for (13000)     FAKE_CUDA_COUNT       GPUs (1)
//   FAKE_CUDA_FAILS    function that fails        FAKE_CUDA_CODE        with this code (999)
//   FAKE_CUDA_NAME     of each GPU (NVIDIA H200)  FAKE_CUDA_CAPABILITY  of each GPU (90)
//                                                 FAKE_CUDA_FIRST       of the first one, instead
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define FAKE extern "C" __attribute__((visibility("default"))) int

namespace {

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

int code_of(const char* function) {
  const char* fails = std::getenv("FAKE_CUDA_FAILS");
  return fails != nullptr && std::strcmp(fails, function) == 0 ? number("FAKE_CUDA_CODE", 999) : 0;
}

}  // namespace

FAKE cuInit(unsigned flags) { return flags == 0 ? code_of("cuInit") : 1; }

FAKE cuDriverGetVersion(int* version) {
  *version = number("FAKE_CUDA_VERSION", 13000);
  return code_of("cuDriverGetVersion");
}

FAKE cuDeviceGetCount(int* count) {
  *count = number("FAKE_CUDA_COUNT", 1);
  return code_of("cuDeviceGetCount");
}

// Ids are not the ordinals, so that one cannot be taken for the other.
FAKE cuDeviceGet(int* id, int ordinal) {
  *id = 1000 + ordinal;
  return code_of("cuDeviceGet");
}

FAKE cuDeviceGetName(char* name, int size, int id) {
  if (id < 1000) return 101;
  const char* said = std::getenv("FAKE_CUDA_NAME");
  std::snprintf(name, static_cast<size_t>(size), "%s", said == nullptr ? "NVIDIA H200" : said);
  return code_of("cuDeviceGetName");
}

FAKE cuDeviceGetAttribute(int* value, int attribute, int id) {
  if (id < 1000) return 101;
  const int others = number("FAKE_CUDA_CAPABILITY", 90);
  const int capability = id == 1000 ? number("FAKE_CUDA_FIRST", others) : others;
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return code_of("cuDeviceGetAttribute");
}

FAKE cuDeviceTotalMem_v2(size_t* bytes, int id) {
  if (id < 1000) return 101;
  *bytes = size_t{140} << 30;
  return code_of("cuDeviceTotalMem_v2");
}

FAKE cuGetErrorString(int code, const char** text) {
  if (code != 999) return 1;  // as the real one does with codes that it does not know
  *text = "unknown error";
  return 0;
}
