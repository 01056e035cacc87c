// The limits of a GPU as one JSON object:
//   gpu_limits cuda|emulated [MiB to copy] [n of a product of n x n by n x n] [seconds]
//
// Copies read and write the device's memory: GB/s count both. The product is the widest bf16 kernel
// of this library: what its multipliers do at least, where nothing else is there to ask. On 9.0,
// the product by its own kernels too, with tiles by cp.async (wgmma) and by tensor maps (tma). Of
// repetitions for so many seconds, the median. Where the device cannot be used, the object says why
// and the exit status is 3.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cuda/driver/build.h"
#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "cuda/gemm/gemm_launch.h"
#include "cuda/image/kernel_image.h"
#include "emulated_driver.h"

namespace {

using namespace pb;

constexpr int kNotRun = 3;
constexpr int kLaunches = 10;  // of a repetition, so that what a wait costs does not count

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The median seconds of one of the launches that `give_work` gives kLaunches of.
double measure(cuda::Device& device, double seconds, FunctionRef<void()> give_work) {
  std::vector<double> times;
  give_work();
  device.finish();  // loads the kernel
  for (const double start = now(); times.size() < 3 || now() - start < seconds;) {
    const double begin = now();
    for (int i = 0; i < kLaunches; ++i) give_work();
    device.finish();
    times.push_back((now() - begin) / kLaunches);
  }
  std::ranges::nth_element(times, times.begin() + static_cast<ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

double copy_gb_s(cuda::Device& device, size_t bytes, double seconds) {
  const cuda::DeviceMemory from = device.allocate(bytes);
  const cuda::DeviceMemory to = device.allocate(bytes);
  device.fill(from.as(), 1, bytes);
  const double time =
      measure(device, seconds, [&] { device.copy_on_device(to.as(), from.as(), bytes); });
  return 2.0 * static_cast<double>(bytes) / time / 1e9;
}

// x and w hold numbers of both signs: multipliers that are fed zeros use less power, and are
// faster.
double gemm_tflop_s(cuda::Device& device, int n, const cuda::GemmChoice& choice, double seconds) {
  const cuda::GemmSizes sizes{n, n, n, DType::kBF16};
  const size_t count = static_cast<size_t>(n) * static_cast<size_t>(n);
  std::vector<uint16_t> numbers(count);
  uint32_t state = 1;
  for (uint16_t& bits : numbers) {
    state = state * 1664525u + 1013904223u;
    bits = static_cast<uint16_t>(0x3f00u | (state >> 16 & 0x80ffu));  // 0.5 to 2, of both signs
  }
  const cuda::DeviceMemory x = device.allocate(2 * count);
  const cuda::DeviceMemory w = device.allocate(2 * count);
  const cuda::DeviceMemory y = device.allocate(4 * count);
  device.copy_to_device(x.as(), numbers.data(), 2 * count);
  device.copy_to_device(w.as(), numbers.data(), 2 * count);
  device.finish();
  const cuda::GemmOperands operands{.x = x.as(),
                                    .x_stride = n,
                                    .w = {w.as(), nullptr, nullptr},
                                    .y = y.as<float>(),
                                    .scratch = nullptr};
  const double time =
      measure(device, seconds, [&] { launch_gemm(device, sizes, choice, operands, Store::kSet); });
  return 2.0 * n * n * n / time / 1e12;
}

// What the kernels of sm_90a do, whose tiles are copied by cp.async or by tensor maps, as more
// fields of the object. Nothing of those that the device has not.
std::string hopper_fields(cuda::Device& device, int n, double seconds) {
  if (device.properties().major != 9) return "";
  std::string fields;
  const auto add = [&](const char* name, const cuda::GemmKernel& kernel) {
    char text[64];
    std::snprintf(
        text, sizeof text, ", \"%s\": %.5g", name,
        gemm_tflop_s(device, n, {&kernel, false, device.properties().n_multiprocessors}, seconds));
    fields += text;
  };
  add("wgmma_tflop_s", cuda::wgmma_kernel(DType::kBF16));
  const cuda::DeviceMemory any = device.allocate(128);
  const cuda::TiledMatrix row{.data = any.as(), .n_rows = 1, .n_columns = 64, .box_rows = 1};
  if (device.make_tensor_map(row)) add("tma_tflop_s", cuda::tma_kernel(DType::kBF16));
  return fields;
}

int run(bool on_gpu, size_t bytes, int n, double seconds) {
  std::string lacking;
  if (on_gpu && cuda::kernel_image().empty()) {
    lacking = "this build has no CUDA kernels: build it with PYBATCHER_CUDA=ON";
  } else if (on_gpu) {
    lacking = cuda::probe(cuda::this_build()).problem;
  }
  if (!lacking.empty()) {
    std::printf("{\"not_run\": \"%s\"}\n", lacking.c_str());
    return kNotRun;
  }
  cuda::Device device(on_gpu ? cuda::driver_api() : cuda_on_cpu::emulated_driver());
  device.load_module(on_gpu ? static_cast<const void*>(cuda::kernel_image().data()) : "emulated");
  const cuda::GemmChoice choice{&cuda::gemm_kernels(DType::kBF16).back(), false};
  const double copied = copy_gb_s(device, bytes, seconds);
  const double multiplied = gemm_tflop_s(device, n, choice, seconds);
  const std::string hopper = hopper_fields(device, n, seconds);
  std::printf(
      "{\"device\": \"%s\", \"emulated\": %s, \"copy_mib\": %zu, \"copy_gb_s\": %.5g, \"n\": %d, "
      "\"gemm\": \"%s\", \"gemm_tflop_s\": %.5g%s}\n",
      device.properties().name.c_str(), on_gpu ? "false" : "true", bytes >> 20, copied, n,
      choice.kernel->name, multiplied, hopper.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string device = argc > 1 ? argv[1] : "";
  if (device != "cuda" && device != "emulated") {
    std::fprintf(stderr, "gpu_limits cuda|emulated [MiB] [n] [seconds]\n");
    return 2;
  }
  const int mebibytes = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2048;
  const int n = argc > 3 ? std::max(64, std::atoi(argv[3]) / 64 * 64) : 8192;
  const double seconds = argc > 4 ? std::atof(argv[4]) : 2.0;
  try {
    return run(device == "cuda", static_cast<size_t>(mebibytes) << 20, n, seconds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
