// The probe, with a driver that is played by fake_cuda.cc.
#include <stdlib.h>

#include <cstring>
#include <initializer_list>
#include <span>
#include <utility>

#include "check.h"
#include "cuda/driver/driver.h"
#include "cuda/image/kernel_image.h"

using pb::cuda::Build;
using pb::cuda::Driver;
using pb::cuda::DriverState;
using pb::cuda::probe;
using pb::cuda::state_name;

namespace {

const Build kWith{.toolkit = "13.0.88", .architectures = {80, 89, 90, 100}, .problem = ""};
const Build kWithout{.toolkit = "", .architectures = {}, .problem = "no nvcc"};

using Said = std::initializer_list<std::pair<const char*, const char*>>;

// What the probe makes of a driver that says this.
Driver probe_fake(const Build& build, Said said) {
  for (const auto& [name, value] : said) setenv(name, value, 1);
  Driver driver = probe(build, PB_FAKE_CUDA);
  for (const auto& [name, value] : said) unsetenv(name);
  return driver;
}

bool mentions(const Driver& driver, const std::string& part) {
  return driver.problem.find(part) != std::string::npos;
}

void expect_state(const Driver& driver, const char* state) {
  EXPECT_EQ(std::string(state_name(driver.state)), state);
  EXPECT_EQ(driver.problem.empty(), driver.state == DriverState::kReady);
}

}  // namespace

TEST(a_good_driver_tells_its_version_and_its_gpus) {
  for (const Build& build : {kWith, kWithout}) {
    const Driver driver = probe_fake(build, {{"FAKE_CUDA_COUNT", "2"}});
    expect_state(driver, "ready");
    EXPECT_EQ(driver.version, 13000);
    EXPECT_EQ(driver.error, 0);
    EXPECT_EQ(driver.devices.size(), 2U);
    for (const auto& device : driver.devices) {
      EXPECT_EQ(device.name, "NVIDIA H200");
      EXPECT_EQ(device.major, 9);
      EXPECT_EQ(device.minor, 0);
      EXPECT_EQ(device.memory_bytes, size_t{140} << 30);
    }
  }
}

TEST(without_the_library_there_is_no_driver) {
  const Driver driver = probe(kWith, "/no/such/libcuda.so.1");
  expect_state(driver, "absent");
  EXPECT(mentions(driver, "/no/such/libcuda.so.1"));
  EXPECT_EQ(driver.version, 0);
}

TEST(a_library_that_is_no_driver_is_a_failure) {
  const Driver driver = probe(kWith, "libm.so.6");
  expect_state(driver, "failed");
  EXPECT(mentions(driver, "no cuDriverGetVersion"));
  EXPECT_EQ(driver.error, 0);
}

TEST(a_driver_is_too_old_below_the_first_version_of_the_toolkits_major_number) {
  const Driver old = probe_fake(kWith, {{"FAKE_CUDA_VERSION", "12080"}});
  expect_state(old, "too_old");
  EXPECT(mentions(old, "up to 12.8, and this build needs one for 13.0"));
  EXPECT_EQ(old.version, 12080);
  const Build newer{.toolkit = "13.2.1", .architectures = {90}, .problem = ""};
  expect_state(probe_fake(newer, {{"FAKE_CUDA_VERSION", "13000"}}), "ready");
  expect_state(probe_fake(kWithout, {{"FAKE_CUDA_VERSION", "11000"}}), "ready");
}

TEST(a_driver_that_is_too_old_is_not_started) {
  const Said said = {{"FAKE_CUDA_VERSION", "12080"}, {"FAKE_CUDA_FAILS", "cuInit"}};
  expect_state(probe_fake(kWith, said), "too_old");
}

TEST(no_gpu_is_told_by_the_start_or_by_the_count) {
  const Said started = {{"FAKE_CUDA_FAILS", "cuInit"}, {"FAKE_CUDA_CODE", "100"}};
  expect_state(probe_fake(kWith, started), "no_device");
  const Driver counted = probe_fake(kWith, {{"FAKE_CUDA_COUNT", "0"}});
  expect_state(counted, "no_device");
  EXPECT(mentions(counted, "CUDA_VISIBLE_DEVICES"));
}

TEST(a_function_that_fails_is_named_with_code_and_text) {
  for (const char* function : {"cuDriverGetVersion", "cuInit", "cuDeviceGetCount", "cuDeviceGet",
                               "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2"}) {
    const Driver driver = probe_fake(kWith, {{"FAKE_CUDA_FAILS", function}});
    expect_state(driver, "failed");
    EXPECT_EQ(driver.error, 999);
    EXPECT(mentions(driver, std::string(function) + " gave 999 (unknown error)"));
    EXPECT(driver.devices.empty());
  }
  const Said nameless = {{"FAKE_CUDA_FAILS", "cuInit"}, {"FAKE_CUDA_CODE", "803"}};
  EXPECT(mentions(probe_fake(kWith, nameless), "cuInit gave 803: "));
}

TEST(code_runs_on_later_gpus_of_the_same_major_number_only) {
  for (const char* capability : {"80", "86", "89", "90", "100", "103"}) {
    expect_state(probe_fake(kWith, {{"FAKE_CUDA_CAPABILITY", capability}}), "ready");
  }
  for (const char* capability : {"70", "75", "120"}) {
    expect_state(probe_fake(kWith, {{"FAKE_CUDA_CAPABILITY", capability}}), "unknown_device");
    expect_state(probe_fake(kWithout, {{"FAKE_CUDA_CAPABILITY", capability}}), "ready");
  }
  const Build later{.toolkit = "12.4.0", .architectures = {89}, .problem = ""};
  expect_state(probe_fake(later, {{"FAKE_CUDA_CAPABILITY", "86"}}), "unknown_device");
  const Driver old =
      probe_fake(kWith, {{"FAKE_CUDA_NAME", "Tesla V100"}, {"FAKE_CUDA_CAPABILITY", "70"}});
  EXPECT(mentions(old, "Tesla V100 is sm_70; it has sm_80, sm_89, sm_90, sm_100"));
  EXPECT_EQ(old.devices.size(), 1U);
}

TEST(the_gpu_that_an_engine_takes_decides) {
  const Said older_first = {{"FAKE_CUDA_COUNT", "2"}, {"FAKE_CUDA_FIRST", "75"}};
  const Driver driver = probe_fake(kWith, older_first);
  expect_state(driver, "unknown_device");
  EXPECT(mentions(driver, "GPU 0 is of no architecture"));
  EXPECT(mentions(driver, "NVIDIA H200 is sm_75;"));
  EXPECT(mentions(driver, "CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(driver.devices.size(), 2U);
  const Said older_second = {
      {"FAKE_CUDA_COUNT", "2"}, {"FAKE_CUDA_FIRST", "90"}, {"FAKE_CUDA_CAPABILITY", "75"}};
  expect_state(probe_fake(kWith, older_second), "ready");
}

TEST(a_name_of_any_length_is_cut) {
  const std::string name(1000, 'x');
  const Driver driver = probe_fake(kWith, {{"FAKE_CUDA_NAME", name.c_str()}});
  expect_state(driver, "ready");
  EXPECT_EQ(driver.devices.at(0).name, name.substr(0, 254));
}

TEST(this_build_has_a_toolkit_or_a_reason) {
  const Build& build = pb::cuda::this_build();
  EXPECT_EQ(build.toolkit.empty(), build.architectures.empty());
  EXPECT_EQ(build.toolkit.empty(), !build.problem.empty());
}

TEST(an_image_of_kernels_is_what_nvcc_made) {
  const std::span<const std::byte> image = pb::cuda::kernel_image();
  if (image.empty()) return;  // PYBATCHER_CUDA is not ON
  EXPECT(!pb::cuda::this_build().toolkit.empty());
  const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba};  // of fatbinary.h
  EXPECT(image.size() > sizeof magic);
  EXPECT(std::memcmp(image.data(), magic, sizeof magic) == 0);
}

PB_TEST_MAIN()
