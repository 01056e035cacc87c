// What the device layer says when a call fails, that a device is lost by some errors and not by
// others, and that everything is given back.
#include <string>
#include <vector>

#include "device_fixture.h"

namespace pb::cuda {
namespace {

struct BeyondParams {
  float* x;  // (n)
  int at;
};

PB_KERNEL(write_one, BeyondParams, 32) {
  if (threadIdx.x == 0) p.x[p.at] = 1.0f;
}

}  // namespace
}  // namespace pb::cuda

namespace pb::test {
namespace {

TEST(a_device_that_is_not_there_is_an_error) {
  EXPECT_EQ(message_of([] { Device(cuda_on_cpu::emulated_driver(), 1); }),
            "the GPU failed, cuDeviceGet gave 101");
}

TEST(memory_that_is_not_there_is_said_with_sizes) {
  OwnDevice device;
  cuda_on_cpu::set_memory_limit(size_t{3} << 20);
  EXPECT_EQ(device->free_memory().total, size_t{3} << 20);
  const DeviceMemory most = device->allocate(size_t{2} << 20);
  EXPECT_EQ(device->free_memory().free, size_t{1} << 20);
  EXPECT_EQ(message_of([&] { device->allocate(size_t{1536} << 10); }, ErrorCode::kOutOfMemory),
            "out of GPU memory: 1.50 MiB wanted, 1.00 MiB of 3.00 MiB free; lower n_ctx (KV), "
            "n_ubatch (buffers) or n_parallel, or load with a smaller dtype; where another "
            "process or worker holds the GPU's memory (nvidia-smi lists them), lower its n_ctx "
            "(cuMemAlloc_v2 gave 2 (CUDA_ERROR_OUT_OF_MEMORY: out of memory))");
  EXPECT(!device->is_lost());
  EXPECT_EQ(device->allocate(size_t{1} << 20).bytes(), size_t{1} << 20);
  EXPECT_EQ(device->free_memory().free, size_t{1} << 20);
}

TEST(copies_beyond_memory_are_refused) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(16);
  std::vector<char> host(32);
  for (int way = 0; way < 3; ++way) {
    const std::string said = message_of([&] {
      if (way == 0) device->copy_to_device(x.as(), host.data(), 17);
      if (way == 1) device->copy_to_host(host.data(), x.as<char>() + 1, 16);
      if (way == 2) device->copy_to_device(host.data(), x.as(), 16);
    });
    EXPECT(said.find("gave 1 (CUDA_ERROR_INVALID_VALUE: invalid argument)") != std::string::npos);
  }
}

TEST(writes_beyond_memory_are_seen) {
#ifndef __SANITIZE_ADDRESS__
  for (const int at : {-1, 4}) {
    OwnDevice device;
    DeviceMemory x = device->allocate(4 * sizeof(float));
    float saved = 0.0f;
    const std::string said = message_of([&] {
      saved = x.as<float>()[at];
      device->launch(Launch<cuda::BeyondParams>{"write_one", {}, 32, 0, {x.as<float>(), at}});
      device->finish();
    });
    EXPECT_EQ(said, std::string("device memory was written ") + (at < 0 ? "before" : "behind") +
                        " an allocation of 16 bytes");
    x.as<float>()[at] = saved;  // what gives it back looks at the guards, too
  }
#endif
}

TEST(a_launch_that_does_not_fit_its_kernel_is_refused) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(sizeof(float));
  EXPECT_EQ(message_of([&] { device->launch(Launch<int>{"nothing", {}, 32, 0, 1}); }),
            "no GPU kernel is called nothing");
  EXPECT_EQ(message_of([&] { device->launch(Launch<int>{"add_to_all", {}, 32, 0, 1}); }),
            "the GPU kernel add_to_all takes 16 bytes of parameters, not 4");
  auto wide = add(x, 1.0f);
  wide.threads = 65;
  EXPECT_EQ(message_of([&] { device->launch(wide); }),
            "the GPU failed, cuLaunchKernel of add_to_all gave 1 (CUDA_ERROR_INVALID_VALUE: "
            "invalid argument)");
  EXPECT(!device->is_lost());
}

TEST(an_error_of_one_call_passes) {
  OwnDevice device;
  cuda_on_cpu::fail_call("cuMemAlloc_v2", 2, 999);
  const DeviceMemory x = device->allocate(4);
  EXPECT_EQ(message_of([&] { device->allocate(4); }), "the GPU failed, cuMemAlloc_v2 gave 999");
  EXPECT(!device->is_lost());
  const DeviceMemory y = device->allocate(4);
  EXPECT(y.as() != nullptr);
}

TEST(after_a_sticky_error_the_device_is_lost) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(sizeof(float));
  device->launch(add(x, 1.0f));
  cuda_on_cpu::fail_call("cuStreamQuery", 1, cuda::kErrorIllegalAddress);
  const std::string why =
      " gave 700 (CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered); this "
      "process cannot use it any more, a new one can";
  EXPECT_EQ(message_of([&] { device->finish(); }), "the GPU failed, cuStreamQuery" + why);
  EXPECT(device->is_lost());
  EXPECT_EQ(message_of([&] { device->finish(); }), "the GPU failed, cuCtxSetCurrent" + why);
  EXPECT_EQ(device->why_lost(), "the GPU failed, cuStreamQuery" + why);  // the first
  EXPECT_EQ(message_of([&] { device->allocate(4); }), "the GPU failed, cuCtxSetCurrent" + why);
  EXPECT_EQ(message_of([&] { Device second(cuda_on_cpu::emulated_driver()); }),
            "the GPU failed, cuCtxSetCurrent" + why);
}

TEST(only_sticky_codes_lose_the_device) {
  for (const int code : {1, 2, 100, 201, 209, 304, 400, 500, 600, 701, 900, 999}) {
    EXPECT(!cuda::is_sticky(code));
  }
  for (const int code : {700, 702, 710, 714, 715, 716, 717, 718, 719, 214, 721}) {
    EXPECT(cuda::is_sticky(code));
  }
}

// Whatever call fails while a device is made and used, what it had is given back.
TEST(what_was_begun_is_given_back_wherever_it_fails) {
  cuda::DriverApi names = cuda_on_cpu::emulated_driver();
  names.for_each([](const auto& function) {
    const std::string name = function.name;
    if (name.find("Free") != std::string::npos || name.find("Destroy") != std::string::npos ||
        name.find("Release") != std::string::npos || name.find("Unload") != std::string::npos) {
      return;  // what cannot be given back stays
    }
    const std::string before = cuda_on_cpu::not_given_back();
    for (int nth = 1; nth < 40; ++nth) {
      cuda_on_cpu::reset_emulated_driver();
      cuda_on_cpu::fail_call(name, nth, 999);
      const std::string said = message_of([] {
        Device device(cuda_on_cpu::emulated_driver());
        device.load_module(nullptr);
        const DeviceMemory x = device.allocate(64);
        const cuda::PinnedMemory staging = device.allocate_pinned(64);
        device.copy_to_device(x.as(), staging.as(), 64);
        const cuda::Graph graph = device.capture([&] {
          device.launch(add(x, 1.0f, size_t{100} << 10));
          device.fill(x.as(), 0, 64);
        });
        device.launch(graph);
        device.mark();
        device.copy_on_device(x.as(), x.as(), 64);
        device.copy_to_host(staging.as(), x.as(), 64);
        device.finish();
      });
      EXPECT_EQ(cuda_on_cpu::not_given_back(), before);
      if (said.empty()) break;
    }
  });
  cuda_on_cpu::reset_emulated_driver();
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
