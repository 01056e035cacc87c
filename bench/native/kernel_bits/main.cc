// The bits that every kernel leaves of fixed inputs, on a GPU or on the emulator:
//   kernel_bits cuda|emulated [small] [mma=sequential|ampere|hopper] [seed=N] [only=PART]
//               [except=PART]
//
// mma: how the emulator's tensor cores add; seed: of its order of threads, 0 as numbered; only: a
// part of the cases (rows, rope, recurrent, gemm, experts, attention, sampling, tma,
// tma_attention), after an error in another part has left the GPU unusable; except: all but such a
// part. Prints a JSON object a line: the device; each
// case with a hash of its bits, an error, or why it was not run; at the end, how many were run and
// which kernels none of them launched. What does not come to that last line was cut off. Where the
// device cannot be used, one object says why, and the exit status is 3; 1 after an error.
#include <cstdio>
#include <string>

#include "cases.h"
#include "cuda/driver/build.h"
#include "cuda/driver/driver.h"
#include "cuda/image/kernel_image.h"
#include "cuda_fixture.h"

namespace {

using namespace pb;
using cuda_on_cpu::MmaModel;

constexpr int kNotRun = 3;

struct Options {
  bool on_gpu = false;
  bool is_small = false;
  std::string mma = "sequential";
  uint64_t seed = 0;
  std::string only;
  std::string except;
};

struct Part {
  const char* name;
  void (*run)(bench::Cases&);
};
constexpr Part kParts[] = {
    {"rows", bench::run_rows_cases},
    {"rope", bench::run_rope_cases},
    {"recurrent", bench::run_recurrent_cases},
    {"gemm", bench::run_gemm_cases},
    {"experts", bench::run_expert_cases},
    {"attention", bench::run_attention_cases},
    {"sampling", bench::run_sampling_cases},
    {"tma", bench::run_tma_cases},
    {"tma_attention", bench::run_tma_attention_cases},
};

// False where an argument is not known.
bool read_options(int argc, char** argv, Options& options) {
  if (argc < 2) return false;
  const std::string device = argv[1];
  if (device != "cuda" && device != "emulated") return false;
  options.on_gpu = device == "cuda";
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "small") {
      options.is_small = true;
    } else if (argument.starts_with("mma=")) {
      options.mma = argument.substr(4);
    } else if (argument.starts_with("seed=")) {
      options.seed = std::stoull(argument.substr(5));
    } else if (argument.starts_with("only=")) {
      options.only = argument.substr(5);
    } else if (argument.starts_with("except=")) {
      options.except = argument.substr(7);
    } else {
      return false;
    }
  }
  return options.mma == "sequential" || options.mma == "ampere" || options.mma == "hopper";
}

// Makes the GPU the device of all cases. What it lacks, or nothing.
std::string use_gpu() {
  if (cuda::kernel_image().empty()) {
    return "this build has no CUDA kernels: build it with PYBATCHER_CUDA=ON";
  }
  const cuda::Driver driver = cuda::probe(cuda::this_build());
  if (!driver.problem.empty()) return driver.problem;
  auto* const device = new cuda::Device(cuda::driver_api());  // never destroyed
  device->load_module(cuda::kernel_image().data());
  test::other_device() = device;
  return "";
}

// The names of the kernels that no case has launched, as a JSON array.
std::string not_launched() {
  std::string all;
  for (const std::string& name : cuda_on_cpu::kernel_names()) {
    if (test::launched_kernels().contains(name)) continue;
    all += (all.empty() ? "" : ", ") + bench::quoted(name);
  }
  return "[" + all + "]";
}

int run(const Options& options) {
  if (options.on_gpu) {
    const std::string lacking = use_gpu();
    if (!lacking.empty()) {
      std::printf("{\"not_run\": %s}\n", bench::quoted(lacking).c_str());
      return kNotRun;
    }
  }
  test::set_order(options.seed, options.mma == "hopper"   ? MmaModel::kHopper
                                : options.mma == "ampere" ? MmaModel::kAmpere
                                                          : MmaModel::kSequential);
  const cuda::DeviceProperties& device = test::test_device().properties();
  std::printf("{\"device\": %s, \"emulated\": %s, \"capability\": [%d, %d], \"mma\": \"%s\"}\n",
              bench::quoted(device.name).c_str(), options.on_gpu ? "false" : "true", device.major,
              device.minor, options.on_gpu ? "" : options.mma.c_str());
  bench::Cases cases(options.is_small);
  for (const Part& part : kParts) {
    if (options.except == part.name) continue;
    if (options.only.empty() || options.only == part.name) part.run(cases);
  }
  if (cases.failed()) return 1;
  std::printf("{\"cases\": %d, \"not_launched\": %s}\n", cases.n_run(), not_launched().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!read_options(argc, argv, options)) {
    std::fprintf(
        stderr,
        "kernel_bits cuda|emulated [small] [mma=MODEL] [seed=N] [only=PART] [except=PART]\n");
    return 2;
  }
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::printf("{\"error\": %s}\n", bench::quoted(error.what()).c_str());
    return 1;
  }
}
