// The device layer over the emulated driver: memory, the order of work, graphs, kernels, threads.
#include <string>
#include <thread>
#include <vector>

#include "device_fixture.h"

namespace pb::cuda {
namespace {

constexpr int kRounds = 100;

struct TurnParams {
  float* x;  // (64)
};

// Turns x by kRounds places, one at a time.
PB_KERNEL(turn, TurnParams, 64) {
  DYNAMIC_SHARED(float, shared);
  float own = p.x[threadIdx.x];
  for (int i = 0; i < kRounds; ++i) {
    shared[threadIdx.x] = own;
    __syncthreads();
    own = shared[(threadIdx.x + 1) % 64];
    __syncthreads();
  }
  p.x[threadIdx.x] = own;
}

}  // namespace
}  // namespace pb::cuda

namespace pb::test {
namespace {

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

// Two engines of a process: each has a Device and a thread, and there is one emulator.
TEST(devices_of_two_threads_compute_at_once) {
  std::vector<float> wanted(64);
  std::vector<float> numbers(64);
  for (int i = 0; i < 64; ++i) {
    numbers[i] = static_cast<float>(i);
    wanted[i] = static_cast<float>((i + cuda::kRounds) % 64);
  }
  int n_wrong[2] = {};
  const auto compute = [&](int thread) {
    Device device(cuda_on_cpu::emulated_driver());
    device.load_module(nullptr);
    const DeviceMemory x = device.allocate(64 * sizeof(float));
    for (int i = 0; i < 50; ++i) {
      std::vector<float> result(64);
      device.copy_to_device(x.as(), numbers.data(), x.bytes());
      device.launch(Launch<cuda::TurnParams>{"turn", {1}, 64, 256, {x.as<float>()}});
      device.copy_to_host(result.data(), x.as(), x.bytes());
      device.finish();
      n_wrong[thread] += result != wanted ? 1 : 0;
    }
  };
  std::thread other(compute, 0);
  compute(1);
  other.join();
  EXPECT_EQ(n_wrong[0] + n_wrong[1], 0);
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
