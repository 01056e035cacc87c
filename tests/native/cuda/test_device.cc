// The device layer over the emulated driver: memory, the order of work, graphs, errors, and that
// everything is given back.
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda_fixture.h"

namespace pb::cuda {
namespace {

struct AddParams {
  float* x;  // (n)
  int n;
  float summand;
};

PB_KERNEL(add_to_all, AddParams, 64) {
  DYNAMIC_SHARED(float, shared);
  const int at = static_cast<int>(blockIdx.x * 64 + threadIdx.x);
  if (at >= p.n) return;
  shared[threadIdx.x] = p.x[at];
  p.x[at] = shared[threadIdx.x] + p.summand;
}

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

using cuda::Device;
using cuda::DeviceMemory;
using cuda::Launch;

// A device of a test's own; at the end, all must have been given back.
class OwnDevice {
 public:
  OwnDevice() : before_(cuda_on_cpu::not_given_back()) {
    set_order(0);
    device_.emplace(cuda_on_cpu::emulated_driver());
    device_->load_module(nullptr);
  }
  ~OwnDevice() {
    device_.reset();
    EXPECT_EQ(cuda_on_cpu::not_given_back(), before_);
    cuda_on_cpu::reset_emulated_driver();
  }
  Device& operator*() { return *device_; }
  Device* operator->() { return &*device_; }

 private:
  std::string before_;
  std::optional<Device> device_;
};

std::string message_of(FunctionRef<void()> run, ErrorCode code = ErrorCode::kEngine) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT(error.code() == code);
    return error.what();
  } catch (const cuda_on_cpu::Error& error) {
    return error.what();
  }
  return "";
}

Launch<cuda::AddParams> add(const DeviceMemory& x, float summand, size_t shared_bytes = 256) {
  const int n = static_cast<int>(x.bytes() / sizeof(float));
  return {"add_to_all",
          {static_cast<unsigned>(n + 63) / 64},
          64,
          shared_bytes,
          {x.as<float>(), n, summand}};
}

TEST(a_device_tells_what_it_is) {
  OwnDevice device;
  const cuda::DeviceProperties& is = device->properties();
  EXPECT_EQ(is.name, "emulated GPU");
  EXPECT_EQ(is.major, 9);
  EXPECT_EQ(is.minor, 0);
  EXPECT_EQ(is.memory_bytes, size_t{1} << 30);
  EXPECT_EQ(is.n_multiprocessors, 4);
  EXPECT_EQ(is.l2_bytes, size_t{50} << 20);
  EXPECT_EQ(is.most_shared_bytes, size_t{227} << 10);
  EXPECT(!device->is_lost());
}

TEST(a_device_that_is_not_there_is_an_error) {
  EXPECT_EQ(message_of([] { Device(cuda_on_cpu::emulated_driver(), 1); }),
            "the GPU failed, cuDeviceGet gave 101");
}

TEST(work_is_done_in_order_when_it_is_waited_for) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(3 * sizeof(float));
  const DeviceMemory y = device->allocate(3 * sizeof(float));
  EXPECT_EQ(x.bytes(), 3 * sizeof(float));
  const std::vector<float> in = {1.0f, 2.0f, 3.0f};
  std::vector<float> out(3, -1.0f);
  std::vector<float> zeros(3, -1.0f);
  device->copy_to_device(x.as(), in.data(), x.bytes());
  device->launch(add(x, 10.0f));
  device->copy_on_device(y.as(), x.as(), x.bytes());
  device->launch(add(x, 10.0f));
  device->copy_to_host(out.data(), y.as(), y.bytes());
  device->fill(y.as(), 0, y.bytes());
  device->copy_to_host(zeros.data(), y.as(), y.bytes());
  EXPECT_EQ(out[0], -1.0f);
  device->finish();
  EXPECT(same_bits(out, {11.0f, 12.0f, 13.0f}));
  EXPECT(same_bits(zeros, {0.0f, 0.0f, 0.0f}));
}

// A staging buffer that is written again before its copy was waited for spoils the copy.
TEST(host_memory_is_read_when_the_copy_runs) {
  OwnDevice device;
  const cuda::PinnedMemory staging = device->allocate_pinned(sizeof(int));
  const DeviceMemory x = device->allocate(sizeof(int));
  int out = 0;
  *staging.as<int>() = 1;
  device->copy_to_device(x.as(), staging.as(), sizeof(int));
  const cuda::Event copied = device->make_event();
  device->record(copied);
  *staging.as<int>() = 2;
  device->copy_to_host(&out, x.as(), sizeof(int));
  EXPECT(!device->is_done(copied));  // the question lets it go on
  device->wait(copied);
  EXPECT(device->is_done(copied));
  *staging.as<int>() = 3;
  device->finish();
  EXPECT_EQ(out, 2);
}

TEST(progress_is_told_at_each_mark_and_at_the_end) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(sizeof(float));
  float now = 0.0f;
  const float start = 0.0f;
  device->copy_to_device(x.as(), &start, sizeof start);
  std::vector<float> seen;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < 2; ++i) {
      device->launch(add(x, 1.0f));
      device->copy_to_host(&now, x.as(), sizeof now);
      device->mark();
    }
    device->launch(add(x, 1.0f));
    device->copy_to_host(&now, x.as(), sizeof now);
    device->finish([&] { seen.push_back(now); });
  }
  EXPECT(same_bits(seen, {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}));
  EXPECT_EQ(cuda_on_cpu::count_calls("cuEventCreate"), 2);
}

TEST(a_graph_repeats_what_was_captured) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(100 * sizeof(float));
  float first = 0.0f;
  const cuda::Graph graph = device->capture([&] {
    device->launch(add(x, 1.0f));
    device->mark();
    device->launch(add(x, 2.0f));
    device->copy_to_host(&first, x.as(), sizeof first);
  });
  device->fill(x.as(), 0, x.bytes());
  device->finish();
  EXPECT_EQ(first, 0.0f);
  for (int i = 1; i <= 3; ++i) {
    device->launch(graph);
    device->finish();
    EXPECT_EQ(first, 3.0f * static_cast<float>(i));
  }
}

TEST(a_capture_that_fails_leaves_the_device_as_it_was) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(sizeof(float));
  const std::string refused = message_of([&] { device->capture([&] { device->allocate(1); }); });
  EXPECT_EQ(refused,
            "the GPU failed, cuMemAlloc_v2 gave 900 (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: "
            "operation not permitted when stream is capturing)");
  cuda_on_cpu::fail_call("cuGraphInstantiateWithFlags", 1, 2);
  EXPECT_THROWS(ErrorCode::kOutOfMemory, device->capture([&] { device->launch(add(x, 1.0f)); }));
  device->fill(x.as(), 0, x.bytes());
  device->launch(add(x, 1.0f));
  float out = 0.0f;
  device->copy_to_host(&out, x.as(), sizeof out);
  device->mark();
  device->finish();
  EXPECT_EQ(out, 1.0f);
}

TEST(memory_that_is_not_there_is_said_with_sizes) {
  OwnDevice device;
  cuda_on_cpu::set_memory_limit(size_t{3} << 20);
  EXPECT_EQ(device->free_memory().total, size_t{3} << 20);
  const DeviceMemory most = device->allocate(size_t{2} << 20);
  EXPECT_EQ(device->free_memory().free, size_t{1} << 20);
  EXPECT_EQ(message_of([&] { device->allocate(size_t{1536} << 10); }, ErrorCode::kOutOfMemory),
            "out of GPU memory: 1.50 MiB wanted, 1.00 MiB of 3.00 MiB free; lower n_ctx (KV), "
            "n_ubatch (buffers) or n_parallel, or load with a smaller dtype (cuMemAlloc_v2 gave 2 "
            "(CUDA_ERROR_OUT_OF_MEMORY: out of memory))");
  EXPECT(!device->is_lost());
  EXPECT_EQ(device->allocate(size_t{1} << 20).bytes(), size_t{1} << 20);
  EXPECT_EQ(device->free_memory().free, size_t{1} << 20);
}

TEST(no_bytes_need_no_memory) {
  OwnDevice device;
  const DeviceMemory none = device->allocate(0);
  EXPECT(none.as() == nullptr);
  EXPECT(device->allocate_pinned(0).as() == nullptr);
  device->copy_to_device(none.as(), nullptr, 0);
  device->copy_to_host(nullptr, none.as(), 0);
  device->copy_on_device(none.as(), none.as(), 0);
  device->fill(none.as(), 0, 0);
  device->finish();
}

TEST(memory_that_is_moved_is_given_back_once) {
  OwnDevice device;
  DeviceMemory a = device->allocate(16);
  DeviceMemory b = device->allocate(32);
  void* const at = a.as();
  b = std::move(a);
  EXPECT(b.as() == at);
  EXPECT_EQ(b.bytes(), 16U);
  const DeviceMemory c = std::move(b);
  EXPECT(c.as() == at);
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

TEST(a_kernel_takes_more_shared_memory_when_it_asks) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(sizeof(float));
  device->launch(add(x, 1.0f, size_t{48} << 10));
  EXPECT_EQ(cuda_on_cpu::count_calls("cuFuncSetAttribute"), 0);
  for (const size_t kib : {100, 80, 100}) device->launch(add(x, 1.0f, kib << 10));
  EXPECT_EQ(cuda_on_cpu::count_calls("cuFuncSetAttribute"), 1);
  device->finish();
  EXPECT_EQ(message_of([&] { device->launch(add(x, 1.0f, size_t{228} << 10)); }),
            "the GPU failed, cuFuncSetAttribute gave 1 (CUDA_ERROR_INVALID_VALUE: invalid "
            "argument)");
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

TEST(parameters_are_taken_when_the_launch_is_given) {
  OwnDevice device;
  const DeviceMemory x = device->allocate(sizeof(float));
  device->fill(x.as(), 0, x.bytes());
  {
    auto launch = add(x, 5.0f);
    device->launch(launch);
    launch.params.summand = 100.0f;
  }
  float out = 0.0f;
  device->copy_to_host(&out, x.as(), sizeof out);
  device->finish();
  EXPECT_EQ(out, 5.0f);
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

TEST(a_device_may_be_used_by_another_thread) {
  OwnDevice device;
  DeviceMemory x;
  std::thread([&] { x = device->allocate(sizeof(float)); }).join();
  device->fill(x.as(), 0, x.bytes());
  std::thread([&] {
    device->launch(add(x, 1.0f));
    device->finish();
    x = DeviceMemory();
  }).join();
}

TEST(the_api_of_the_process_is_the_one_it_was_given) {
  cuda::use_driver_api(&cuda_on_cpu::emulated_driver());
  EXPECT(&cuda::driver_api() == &cuda_on_cpu::emulated_driver());
  cuda::use_driver_api(nullptr);
  EXPECT_THROWS(ErrorCode::kConfig, cuda::load_driver_api("/no/such/libcuda.so.1"));
  EXPECT_EQ(message_of([] { cuda::load_driver_api("libm.so.6"); }, ErrorCode::kConfig),
            "the NVIDIA driver has no cuInit: update the driver");
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
